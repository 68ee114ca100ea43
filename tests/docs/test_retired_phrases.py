"""Retired phrases and names do not come back: the project is written in plain English, with one word for one idea."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("*.py", "*.md", "*.toml", "*.html", "*.js", "*.ipynb")
# the table of old names with its test, the changelog, this list, and the stored records of evidence
EXEMPT = (
    "src/feda2l/old_names.py",
    "tests/records/test_old_names.py",
    "CHANGELOG.md",
    "tests/docs/test_retired_phrases.py",
    "results/evidence-",
    "results/cnn-",
)

# retired pattern -> what to write instead
PHRASES = {
    r"\ba (row|line|value|score|model|gigabyte|partition|dot|point|column|colour|number|start|step|entry|file) "
    r"a (row|node|round|layer|run|seed|method|window|variate|model|message|peer)\b": "one row per node",
    r"\b(go|goes|going|went) on (where|from where)\b": "resume",
    r"\bthe same command (again )?goes on\b": "run the same command again to resume",
    r"\b(become|becomes|became) of\b": "say what happens to it",
    r"\bsays? the like\b|\bthe like of\b": "shows the same",
    r"\b(bring|brings|brought) (\w+ )?home\b": "reaches the target",
    r"\bnever c[ao]me home\b|\bnever came\b|\banyone came\b": "did not reach the target",
    r"\b(is|are|was|were|be) dealt\b|\bdealt (to|by|as|in|out)\b": "assigned",
    r"\bdeals? (the|rows|samples|data|to)\b": "assign",
    r"\b(nobody|no one|whoever)'s\b": "name the owner, or rewrite",
    r"\bwhoever\b": "the node that, a user who",
    r"\bof its own, so\b": "rewrite",
    r"\bc[ao]mes? to the same\b": "gives the same result",
    r"\bt(old|ell|ells) apart\b": "distinguish",
    r"\bto(ld)? be told from\b|\bcannot be told from\b": "cannot be distinguished from",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bnothing to tell\b": "at least two are needed",
    r"\bbe that as it may\b": "delete it",
    r"\bhang(s|ing)? on (it|them|its|this)\b|\bmust not hang on\b": "depends on",
    r"\b(is|are|be) put down\b": "is recorded",
    r"\bwants a (smaller|larger|bigger)\b": "needs a smaller",
    r"\ba file that is there\b": "existing files",
    r"\bin the race\b": "included",
    r"\bat (no|any) one's\b|\bof one's own\b|\bone's own\b": "your own",
    r"\b(hither|thither|whence|lest|aught|naught|albeit)\b": "modern English",
    r"\b(stands?|stood|travels?) beside\b": "follows, is sent with",
    r"\bto no worth\b|\bworth nothing\b": "has no effect",
    r"\bsave for\b": "except",
    r"\bnumbers? comes? back\b": "is reproduced",
}
NAMES = {
    r"\b[Cc]ouriers?\b": "Messenger",
    r"\b[Mm]eddlers?\b": "FaultInjector",
    r"\bCrew\b": "RankGroup",
    r"\bAlone\(|\bclass Alone\b": "SingleProcess",
    r"\b_?heard(_\w+)?\b": "received, receivers",
    r"\b(taught|teaches|climbed)\b": "base_outputs, uses_base_outputs, perturbed",
    r"\b(refusals|met_faults)\b": "rejected, missed_rounds",
    r"\b(import|[:(\[]) ?Own\b": "NodeStates",
    r"\bfeda2l\.rates(\.\w+)? import .*\bMeasure\b": "SignalSettings",
    r"\bis_held\b|\bheld\.py\b": "is_locked, folder_locks.py",
    r"\bdeal\.py\b": "assign_samples.py",
    r"\bNO_MATTER\b|\bEXEMPT_KEYS\b": "name what the set holds",
    r"\bnear\.hear\b|\bown\.memory\b": "neighbourhood.receive, states.state",
    r"\btest_share\b|\bmodel\.(start|start_sha256|fresh)\b": "test_fraction, initial_weights, reinitialize",
    r"\bdata\.(node|columns)\b|\bdata\.target\b": "node_column, feature_columns, target_column",
    r"\b(sigma|zeta)_(mean|min|max)\b": "divergence_mean, stability_mean",
    r"\brun(s)?( has| have|) diverged\b|\bdiverged in round\b": "became non-finite",
    r"\bfeda2l unbundle\b": "feda2l bundle --unpack",
}
RETIRED = PHRASES | NAMES


def lines() -> Iterator[tuple[str, int, str]]:
    """Every line of the tracked files, and of new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *KINDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is not a clone")
    for name in done.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not name.startswith(EXEMPT):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                yield name, number, line


def test_no_retired_phrase_or_name_is_back() -> None:
    patterns = {re.compile(pattern, re.IGNORECASE if pattern in PHRASES else 0): pattern for pattern in RETIRED}
    either = re.compile("|".join(f"(?:{pattern})" for pattern in RETIRED), re.IGNORECASE)
    hits = [
        f"{name}:{number}: {found[0]!r}; write instead: {RETIRED[pattern]}"
        for name, number, line in lines()
        if either.search(line)
        for expression, pattern in patterns.items()
        if (found := expression.search(line))
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    "retired",
    [
        "One file, a row a node and round",
        "The run goes on where it was",
        "Data are dealt to nodes",
        "Mend it",
        "heard_by",
    ],
)
def test_the_list_finds_what_it_is_meant_to_find(retired: str) -> None:
    assert any(re.search(pattern, retired, re.IGNORECASE) for pattern in RETIRED)


@pytest.mark.parametrize("plain", ["one row per node and round", "The run resumes", "recommend", "a deal with it"])
def test_the_list_leaves_plain_words_alone(plain: str) -> None:
    assert not any(re.search(pattern, plain, re.IGNORECASE) for pattern in RETIRED)
