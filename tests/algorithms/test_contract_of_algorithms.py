"""The contract of every algorithm, with every rate rule and topology: finite, seeded, resumable, packable.

A new algorithm is one row of `CASES`. Here every pair (algorithm, rule), (algorithm, topology) and (rule, topology)
occurs at least once; `make contract` runs every triple.
"""

import hashlib
import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import feda2l
from feda2l.algorithms import ALGORITHMS
from feda2l.errors import FedA2LError
from feda2l.rates import RULES
from feda2l.round.layout import Layout
from feda2l.topology import TOPOLOGIES


class Case(NamedTuple):
    """Parameters that exercise an algorithm (its runs take them in turn), its state, and its supported graphs."""

    parameters: tuple[dict[str, Any], ...] = ({},)
    state: frozenset[str] = frozenset()  # names in a checkpoint: algorithm.NAME or algorithm.NAME.TENSOR
    directed: bool = True  # defined on directed graphs


CASES = {
    "fedavg": Case(),
    "fedprox": Case(({"mu": 0.5},)),
    "fedyogi": Case(
        ({"rate": 0.02}, {"bias_correction": True}, {"first_round": "step"}), frozenset({"first", "second"})
    ),
    "fedntd": Case(({"tau": 2.0},)),
    "fedawa": Case(
        (
            {"optimizer_state": "kept", "rate": 0.1},
            {"use": "after", "init": "log_shares", "regulariser": "mean", "steps": 2},
            {"optimizer": "sgd", "optimizer_state": "kept", "scale": 0.99},
        ),
        frozenset({"weights", "first", "second", "count"}),
    ),
    "dfedsam": Case(({"gossip_steps": 2}, {"radius": 0.1})),
    "dfedhpo": Case(
        (
            {"trials": 2, "eval_epochs": 1, "top_k": 2, "consensus": False},
            {"trials": 2, "eval_epochs": 1, "aggregator": "CA"},
        ),
        frozenset({"found", "epochs"}),
    ),
    "fedlws": Case(({"beta": 0.5},), frozenset({"spread"})),
    "dpsgd": Case(({"steps": 2},), directed=False),
    "dfedavgm": Case(directed=False),
    "qg_dsgdm": Case(({"mu": 0.5},), frozenset({"momentum"}), directed=False),
    "gradient_tracking": Case(state=frozenset({"correction"}), directed=False),
    "choco": Case(
        ({"compressor": "top_k"}, {"compressor": "random_k"}, {"compressor": "quantise", "bits": 4}),
        frozenset({"replica"}),
        directed=False,
    ),
    "push_sum": Case(state=frozenset({"share", "mass"})),
}

POLICIES = ["average", "local", "recalibrate"]
NODES, ROUNDS, STOP, PACKS = 8, 3, 2, 6
DIRECTED = {"exponential", "one_peer_exponential", "directed_ring", "random_out"}
# settings with which a rule adapts within the few rounds of these tests
ADAPTING = {"warmup_rounds": 1, "window": 2}
SETTINGS: dict[str, dict[str, Any]] = dict.fromkeys(
    ("feda2l", "decay_only", "hidden_schedule", "random_multiplier", "shuffled", "model_level"), ADAPTING
)
EDGES = "0 1\n1 2\n2 3\n3 0\n3 4\n4 5\n5 6\n6 7\n7 4\n"  # two rings joined by an edge

MAY_BE_UNKNOWN = {f"algorithm.{name}" for name in ("weights", "first", "second")}  # FedAWA: NaN means no message yet

Spec = dict[str, Any]
Triple = tuple[str, str, str]


def perceptron() -> nn.Module:
    """A small model for the stacked engine."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


class Normed(nn.Module):
    """A small model with BatchNorm, for the engine that trains nodes one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x.flatten(1))).relu())
        return out


def defined(triple: Triple) -> bool:
    algorithm, _, topology = triple
    return CASES[algorithm].directed or topology not in DIRECTED


@cache
def pairwise() -> list[Triple]:
    """Choose triples that cover every defined pair.

    For each (rule, topology) take the algorithm that covers most new pairs, then cover the remaining pairs. Ties go to
    the algorithm used least, so that all occur about equally often.
    """
    used: Counter[str] = Counter()
    missing = {
        pair
        for a, r, t in itertools.product(CASES, RULES, TOPOLOGIES)
        if defined((a, r, t))
        for pair in pairs((a, r, t))
    }
    chosen: list[Triple] = []

    def take(candidates: Iterable[Triple]) -> None:
        valid = [triple for triple in candidates if defined(triple)]
        best = max(valid, key=lambda triple: (len(missing & pairs(triple)), -used[triple[0]]))
        chosen.append(best)
        used[best[0]] += 1
        missing.difference_update(pairs(best))

    for rule, topology in itertools.product(RULES, TOPOLOGIES):
        take((algorithm, rule, topology) for algorithm in CASES)
    for pair in sorted(missing, key=sorted):
        if pair in missing:
            take(t for t in itertools.product(CASES, RULES, TOPOLOGIES) if pair in pairs(t))
    return chosen


