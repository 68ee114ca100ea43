"""With several ranks only the leading rank calls trackers."""

from pathlib import Path

import pytest
from launch import differing, finish, run_alone, torchrun

SPEC = {"name": "ranks", "rounds": 3, "data": {"nodes": 4}}
TRACKER = """
import os

class Listener:
    def begin(self, run):
        self.path = run.path
    def round(self, record):
        with open(self.path.parent / "told.txt", "a") as file:
            print(os.environ["RANK"], record["round"], file=file)
    def end(self, summary):
        pass

if __name__ == "__main__":
    import feda2l
    feda2l.run({spec}, out="run", trackers=[Listener], progress=False)
"""


@pytest.mark.long
def test_only_the_leading_rank_calls_trackers(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TRACKER.replace("{spec}", repr(SPEC)))
    code, output = finish(torchrun(2, tmp_path / "job.py", cwd=tmp_path))
    assert code == 0, output
    assert (tmp_path / "told.txt").read_text() == "0 1\n0 2\n0 3\n"
    assert differing(tmp_path / "run", run_alone(SPEC, tmp_path / "alone")) == []
