"""What `launch.run_on_ranks` starts at every rank: the runs of a file, one after the other."""

import json
import sys
from pathlib import Path

import feda2l

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, spec in json.loads((folder / "specs.json").read_text()).items():
        feda2l.run(spec, out=folder / name, progress=False)
