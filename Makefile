PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c lock.txt

.PHONY: demo test test-long test-docs test-integrations contract reproduction soak fuzz lint bench browser docs notebooks dist try-dist clean

demo: $(VENV)/.demo          ## ten nodes learn without a server: compare six rate rules
	$(BIN)/feda2l demo

test: $(VENV)/.test lint browser ## what CI runs: lint, types and every test that is not long
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: $(VENV)/.test lint browser ## everything, including the tests that take minutes
	$(BIN)/python -m pytest -n 2

test-docs: $(VENV)/.test     ## the code in the pages and the notebooks
	$(BIN)/python -m pytest -n 2 tests/acceptance/test_docs.py tests/docs tests/notebooks

contract: $(VENV)/.test      ## every algorithm with every rate rule on every topology, for one round
	$(BIN)/python -m pytest -n 2 -m long -rP tests/algorithms/test_contract_of_algorithms.py

test-integrations: $(VENV)-integrations/.done ## the real Lightning, Trainer, Flower, hivemind and peft: minutes, 2 GB
	$(VENV)-integrations/bin/python -m pytest tests/integrations

reproduction: $(VENV)/.test  ## write the evidence pages from the kept records in results/; fails if a page or figure changed
	$(BIN)/python -m reproduction --check

soak: $(VENV)/.test          ## five real nodes for 20 minutes under random faults: check for growth
	$(BIN)/python tools/soak.py --minutes 20

fuzz: $(VENV)/.test          ## 100,000 damaged messages: nothing may crash, hang or grow
	$(BIN)/python tools/fuzz_messages.py --inputs 100000

lint: $(VENV)/.test
	$(BIN)/ruff check src reproduction tests examples tools docs conftest.py
	$(BIN)/ruff format --check src reproduction tests examples tools docs conftest.py
	$(BIN)/mypy

bench: $(VENV)/.demo         ## compare this engine with a plain loop, both measured in one run
	$(BIN)/feda2l bench

browser:                     ## install Chromium for the tests of the report page, if possible; else they are skipped
	@command -v chromedriver > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || \
		{ echo "installing Chromium for the tests of the report page"; timeout 300 apt-get install -y -q chromium chromium-driver > /dev/null; } || \
		echo "Chromium cannot be installed: the tests of the report page are skipped"

docs: $(VENV)/.docs          ## build the documentation site in docs/_build/html, offline; a warning is an error
	$(BIN)/python -m sphinx -b html -E -W --keep-going -n -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

notebooks: $(VENV)/.test     ## execute docs/notebooks again, in place
	$(BIN)/python tools/execute_notebooks.py

dist: $(VENV)/.release       ## build and check wheel and sdist in dist/; the wheel is built from the sdist
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

try-dist: dist               ## install both into empty environments of PYTHON and run the demo from there
	$(PYTHON) tools/try_distribution.py dist/*

clean:
	rm -rf docs/_build dist $(VENV) $(VENV)-integrations .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/pip pyproject.toml lock.txt
	$(INSTALL) --editable ".[plots]"
	touch $@

$(VENV)/.docs: $(BIN)/pip pyproject.toml lock.txt
	$(INSTALL) --editable ".[docs]"
	touch $@

$(VENV)/.test: $(BIN)/pip pyproject.toml lock.txt
	$(INSTALL) --editable ".[test]"
	touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)-integrations/.done: pyproject.toml lock-integrations.txt
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/pip install --quiet --disable-pip-version-check -c lock-integrations.txt --editable ".[integrations]"
	touch $@

$(VENV)/.release: $(BIN)/pip lock.txt
	$(INSTALL) build hatchling twine
	touch $@
