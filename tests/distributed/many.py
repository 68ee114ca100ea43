"""Script of `launch.run_on_ranks` for every rank: run the specs of a file one after the other."""

import json
import sys
from pathlib import Path

import feda2l

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, spec in json.loads((folder / "specs.json").read_text()).items():
        feda2l.run(spec, out=folder / name, progress=False)
