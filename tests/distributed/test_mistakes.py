"""An error before or during a job is printed once, and no rank waits forever."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from launch import finish, run_alone, torchrun

SPEC: dict[str, Any] = {"name": "small", "rounds": 2, "data": {"nodes": 3}, "topology": {"name": "ring"}}


def run(folder: Path, ranks: int, spec: dict[str, Any], *more: str) -> tuple[int, str]:
    path = folder / "spec.toml"
    path.write_text(tomli_w.dumps(spec))
    command = ("-m", "feda2l", "run", path, "--out", folder / "run", "--quiet", *more)
    return finish(torchrun(ranks, *command), 120)


def words(output: str) -> list[str]:
    """Return the lines printed by feda2l itself."""
    return [line for line in output.splitlines() if line.startswith("feda2l: ")]


def test_an_error_in_the_spec_is_printed_once(tmp_path):
    code, output = run(tmp_path, 2, SPEC | {"rounds": 0})
    assert code != 0
    assert len(words(output)) == 1, output
    assert "rounds" in words(output)[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "more", "said"),
    [
        (4, {}, "data.nodes = 3 on 4 ranks"),
        (2, {"faults": "plan.toml"}, "fault plan needs a single process"),
        (2, {"network": {"participation": 0.7}}, "network.participation below 1 needs a single process"),
        (2, {"model": {"name": "users_models:Failing"}}, "this model cannot"),
        (2, {"runtime": {"device": "cuda"}}, 'runtime.device = "cuda" is not available'),
        (2, {"rates": {"name": "constant", "base": 1e30}}, "the run became non-finite in round 1"),
    ],
)
def test_a_run_that_cannot_start_prints_one_error(tmp_path, ranks, more, said):
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "crash"\nnode = 1\nround = 1\n')
    if "faults" in more:
        more = {"faults": str(plan)}
    code, output = run(tmp_path, ranks, SPEC | more)
    assert code != 0
    assert said in output, output
    assert len(words(output)) == 1, output


@pytest.mark.long
def test_ranks_with_different_specs_raise_an_error(tmp_path):
    script = tmp_path / "differ.py"
    script.write_text(
        "import json, os, sys, feda2l\n"
        "from feda2l.errors import FedA2LError\n"
        "spec = json.loads(sys.argv[1])\n"
        "spec['rounds'] += int(os.environ['RANK'])\n"
        "try:\n"
        "    feda2l.run(spec, out=sys.argv[2], progress=False)\n"
        "except FedA2LError as error:\n"
        '    sys.stdout.write(f\'{"quiet" if error.printed else "said"}: {error}\\n\')\n'
    )
    code, output = finish(torchrun(2, script, json.dumps(SPEC), tmp_path / "run"), 120)
    assert code == 0, output
    assert (
        output.count("said: the ranks have different values in the spec: 0.rounds is 3 at rank 1, and 2 at rank 0") == 1
    )
    assert not (tmp_path / "run").exists()


def test_an_error_at_another_rank_is_printed_in_full(tmp_path):
    script = tmp_path / "one.py"
    script.write_text(
        "import os, sys\n"
        "from feda2l.distributed.ranks import here\n"
        "from feda2l.errors import FedA2LError\n"
        "def fail():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise FedA2LError('no such thing', see='torchrun')\n"
        "try:\n"
        "    here().together(fail)\n"
        "except FedA2LError as error:\n"
        "    if not error.printed:\n"
        "        sys.stdout.write(f'{error}; {error.__notes__}\\n')\n"
    )
    code, output = finish(torchrun(2, script), 120)
    assert code == 0, output
    assert "rank 1: no such thing; ['See: feda2l explain torchrun']" in output


@pytest.mark.long
def test_only_the_leader_needs_the_run_folder(tmp_path):
    """Each rank has its own current folder, as on hosts without a shared disk. Only the leader writes records."""
    script = tmp_path / "apart.py"
    script.write_text(
        "import json, os, sys, feda2l\n"
        "os.makedirs(f'host-{os.environ[\"RANK\"]}', exist_ok=True)\n"
        "os.chdir(f'host-{os.environ[\"RANK\"]}')\n"
        "feda2l.run(json.loads(sys.argv[1]), out='run', progress=False)\n"
    )
    job = torchrun(2, script, json.dumps(SPEC), cwd=tmp_path)
    code, output = finish(job, 120)
    assert code == 0, output
    assert not (tmp_path / "host-1" / "run").exists()
    alone = run_alone(SPEC, tmp_path / "alone")
    assert (tmp_path / "host-0" / "run" / "rounds.jsonl").read_bytes() == (alone / "rounds.jsonl").read_bytes()


@pytest.mark.long
def test_restarts_need_out(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(tomli_w.dumps(SPEC))
    job = torchrun(2, "-m", "feda2l", "run", path, options=("--max-restarts=1",), cwd=tmp_path)
    code, output = finish(job, 120)
    assert code != 0
    assert "--max-restarts needs --out" in output


@pytest.mark.long
def test_a_study_runs_on_ranks_and_one_failing_run_does_not_stop_it(tmp_path):
    study = {
        "name": "two",
        "base": SPEC,
        "axes": {"algorithm.name": ["fedavg", "fedyogi"]},
        "extra": {"failing": {"model": {"name": "users_models:Failing"}}},
    }
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(study))
    job = torchrun(2, "-m", "feda2l", "study", path, "--out", tmp_path / "study")
    code, output = finish(job)
    assert code != 0
    assert "2 of 3 runs finished" in output, output
    assert output.count("this model cannot") >= 1
    for name in ("fedavg", "fedyogi"):
        (found,) = (tmp_path / "study" / name).rglob("rounds.jsonl")
        alone = run_alone(SPEC | {"algorithm": {"name": name}}, tmp_path / "alone" / name)
        assert found.read_bytes() == (alone / "rounds.jsonl").read_bytes()
