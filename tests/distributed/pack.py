"""Script for every rank: run the specs of a file as one pack."""

import json
import sys
from pathlib import Path

import feda2l

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    feda2l.run(json.loads((folder / "specs.json").read_text()), out=folder, progress=False)
