"""Install a wheel or an sdist into an empty environment and run the demo from there, in an empty folder.

    python tools/try_distribution.py dist/feda2l-0.1.0-py3-none-any.whl [FILE ...]

The environment is of the Python that runs this file; versions are those of lock.txt. An sdist is built by pip.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LOCK = Path(__file__).parents[1] / "lock.txt"
WHERE = "import feda2l, sys; print(feda2l.__version__, feda2l.__file__)"


def try_distribution(file: Path, seeds: int = 1) -> str:
    """What the demo printed; anything that goes wrong raises with what was said."""
    file = file.resolve(strict=True)
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "environment", Path(folder) / "work"
        work.mkdir()
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        say = _runner(work)
        say(python, "-m", "pip", "install", "--quiet", "-c", str(LOCK), f"{file}[plots]")
        say(python, "-m", "pip", "check")
        version, place = say(python, "-c", WHERE).split(maxsplit=1)
        if not Path(place.strip()).is_relative_to(home):
            raise RuntimeError(f"feda2l {version} was imported from {place.strip()}, not from the new environment")
        shown = say(str(home / "bin" / "feda2l"), "demo", "--seeds", str(seeds))
        made = {path.name for path in (work / "runs" / "demo").iterdir()}
        if "demo.png" not in made or len(made) < 2:
            raise RuntimeError(f"the demo left {sorted(made)}")
        # what lies in the package beside the code: studies, the page, the paper's numbers
        say(str(home / "bin" / "feda2l"), "list", "studies")
        say(str(home / "bin" / "feda2l"), "report", "runs/demo", "--out", "report")
        if not (work / "report" / "index.html").exists():
            raise RuntimeError("the report has no page")
        return shown


def _runner(work: Path):  # type: ignore[no-untyped-def]
    # neither a tree on the path nor a user's own packages may stand in for what was installed
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def say(*command: str) -> str:
        environment = clean | {"PYTHONNOUSERSITE": "1"}
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    return say


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[1:]:
        try:
            print(try_distribution(Path(name)))
        except (RuntimeError, FileNotFoundError) as error:
            sys.exit(f"{name}: {error}")
        print(f"{name}: installs and runs on Python {sys.version.split()[0]}")