def pairs(triple: Triple) -> set[frozenset[str]]:
    kinds = [f"{kind} {name}" for kind, name in zip("art", triple, strict=True)]
    return {frozenset(pair) for pair in itertools.combinations(kinds, 2)}


class SpecMaker:
    """Makes the specs of these tests and writes the files they refer to into a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "edges").write_text(EDGES)
        (folder / "paired").mkdir()
        line = json.dumps({"layers": {"multiplier": [[1.2, 0.8], [1.1, 1.3]]}})
        (folder / "paired" / "rounds.jsonl").write_text(f"{line}\n" * ROUNDS)
        self.file, self.paired = str(folder / "edges"), str(folder / "paired")
        self.turns = {name: itertools.cycle(case.parameters) for name, case in CASES.items()}

    def spec(self, triple: Triple, *, rounds: int = ROUNDS, model: str = "perceptron", **more: Any) -> Spec:
        algorithm, rule, topology = triple
        settings = SETTINGS.get(rule, {}) | (ADAPTING | {"paired": self.paired} if rule == "decay_only_matched" else {})
        return {
            "name": "-".join(triple),
            "rounds": rounds,
            "data": {"nodes": NODES, "alpha": 1.0, "train_fraction": 0.1, "min_size": 60},
            "model": {"name": f"{__name__}:{model}"},
            "topology": {"name": topology, "k": 3, "p": 0.5} | ({"file": self.file} if topology == "file" else {}),
            "algorithm": {"name": algorithm, **next(self.turns[algorithm])},
            "rates": {"name": rule, "base": 0.02, **settings},
            "training": {"batch_size": 5},
            "evaluation": {"every": 2},
            "runtime": {"workers": 0, "checkpoint_seconds": 1000},  # only at the end
        } | more


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """Use one thread in every test of this file."""


@pytest.fixture
def maker(tmp_path: Path) -> SpecMaker:
    (tmp_path / "suite").mkdir()
    return SpecMaker(tmp_path / "suite")


class Stopped(Exception):
    """Stand in for a process that ends in the middle of a run."""


def stop(record: dict[str, Any]) -> None:
    if record["round"] == STOP:
        raise Stopped


def run_packed(specs: Sequence[Spec], out: Path, **options: Any) -> None:
    feda2l.run(specs, out=out, progress=False, **options)


def run_alone(specs: Iterable[Spec], out: Path, **options: Any) -> None:
    for spec in specs:
        feda2l.run(spec, out=out / spec["name"], progress=False, **options)


def run_interrupted(specs: Sequence[Spec], out: Path) -> None:
    """Stop runs in round `STOP`, with the checkpoint of the previous round on disk."""
    every_round = {"workers": 0, "checkpoint_seconds": 0}
    with pytest.raises(Stopped):
        run_packed([spec | {"runtime": every_round} for spec in specs], out, on_round=stop)


def differing(one: Path, other: Path, names: Iterable[str]) -> list[str]:
    """The runs whose records or checkpoints differ between both folders."""
    files = ("rounds.jsonl", "checkpoint.safetensors")
    return [
        name for name in names if any((one / name / f).read_bytes() != (other / name / f).read_bytes() for f in files)
    ]


def not_finite(out: Path, names: Iterable[str]) -> list[str]:
    """The runs with NaN or infinity in their models, state or records."""

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from numbers(item)
        elif isinstance(value, float):
            yield value

    def is_finite(name: str) -> bool:
        tensors, _ = read(out / name / "checkpoint.safetensors")
        records = [json.loads(line) for line in (out / name / "rounds.jsonl").read_text().splitlines()]
        wrong = [
            key
            for key, values in tensors.items()
            if not (values.nan_to_num() if key in MAY_BE_UNKNOWN else values).isfinite().all()
        ]
        return not wrong and all(map(math.isfinite, numbers(records)))

    return [name for name in names if not is_finite(name)]


def read(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(checkpoint, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118 (not a mapping)


def write(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint with a correct checksum."""
    total = hashlib.sha256()
    for key in sorted(tensors):
        total.update(key.encode())
        total.update(tensors[key].numpy().tobytes())
    save_file(tensors, checkpoint, {"sha256": total.hexdigest()})


# --- the table and the pairs -------------------------------------------------------------------------------


