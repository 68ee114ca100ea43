"""The workflows have few permissions, pinned actions and existing targets."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".github"
NAMES = ("docs", "lint", "publish", "tests")
FORMS = ("bug", "feature", "question", "result")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load(HOME / "workflows" / f"{name}.yml")
    return found


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def test_these_are_all() -> None:
    assert sorted(path.stem for path in (HOME / "workflows").iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_job_has_few_permissions_a_time_limit_and_pinned_actions(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] in ({}, {"contents": "read"})
    for job in found["jobs"].values():
        assert job["timeout-minutes"] <= 330
        assert job.get("permissions", {"contents": "read"}) in ({"contents": "read"}, {"id-token": "write"})
    for step in steps(name):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", "")  # no outside text is inserted into a shell


@pytest.mark.parametrize("name", NAMES)
def test_the_targets_of_a_workflow_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for step in steps(name):
        for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
        for script in re.findall(r"\bpython (\S+\.py)", step.get("run", "")):
            assert (ROOT / script).exists(), script


def test_no_registry_is_named() -> None:
    for path in HOME.rglob("*.yml"):
        assert not re.search(r"https?://", path.read_text()), path


def test_only_the_publishing_job_has_an_identity_and_no_secret_is_used() -> None:
    for name in NAMES:
        text = (HOME / "workflows" / f"{name}.yml").read_text()
        assert "secrets." not in text
        assert ("id-token" in text) is (name == "publish")
    jobs = workflow("publish")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == "build"
    # the job with the identity runs no code of this repository
    assert all("run" not in step and "checkout" not in step["uses"] for step in jobs["publish"]["steps"])
    assert jobs["publish"]["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert workflow("publish")[True] == {"release": {"types": ["published"]}}  # YAML's `on`


def test_every_declared_python_is_tested() -> None:
    declared = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    jobs = workflow("tests")["jobs"]
    for job in ("fast", "installed"):
        assert set(jobs[job]["strategy"]["matrix"]["python"]) == declared


@pytest.mark.parametrize("name", FORMS)
def test_issue_forms_have_questions(name: str) -> None:
    form = load(HOME / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert form["name"]
    assert form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked)
    assert any(part.get("validations", {}).get("required") for part in asked)


@pytest.mark.skipif(
    not (shutil.which("zizmor") or (Path(sys.prefix) / "bin" / "zizmor").exists()), reason="needs zizmor"
)
def test_zizmor_finds_nothing() -> None:
    program = shutil.which("zizmor") or str(Path(sys.prefix) / "bin" / "zizmor")
    done = subprocess.run([program, "--offline", str(HOME)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
