"""Install a wheel or an sdist into an empty environment and run its demo in an empty folder.

    python tools/try_distribution.py dist/feda2l-0.1.0-py3-none-any.whl [FILE ...]

The environment uses the Python that runs this file and the versions of lock.txt. pip builds an sdist.
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
    """Return the output of the demo; a failed command raises with its output."""
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
            raise RuntimeError(f"the demo wrote only {sorted(made)}")
        # the files of the package besides the code: studies, the report page, the paper's numbers
        say(str(home / "bin" / "feda2l"), "list", "studies")
        say(str(home / "bin" / "feda2l"), "report", "runs/demo", "--out", "report")
        if not (work / "report" / "index.html").exists():
            raise RuntimeError("feda2l report wrote no index.html")
        return shown


def _runner(work: Path):  # type: ignore[no-untyped-def]
    # neither a source tree on the path nor packages of the user may replace the installed package
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