def test_every_algorithm_has_a_row() -> None:
    assert list(CASES) == list(ALGORITHMS), "add a row to CASES, in the order of ALGORITHMS"


def test_every_defined_pair_occurs() -> None:
    chosen = pairwise()
    every = [t for t in itertools.product(ALGORITHMS, RULES, TOPOLOGIES) if defined(t)]
    assert set(chosen) <= set(every)
    assert len(set(chosen)) == len(chosen) < 1.1 * len(RULES) * len(TOPOLOGIES)  # close to the fewest possible
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, every))


# --- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(PACKS))
def test_pairs_are_finite_and_give_the_same_bytes_packed_alone_and_resumed(
    number: int, maker: SpecMaker, tmp_path: Path
) -> None:
    specs = [maker.spec(triple) for triple in sorted(pairwise())[number::PACKS]]
    names = [spec["name"] for spec in specs]
    run_packed(specs, tmp_path / "whole")
    assert not_finite(tmp_path / "whole", names) == []
    # interrupted, then resumed in other packs
    run_interrupted(specs, tmp_path / "broken")
    for part in (specs[::2], specs[1::2]):
        run_packed(part, tmp_path / "broken", resume=True)
    assert differing(tmp_path / "whole", tmp_path / "broken", names) == []
    # run every second algorithm alone; the next pack covers the others
    firsts = {spec["algorithm"]["name"]: spec for spec in reversed(specs)}
    some = [firsts[algorithm] for algorithm in list(CASES)[number % 2 :: 2]]
    run_alone(some, tmp_path / "alone")
    assert differing(tmp_path / "whole", tmp_path / "alone", [spec["name"] for spec in some]) == []


def on_a_ring(maker: SpecMaker, **more: Any) -> list[Spec]:
    return [maker.spec((algorithm, "feda2l", "ring"), **more) for algorithm in CASES]


def test_runs_depend_on_their_seed_and_not_on_the_global_generator(maker: SpecMaker, tmp_path: Path) -> None:
    specs = on_a_ring(maker, rounds=1)
    names = [spec["name"] for spec in specs]
    torch.manual_seed(1)
    run_packed(specs, tmp_path / "one")
    drawn = torch.rand(1)  # the runs did not advance the global generator
    assert torch.equal(drawn, torch.rand(1, generator=torch.Generator().manual_seed(1)))
    run_packed(specs, tmp_path / "again")
    assert differing(tmp_path / "one", tmp_path / "again", names) == []
    run_packed([spec | {"seed": 2} for spec in specs], tmp_path / "two")
    assert differing(tmp_path / "one", tmp_path / "two", names) == names


def test_layers_with_rate_zero_stay_finite(maker: SpecMaker, tmp_path: Path) -> None:
    """No node trains in round 1 and models start apart, so movement divided by the rate would be infinite."""
    specs = on_a_ring(maker)
    for spec in specs:
        spec["rates"]["warmup_factor"] = 0.0
        spec["model"]["init"] = "per_node"
    names = [spec["name"] for spec in specs]
    run_packed(specs, tmp_path)
    assert [name for name in names if feda2l.Run(tmp_path / name).summary["status"] != "finished"] == []
    assert not_finite(tmp_path, names) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_batchnorm_statistics_of_every_policy(policy: str, maker: SpecMaker, tmp_path: Path) -> None:
    specs = on_a_ring(maker, model="Normed")
    for spec in specs:
        spec["algorithm"]["buffers"] = policy
    names = [spec["name"] for spec in specs]
    run_packed(specs, tmp_path / "whole")
    assert not_finite(tmp_path / "whole", names) == []
    run_interrupted(specs, tmp_path / "broken")
    run_packed(specs[::-1], tmp_path / "broken", resume=True)
    assert differing(tmp_path / "whole", tmp_path / "broken", names) == []
    # run each algorithm alone once, with one of the policies
    some = specs[POLICIES.index(policy) :: len(POLICIES)]
    run_alone(some, tmp_path / "alone")
    assert differing(tmp_path / "whole", tmp_path / "alone", [spec["name"] for spec in some]) == []
    for spec in specs:
        folder = tmp_path / "whole" / spec["name"]
        assert read(folder / "checkpoint.safetensors")[0]["buffers.norm.running_mean"].abs().max() > 0
        # `average` adds 24 statistics of 4 bytes to each message; the other policies add none
        name, keys = spec["algorithm"]["name"], spec["algorithm"].keys() - {"name", "buffers"}
        algorithm = ALGORITHMS[name](**{key: spec["algorithm"][key] for key in keys})
        parameters = sum(parameter.numel() for parameter in Normed().parameters())
        message = algorithm.message_bytes(parameters, Layout.of(Normed()).width) + (
            4 * 24 if policy == "average" else 0
        )
        record = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
        assert record["bytes_sent"] == 2 * NODES * message * algorithm.gossip, name


# --- state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "another"), list(itertools.pairwise([*CASES, "fedavg"])))
def test_a_checkpoint_holds_the_state_and_an_invalid_one_is_rejected(
    algorithm: str, another: str, maker: SpecMaker, tmp_path: Path
) -> None:
    spec = maker.spec((algorithm, "feda2l", "ring"))
    run_interrupted([spec], tmp_path)
    checkpoint = tmp_path / spec["name"] / "checkpoint.safetensors"
    tensors, metadata = read(checkpoint)
    write(checkpoint, tensors)
    assert read(checkpoint)[1] == metadata  # `write` computes the same checksum
    state: dict[str, list[str]] = {}
    for key in tensors:
        kind, *name = key.split(".", maxsplit=2)
        if kind == "algorithm":
            state.setdefault(name[0], []).append(key)
    assert set(state) == CASES[algorithm].state
    parameters = [key.removeprefix("model.") for key in tensors if key.startswith("model.")]
    for name, keys in state.items():
        assert sorted(keys) in ([f"algorithm.{name}"], sorted(f"algorithm.{name}.{tensor}" for tensor in parameters))
        key = keys[0]
        assert len(tensors[key]) == NODES
        others = {other: values for other, values in tensors.items() if other != key}
        for wrong in ({}, {key: tensors[key][:-1].clone()}, {f"{key}_renamed": tensors[key]}):
            write(checkpoint, others | wrong)
            with pytest.raises(FedA2LError, match=rf"checkpoint\.safetensors: {re.escape(key)} should be \[8"):
                run_alone([spec], tmp_path, resume=True)
    with pytest.raises(FedA2LError, match=rf"algorithm\.name: '{algorithm}' in the folder, '{another}' now"):
        run_alone([spec | {"algorithm": {"name": another}}], tmp_path, resume=True)


# --- where an algorithm is not defined ---------------------------------------------------------------------


def rejection(spec: Spec, out: Path) -> str:
    """The message with which a run is rejected before anything is written."""
    with pytest.raises(FedA2LError) as caught:
        feda2l.run(spec, out=out, progress=False)
    assert not out.exists()
    return str(caught.value)


@pytest.mark.parametrize("topology", sorted(DIRECTED))
def test_an_algorithm_is_rejected_on_graphs_it_does_not_support(
    topology: str, maker: SpecMaker, tmp_path: Path
) -> None:
    for algorithm, case in CASES.items():
        if not case.directed:
            message = rejection(maker.spec((algorithm, "constant", topology)), tmp_path / "out")
            assert f'algorithm.name = "{algorithm}" needs' in message
            assert f'topology.name = "{topology}" is directed' in message
            assert 'algorithm.name = "push_sum"' in message  # the alternative


def test_other_weights_are_accepted_only_if_they_are_balanced(maker: SpecMaker, tmp_path: Path) -> None:
    """On a directed ring all degrees are equal, so uniform weights are doubly stochastic, but not symmetric."""
    strict = [algorithm for algorithm, case in CASES.items() if not case.directed]
    for algorithm in strict:
        ring = maker.spec((algorithm, "constant", "ring"), topology={"name": "ring", "weights": "samples"})
        assert 'use topology.weights = "metropolis"' in rejection(ring, tmp_path / "out")
        uniform = {"name": "directed_ring", "weights": "uniform"}
        spec = maker.spec((algorithm, "constant", "directed_ring"), rounds=1, topology=uniform)
        if ALGORITHMS[algorithm].mixing == "symmetric":
            assert "needs symmetric weights" in rejection(spec, tmp_path / "out")
        else:
            run_alone([spec], tmp_path)
            assert not_finite(tmp_path, [spec["name"]]) == []


# --- the whole product: `make contract` --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("algorithm", CASES)
def test_every_triple(algorithm: str, maker: SpecMaker, tmp_path: Path) -> None:
    start = time.perf_counter()
    triples = list(itertools.product([algorithm], RULES, TOPOLOGIES))
    specs = {triple: maker.spec(triple, rounds=1) for triple in triples}
    supported = [spec for triple, spec in specs.items() if defined(triple)]
    run_packed(supported, tmp_path / "pack")
    assert not_finite(tmp_path / "pack", [spec["name"] for spec in supported]) == []
    for triple, spec in specs.items():
        if not defined(triple):
            assert f'algorithm.name = "{algorithm}" needs' in rejection(spec, tmp_path / "out")
    seconds = time.perf_counter() - start
    print(f"{algorithm}: {len(supported)} finite, {len(specs) - len(supported)} rejected, {seconds:.1f} s")
