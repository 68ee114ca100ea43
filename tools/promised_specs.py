"""The runs of `promised_bytes.py`: small specs that together use every part of a round.

A group is a list of jobs, and a job is one or more specs that are run in the same way. Every spec takes 3 to 10 rounds,
2 to 8 nodes and a fraction of a second. Paths in specs are relative to the folder that the tool works in.
"""

from dataclasses import dataclass, field
from math import sin
from random import Random
from typing import Any, Literal

Spec = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Specs that are run in the same way.

    Args:
        name: the job's folder.
        specs: the specs by name.
        kind: `run`: to the end. `extend`: to each round of `at`, then to the end. `stop`: an exception ends the run in
            each round of `at`, and it is resumed. `kill`: `kill -9` ends the command in the round of `at` or soon
            after, and it is resumed. `command`, `study`, `swarm`: one command per spec.
        packed: give all specs to `feda2l.run` as one list.
        at: the rounds of `extend`, `stop` and `kill`.
        ranks: start the job with torchrun and this number of processes; 0 starts it without torchrun.
        options: more options of a command.
        failing: the specs that end with an error, for example because they diverge.
    """

    name: str
    specs: dict[str, Spec]
    kind: Literal["run", "extend", "stop", "kill", "command", "study", "swarm"] = "run"
    packed: bool = False
    at: tuple[int, ...] = ()
    ranks: int = 0
    options: tuple[str, ...] = ()
    failing: tuple[str, ...] = field(default=())


ADAPT = {"name": "feda2l", "warmup_rounds": 1, "window": 2, "base": 0.05}
NAMED = ("topology", "algorithm", "rates", "model")


def spec(**tables: Any) -> Spec:
    """A run of FedA2L with five nodes on a ring; a string in place of a table is the table's name."""
    base: Spec = {"rounds": 5, "data": {"nodes": 5}, "topology": "ring", "rates": ADAPT, "runtime": {"workers": 0}}
    values = {**base, **tables}
    return {key: {"name": value} if key in NAMED and isinstance(value, str) else value for key, value in values.items()}


def adapt(**keys: Any) -> Spec:
    """The table of an adaptive rule that adapts from round 2 on."""
    return {**ADAPT, **keys}


# --- the parts that are combined ------------------------------------------------------------------------------------

HPO = {"name": "dfedhpo", "trials": 3, "eval_epochs": 1, "top_k": 2, "rate_range": [1e-3, 1e-1]}
ALGORITHMS: dict[str, Spec] = {
    "fedavg": {},
    "fedprox": {"mu": 0.05},
    "fedyogi": {},
    "fedntd": {},
    "fedawa": {},
    "dfedsam": {},
    "dfedhpo": HPO,
    "fedlws": {},
    "dpsgd": {"steps": 3},
    "dfedavgm": {},
    "qg_dsgdm": {},
    "gradient_tracking": {},
    "choco": {},
    "push_sum": {},
}
ALGORITHMS = {name: {"name": name, **keys} for name, keys in ALGORITHMS.items()}
VARIANTS: dict[str, Spec] = {
    "fedyogi-corrected": {"name": "fedyogi", "bias_correction": True, "rate": 0.02},
    "fedntd-warm": {"name": "fedntd", "beta": 0.5, "tau": 3.0},
    "fedawa-mean": {"name": "fedawa", "regulariser": "mean", "init": "log_shares", "steps": 3},
    "fedawa-sgd": {"name": "fedawa", "optimizer": "sgd", "rate": 0.5, "use": "after", "scale": 0.9},
    "fedawa-kept": {"name": "fedawa", "optimizer_state": "kept", "steps": 2},
    "dfedsam-gossip": {"name": "dfedsam", "gossip_steps": 2, "radius": 0.1},
    "dfedhpo-centre": {**HPO, "aggregator": "CA"},
    "dfedhpo-median": {**HPO, "aggregator": "MA", "consensus": False},
    "fedlws-strong": {"name": "fedlws", "beta": 0.1, "low": 0.0, "high": 0.4},
    "dpsgd-1": {"name": "dpsgd"},
    "qg_dsgdm-mu": {"name": "qg_dsgdm", "beta": 0.8, "mu": 0.5},
    "choco-random": {"name": "choco", "compressor": "random_k", "ratio": 0.2},
    "choco-quantise": {"name": "choco", "compressor": "quantise", "bits": 4, "gamma": 0.8},
    "choco-none": {"name": "choco", "compressor": "none"},
}
RULES: dict[str, Spec] = {
    "constant": {},
    "step": {"step_size": 2},
    "cawr": {"period": 2, "growth": 2},
    "one_cycle": {},
    "hyperbolic": {"warmup_rounds": 1},
    "exp_hyperbolic": {"warmup_rounds": 1},
    "hyperbolic_reference": {},
    "inverse_sqrt": {},
    "cosine": {"warmup_rounds": 1},
    "exponential": {"gamma": 0.9},
    "feda2l": {"warmup_rounds": 1, "window": 2},
    "decay_only": {"warmup_rounds": 1, "window": 2},
    "decay_only_matched": {"warmup_rounds": 1, "window": 2},
    "hidden_schedule": {"warmup_rounds": 1, "window": 2},
    "random_multiplier": {"warmup_rounds": 1, "window": 2},
    "shuffled": {"warmup_rounds": 1, "window": 2},
    "model_level": {"warmup_rounds": 1, "window": 2},
    "flare": {},
    "autolr": {},
    "fed_lamb": {},
    "flayer": {},
}
RULES = {name: {"name": name, "base": 0.05, **keys} for name, keys in RULES.items()}
ADAPTIVE: dict[str, Spec] = {
    "reference": adapt(preset="reference"),
    "window-3": adapt(window=3, balance=0.3, decay=0.1),
    "threshold": adapt(threshold=0.01, eps_norm=1e-6, eps_std=1e-4),
    "sign": adapt(consensus_sign=-1),
    "softsign": adapt(transform="softsign", newest="previous"),
    "adaptations": adapt(decay_index="adaptations", lr_clip=[0.01, 0.06]),
    "warmup": adapt(warmup_rounds=2, warmup_factor=0.5, bn_warmup_factor=0.25),
    "weight": adapt(measured="weight"),
}
GRAPHS: dict[str, Spec] = {
    "full": {},
    "ring": {},
    "k_regular": {"k": 3},
    "star": {},
    "tree": {},
    "hypercube": {},
    "grid": {},
    "torus": {},
    "exponential": {},
    "one_peer_exponential": {},
    "erdos_renyi": {"p": 0.5, "seed": 3},
    "directed_ring": {},
    "random_out": {"k": 2},
    "isolated": {},
}
GRAPHS = {name: {"name": name, **keys} for name, keys in GRAPHS.items()}
GRAPHS |= {name: {"name": "file", "file": f"{name}.txt"} for name in ("edges", "matrix")}
DIRECTED = ("exponential", "one_peer_exponential", "directed_ring", "random_out", "matrix")
EIGHT = {"nodes": 8, "alpha": 1.0}
SERIES = {
    "name": "csv",
    "path": "sites.csv",
    "node_column": "site",
    "partition": "natural",
    "input_length": 24,
    "horizon": 6,
}
TABLE = {
    "name": "csv",
    "path": "patients.csv",
    "target_column": "risk",
    "node_column": "hospital",
    "partition": "natural",
}
NORMED, FROZEN, FORECASTER = (f"promised_models:{name}" for name in ("Normed", "PartlyFrozen", "Forecaster"))
SLOW = {"compute_ms": 2.0, "speed": "phones", "links": "mobile"}
HALF = {**SLOW, "participation": 0.5}


# --- files that specs refer to --------------------------------------------------------------------------------------


def _sites() -> str:
    lines = ["site,level,flow"]
    for site in range(4):
        for hour in range(120 + 10 * site):
            level = f"{(site + 1) * sin(hour / (4 + site)):.4f}" if hour != 50 else ""  # a missing value
            lines.append(f"{site},{level},{sin(hour / (3 + site) + 1):.3f}")
    return "\n".join(lines) + "\n"


def _patients() -> str:
    random = Random(1)
    lines = ["age,pressure,risk,hospital"]
    for number in range(240):
        risk = ("low", "high")[number % 2]
        age, pressure = random.gauss(45 + 20 * (risk == "high"), 6), random.gauss(120 + 25 * (risk == "high"), 9)
        lines.append(f"{age:.1f},{pressure:.0f},{risk},{('Bern', 'Lyon', 'Turin', 'Graz')[number % 4]}")
    return "\n".join(lines) + "\n"


def _plan(*faults: str, head: str = "deadline = 5.0") -> str:
    """A fault plan; a fault is written as `drop node=1 round=3`."""
    entries = []
    for fault in faults:
        kind, *keys = fault.split()
        pairs = "".join(f"{key.replace('=', ' = ', 1)}\n" for key in keys)
        entries.append(f'[[fault]]\nkind = "{kind}"\n{pairs}')
    return "\n".join([head, *entries])


# a busy machine must not add absences of its own
PATIENT = "deadline = 300.0"
FILES = {
    "sites.csv": _sites(),
    "patients.csv": _patients(),
    "edges.txt": "0 1\n1 2\n2 3\n3 4\n4 5\n5 6\n6 7\n7 0\n0 4\n",
    "matrix.txt": "".join(" ".join("1" if (i - j) % 8 in (1, 3) else "0" for j in range(8)) + "\n" for i in range(8)),
    "links.csv": "from,to,latency_ms,mbit\n" + "".join(f"{i},{(i + 1) % 5},{10 * i + 5},{1 + i}\n" for i in range(5)),
    "every-kind.toml": _plan(
        "crash node=1 round=2",
        "restart node=1 round=5",
        "hang node=2 round=3 rounds=2",
        "delay node=0 round=4 seconds=9",
        "drop node=3 round=5 to=[2]",
        "corrupt node=4 round=6",
        "split round=7 rounds=2 sides=[[0,1],[2,3,4]]",
        "rejoin node=4 round=9",
        "crash node=3 round=9",
    ),
    "return.toml": _plan("crash node=1 round=2", "restart node=1 round=4", "hang node=3 round=4"),
    "alone.toml": _plan("split round=2 rounds=2 sides=[[0],[1,2,3,4]]"),
    "late.toml": _plan("delay node=3 round=3 seconds=6.0", "delay node=1 round=2 rounds=2 seconds=1.0"),
    "lossy.toml": _plan("drop node=1 round=2", "drop node=2 round=3 to=[3]", "corrupt node=0 round=4 rounds=2"),
    "peers.toml": _plan(
        "drop node=1 round=2",
        "corrupt node=0 round=3",
        "split round=4 sides=[[0,1],[2,3,4]]",
        "rejoin node=2 round=5",
        head=PATIENT,
    ),
    "empty.toml": "deadline = 3.0\n",
}


# --- the groups -----------------------------------------------------------------------------------------------------


def _simulator() -> list[Job]:
    matched = RULES["decay_only_matched"]
    weights = ("samples", "uniform", "metropolis")
    return [
        Job("algorithms-ring", {name: spec(algorithm=own) for name, own in (ALGORITHMS | VARIANTS).items()}),
        Job("algorithms-full", {name: spec(algorithm=own, topology="full") for name, own in ALGORITHMS.items()}),
        Job(
            "algorithms-convolution",
            {name: spec(algorithm=own, model="small_cnn", rounds=3) for name, own in ALGORITHMS.items()},
        ),
        Job(
            "algorithms-batchnorm",
            {name: spec(algorithm=own, model=NORMED, rounds=3) for name, own in ALGORITHMS.items()},
        ),
        Job(
            "rates",
            {
                name: spec(rates={**own, "paired": "simulator/rates/feda2l"} if own is matched else own, rounds=6)
                for name, own in RULES.items()
            },
        ),
        Job(
            "rates-convolution",
            {name: spec(rates=own, model="small_cnn", rounds=4) for name, own in RULES.items() if own is not matched},
        ),
        Job("feda2l", {name: spec(rates=own, rounds=6) for name, own in ADAPTIVE.items()}),
        Job("feda2l-batchnorm", {name: spec(rates=own, rounds=6, model=NORMED) for name, own in ADAPTIVE.items()}),
        Job(
            "granularity",
            {
                f"{model}-{name}-{size}": spec(rates=RULES[name] | {"granularity": size}, model=model, rounds=4)
                for model in ("mlp", "small_cnn")
                for name in ("feda2l", "autolr")
                for size in ("module", "tensor", "block", "model")
            },
        ),
        Job(
            "rates-other",
            {
                "one_cycle-momentum": spec(rates={"name": "one_cycle", "horizon": 8, "rise": 0.5}),
                "one_cycle-plain": spec(rates={"name": "one_cycle", "cycle_momentum": False}),
                "fed_lamb-adam": spec(
                    rates={"name": "fed_lamb", "base": 0.003},
                    training={"optimizer": "adam", "momentum_state": "average"},
                ),
                "fed_lamb-trust": spec(rates={"name": "fed_lamb", "trust": 0.1}),
                "horizon": spec(rates={"name": "cosine", "horizon": 12}),
            },
        ),
        Job("graphs", {name: spec(topology=own, data=EIGHT) for name, own in GRAPHS.items()}),
        Job(
            "graphs-push-sum",
            {
                name: spec(topology=GRAPHS[name], data=EIGHT, algorithm="push_sum")
                for name in (*DIRECTED, "star", "full", "erdos_renyi")
            },
        ),
        Job(
            "graphs-metropolis",
            {
                f"{name}-{algorithm}": spec(topology=GRAPHS[name], data=EIGHT, algorithm=algorithm)
                for name in ("star", "torus", "edges")
                for algorithm in ("choco", "gradient_tracking", "fedawa")
            },
        ),
        Job(
            "weights",
            {
                f"{graph}-{own}": spec(topology={"name": graph, "weights": own}, data=EIGHT)
                for graph in ("full", "ring", "star", "directed_ring")
                for own in weights
                if (graph, own) != ("directed_ring", "metropolis")
            }
            | {
                "push-sum-samples": spec(
                    topology={"name": "random_out", "k": 2, "weights": "samples"}, algorithm="push_sum"
                )
            },
        ),
        Job(
            "buffers",
            {
                f"{policy}-{graph}": spec(algorithm={"name": "fedavg", "buffers": policy}, topology=graph, model=NORMED)
                for policy in ("average", "local", "recalibrate")
                for graph in ("ring", "full")
            }
            | {"fedawa-recalibrate": spec(algorithm={"name": "fedawa", "buffers": "recalibrate"}, model=NORMED)},
        ),
        Job(
            "optimizers",
            {
                f"{optimizer}-{state}-{model}": spec(
                    training={"optimizer": optimizer, "momentum_state": state, "weight_decay": 0.01},
                    rates=adapt(base=0.01 if optimizer == "sgd" else 0.002),
                    model=model,
                    rounds=4,
                )
                for optimizer in ("sgd", "adam", "adamw")
                for state in ("keep", "reset", "average")
                for model in ("mlp", "small_cnn")
            },
        ),
        Job(
            "training",
            {
                "no-momentum": spec(training={"momentum": 0.0}),
                "two-epochs": spec(training={"epochs": 2, "drop_last": False}),
                "batch-7": spec(training={"batch_size": 7, "drop_last": False}),
                "one-node": spec(data={"nodes": 1}),
                "two-nodes": spec(data={"nodes": 2}, topology="full"),
                "seed-7": spec(seed=7),
                "another-partition": spec(data={"nodes": 5, "partition_seed": 4, "train_fraction": 0.5}),
            },
        ),
        Job(
            "models",
            {
                "per-node-ring": spec(model={"name": "mlp", "init": "per_node"}),
                "per-node-full": spec(model={"name": "mlp", "init": "per_node"}, topology="full"),
                "per-node-convolution": spec(model={"name": "small_cnn", "init": "per_node"}, rounds=3),
                "frozen": spec(model=FROZEN),
                "start": spec(model={"name": FROZEN, "initial_weights": "start.safetensors"}),
                "start-fresh": spec(
                    model={"name": FROZEN, "initial_weights": "start.safetensors", "reinitialize": ["3"]}
                ),
                "freeze": spec(model={"name": "small_cnn", "freeze": ["conv1"]}, rounds=3),
                # a residual network takes seconds: two nodes, one step per round and one evaluation
                "resnet18": spec(
                    model="resnet18",
                    algorithm="dpsgd",
                    data={"nodes": 2, "alpha": 100.0},
                    rounds=3,
                    evaluation={"every": 3},
                ),
            },
        ),
        Job(
            "evaluation",
            {
                f"{on}-{graph}-{model}": spec(evaluation={"on": on, "every": 2}, topology=graph, model=model)
                for on in ("global", "local", "both")
                for graph in ("ring", "full")
                for model in ("mlp", "small_cnn")
            }
            | {
                "target": spec(evaluation={"target": 0.2, "smoothing": 2}),
                "seldom": spec(evaluation={"every": 10}),
                "both-recalibrated": spec(
                    evaluation={"on": "both"}, algorithm={"name": "fedavg", "buffers": "recalibrate"}, model=NORMED
                ),
            },
        ),
        Job(
            "engines",
            {
                "mlp-rows": spec(runtime={"workers": 0, "engine": "rows"}),
                "mlp-batched": spec(runtime={"workers": 0, "engine": "batched"}),
                # no promise across engines; but the same bytes each time
                "convolution-batched": spec(runtime={"workers": 0, "engine": "batched"}, model="small_cnn", rounds=3),
                "sam-batched": spec(
                    runtime={"workers": 0, "engine": "batched"}, model="small_cnn", algorithm="dfedsam", rounds=3
                ),
            },
        ),
        Job(
            "diverging",
            {
                "later": spec(
                    rates={"name": "one_cycle", "base": 1.0},
                    rounds=8,
                    model="small_cnn",
                    runtime={"workers": 0, "checkpoint_seconds": 0},
                ),
                "diverges": spec(
                    rates={"name": "constant", "base": 1e6}, runtime={"workers": 0, "checkpoint_seconds": 0}
                ),
                "overflows": spec(
                    data={"nodes": 6, "partition": "iid", "min_size": 1},
                    training={"batch_size": 150},
                    rates={"name": "constant", "base": 1e18},
                ),
            },
            failing=("later", "diverges", "overflows"),
        ),
    ]


def _data() -> list[Job]:
    own = {"topology": "full", "model": FORECASTER}
    return [
        Job(
            "partitions",
            {
                "iid": spec(data={"nodes": 5, "partition": "iid"}),
                "dirichlet": spec(data={"nodes": 5, "alpha": 0.5, "min_size": 60}),
                "pathological": spec(data={"nodes": 5, "partition": "pathological", "classes_per_node": 3}),
                "shards": spec(data={"nodes": 5, "partition": "shards", "shards_per_node": 3}),
            },
        ),
        Job(
            "table",
            {
                "natural": spec(data=TABLE, training={"batch_size": 8}),
                "dealt": spec(data=TABLE | {"partition": "iid", "nodes": 3, "feature_columns": ["age"]}),
                "both": spec(data=TABLE, evaluation={"on": "both"}, training={"batch_size": 8}, topology="full"),
            },
        ),
        Job(
            "series",
            {
                "natural": spec(data=SERIES, model=FORECASTER),
                "natural-full": spec(data=SERIES, **own),
                "natural-fedawa": spec(data=SERIES, model=FORECASTER, algorithm="fedawa"),
                "time": spec(data=SERIES | {"partition": "time", "nodes": 3}, **own),
                "cluster": spec(data=SERIES | {"partition": "cluster", "nodes": 3, "alpha": 1.0, "clusters": 4}, **own),
                "iid": spec(data=SERIES | {"partition": "iid", "nodes": 4}, **own),
                "mae": spec(
                    data=SERIES | {"stride": 2, "feature_columns": ["flow"]}, model={"name": FORECASTER, "loss": "mae"}
                ),
                "target": spec(data=SERIES, model=FORECASTER, evaluation={"target": 0.9}),
                "timer": spec(data=SERIES | {"stride": 8, "partition": "iid", "nodes": 2}, model="timer", rounds=2),
            },
        ),
    ]


def _packed() -> list[Job]:
    seeds = {
        f"{name}-{seed}": spec(rates=own, seed=seed)
        for seed in (1, 2)
        for name, own in {
            "constant": RULES["constant"],
            "feda2l": RULES["feda2l"],
            "reference": adapt(preset="reference", warmup_rounds=2),  # trains alike until round 2
            "decay-only": RULES["decay_only"] | {"warmup_rounds": 2},
            "one-cycle": RULES["one_cycle"],
            "shuffled": RULES["shuffled"],
        }.items()
    }
    mixed = {
        "random": spec(rates=RULES["random_multiplier"], rounds=3),
        "full": spec(topology="full"),
        "seven": spec(data={"nodes": 7, "alpha": 1.0}),
        "one-node": spec(data={"nodes": 1}),
        "one-peer": spec(topology="one_peer_exponential"),
        "batches": spec(training={"batch_size": 7, "drop_last": False, "epochs": 2}),
        "both": spec(evaluation={"on": "both", "every": 2}),
        "own-start": spec(model={"name": "mlp", "init": "per_node"}),
        "faulty": spec(faults="every-kind.toml", rounds=10),
        "half": spec(network=HALF),
        "wild": spec(rates={"name": "constant", "base": 1e6}),
    }
    statistics = {
        f"{name}-{policy}": spec(algorithm={"name": name, "buffers": policy}, model=NORMED, rounds=4)
        for policy in ("average", "local", "recalibrate")
        for name in ("fedavg", "fedprox")
    }
    convolutions = {
        name: spec(rates=RULES[name], model="small_cnn", rounds=3) for name in ("constant", "feda2l", "flayer")
    }
    workers = {
        name: own | {"runtime": {"workers": 2}}
        for name, own in (convolutions | {"fedntd": spec(algorithm="fedntd", model="small_cnn", rounds=3)}).items()
    }
    adam = {
        f"{state}-{name}": spec(
            rates=RULES[name] | {"base": 0.002}, training={"optimizer": "adam", "momentum_state": state}
        )
        for state in ("keep", "average")
        for name in ("constant", "feda2l")
    }
    tune = {"key": "rates.base", "values": [0.05, 0.005], "rounds": 3, "seed": 50}
    study: Spec = {
        "seeds": 2,
        "base": spec(rounds=6, rates={}),
        "axes": {"rates.name": ["constant", "cosine"]},
        "variants": {"ring": {}, "full": {"topology": {"name": "full"}}},
        "tune": tune,
        "target_from": {"cell": "constant", "share": 0.5, "seed": 60},
    }
    pair = {"name": "decay_only_matched", "paired": "feda2l", "warmup_rounds": 1, "window": 2}
    control: Spec = {
        "seeds": 2,
        "base": spec(rounds=5, rates={}),
        "variants": {"matched": {"rates": pair}, "feda2l": {"rates": ADAPT}},
        "extra": {"fedawa": {"rates": ADAPT, "algorithm": {"name": "fedawa"}}},
    }
    return [
        Job("seeds", seeds, packed=True),
        Job("algorithms", {name: spec(algorithm=own) for name, own in (ALGORITHMS | VARIANTS).items()}, packed=True),
        Job("mixed", mixed, packed=True),
        Job("statistics", statistics, packed=True),
        Job("convolutions", convolutions, packed=True),
        Job("workers", workers, packed=True),
        Job("adam", adam, packed=True),
        Job("series", {f"seed-{seed}": spec(data=SERIES, model=FORECASTER, seed=seed) for seed in (1, 2)}, packed=True),
        Job("alone", seeds | mixed | statistics | adam, failing=("wild",)),
        Job("study", {"stages": study, "control": control}, kind="study"),
    ]


STATES: dict[str, Spec] = {
    "feda2l": spec(),
    "reference": spec(rates=adapt(preset="reference")),
    "one_cycle": spec(rates={"name": "one_cycle"}),
    "random_multiplier": spec(rates=RULES["random_multiplier"]),
    "autolr": spec(rates="autolr"),
    "adamw": spec(training={"optimizer": "adamw", "momentum_state": "average"}, rates=adapt(base=0.002)),
    "momentum": spec(training={"momentum_state": "average"}),
    "one-peer": spec(topology="one_peer_exponential"),
    "both": spec(evaluation={"on": "both", "every": 3}),
    "statistics": spec(model=NORMED),
    "fedyogi": spec(algorithm="fedyogi"),
    "fedawa": spec(algorithm={"name": "fedawa", "optimizer_state": "kept"}),
    "dfedhpo": spec(algorithm=HPO),
    "qg_dsgdm": spec(algorithm="qg_dsgdm"),
    "gradient_tracking": spec(algorithm="gradient_tracking"),
    "choco": spec(algorithm={"name": "choco", "compressor": "random_k"}),
    "push_sum": spec(algorithm="push_sum", topology="directed_ring"),
    "faulty": spec(faults="every-kind.toml", rounds=10),
    "half": spec(network=HALF),
    "series": spec(data=SERIES, model=FORECASTER),
}


def _resume() -> list[Job]:
    often = {
        name: {**own, "rounds": max(own["rounds"], 7), "runtime": {"workers": 0, "checkpoint_seconds": 0}}
        for name, own in STATES.items()
    }
    horizon = {name: {**own, "rates": {**own["rates"], "horizon": 7}} for name, own in often.items()}
    # a fault plan may not begin after the last round
    horizon = {name: own for name, own in horizon.items() if name != "faulty"}
    long = spec(model="small_cnn", rounds=30, runtime={"workers": 0, "checkpoint_seconds": 0})
    return [
        Job("whole", often),
        Job("stopped", often, kind="stop", at=(3, 6)),
        Job("extended", horizon, kind="extend", at=(2, 3)),
        Job(
            "pack-stopped",
            {name: often[name] for name in ("feda2l", "choco", "half")},
            kind="stop",
            packed=True,
            at=(4,),
        ),
        Job("killed", {"small_cnn": long, "workers": long | {"runtime": {"workers": 2}}}, kind="kill", at=(6,)),
        Job("command", {"small_cnn": long, "digits": {"rounds": 3, "data": {"nodes": 4}}}, kind="command"),
    ]


def _workers() -> list[Job]:
    models = {"mlp": "mlp", "small_cnn": "small_cnn", "normed": NORMED}
    return [
        Job(
            f"workers-{workers}",
            {
                name: spec(model=model, rounds=3, evaluation={"on": "both"}) | {"runtime": {"workers": workers}}
                for name, model in models.items()
            }
            | {"fedntd": spec(algorithm="fedntd", model="small_cnn", rounds=3) | {"runtime": {"workers": workers}}},
        )
        for workers in (0, 1, 2)
    ]


def _bf16() -> list[Job]:
    """A group by itself: not every processor has instructions for bf16."""
    half = {"workers": 0, "precision": "bf16"}
    models = {"mlp": "mlp", "small_cnn": "small_cnn", "normed": NORMED}
    return [
        Job("alone", {name: spec(model=model, rounds=3, runtime=half) for name, model in models.items()}),
        Job(
            "packed",
            {f"seed-{n}": spec(model="small_cnn", rounds=3, runtime=half, seed=n) for n in (1, 2)},
            packed=True,
        ),
    ]


def _faults() -> list[Job]:
    rules = {name: own for name, own in RULES.items() if name != "decay_only_matched"}
    plans = ("return", "alone", "late", "lossy", "empty")
    return [
        Job(
            "algorithms",
            {
                name: spec(algorithm=own, faults="every-kind.toml", rounds=10)
                for name, own in (ALGORITHMS | VARIANTS).items()
            },
        ),
        Job("rates", {name: spec(rates=own, faults="every-kind.toml", rounds=10) for name, own in rules.items()}),
        Job(
            "plans",
            {
                f"{plan}-{graph}": spec(faults=f"{plan}.toml", topology=graph)
                for plan in plans
                for graph in ("ring", "full", "directed_ring")
            },
        ),
        Job(
            "other",
            {
                "push-sum-directed": spec(algorithm="push_sum", topology="directed_ring", faults="return.toml"),
                "metropolis": spec(topology={"name": "ring", "weights": "metropolis"}, faults="lossy.toml"),
                "momentum": spec(training={"momentum_state": "average"}, faults="return.toml"),
                "both": spec(evaluation={"on": "both"}, faults="return.toml"),
                "recalibrated": spec(
                    algorithm={"name": "fedavg", "buffers": "recalibrate"}, model=NORMED, faults="return.toml"
                ),
                "averaged": spec(model=NORMED, faults="every-kind.toml", rounds=10),
                "convolution": spec(model="small_cnn", faults="return.toml"),
                "one-peer": spec(topology="one_peer_exponential", faults="return.toml"),
            },
        ),
    ]


def _network() -> list[Job]:
    rules = {name: own for name, own in RULES.items() if name != "decay_only_matched"}
    profiles = {
        f"{links}-{speed}": {"compute_ms": 1.0, "speed": speed, "links": links}
        for links, speed in (("lan", "uniform"), ("wan", "computers"), ("home", "phones"), ("mobile", 2.0))
    }
    uplinks = {"compute_ms": 1.0, "speed": [1, 2, 3, 4, 5], "latency_ms": 20.0, "uplink_mbit": [1, 2, 3, 4, 5]}
    return [
        Job("time", {name: spec(algorithm=own, network=SLOW) for name, own in ALGORITHMS.items()}),
        Job(
            "profiles",
            {name: spec(network=own, topology="full") for name, own in profiles.items()}
            | {
                "uplinks": spec(network=uplinks),
                "bandwidth": spec(network={"latency_ms": 50.0, "bandwidth_mbit": 10.0, "seed": 3}),
                "file": spec(network={"file": "links.csv", "compute_ms": 1.0}),
                "one-peer": spec(network=SLOW, topology="one_peer_exponential"),
                "target": spec(network=SLOW, evaluation={"target": 0.2, "smoothing": 1}),
            },
        ),
        Job("half", {name: spec(algorithm=own, network=HALF) for name, own in (ALGORITHMS | VARIANTS).items()}),
        Job("half-rates", {name: spec(rates=own, network=HALF) for name, own in rules.items()}),
        Job(
            "participation",
            {
                "untimed": spec(network={"participation": 0.5}),
                "at-least-4": spec(network={"participation": 0.1, "min_nodes": 4}, topology="full"),
                "directed": spec(network={"participation": 0.6}, topology="directed_ring", algorithm="push_sum"),
                "both": spec(network=HALF, evaluation={"on": "both", "every": 2}),
                "averaged": spec(network=HALF, model=NORMED),
                "recalibrated": spec(
                    network=HALF, model=NORMED, algorithm={"name": "fedavg", "buffers": "recalibrate"}
                ),
                "series": spec(network=HALF, data=SERIES, model=FORECASTER),
            },
        ),
    ]


def _ranks() -> list[Job]:
    """Left out: fault plans and partial participation, which ranks refuse."""
    names = ("fedavg", "fedyogi", "fedntd", "fedawa", "dfedhpo", "gradient_tracking", "choco", "push_sum", "fedlws")
    algorithms = {
        f"{name}-{graph}": spec(algorithm=ALGORITHMS[name], topology=graph, rounds=3, evaluation={"on": "both"})
        for name in names
        for graph in ("ring", "full")
    }
    other = {
        "gossip": spec(algorithm=VARIANTS["dfedsam-gossip"], data={"nodes": 7, "alpha": 1.0}),
        "choco-random": spec(algorithm=VARIANTS["choco-random"]),
        "push-sum-directed": spec(algorithm="push_sum", topology="directed_ring"),
        "one-peer": spec(topology="one_peer_exponential"),
        "own-start": spec(model={"name": "mlp", "init": "per_node"}, topology="full"),
        "adam": spec(training={"optimizer": "adam", "momentum_state": "average"}, rates=adapt(base=0.002)),
        "seldom": spec(evaluation={"every": 2}),
        "shuffled": spec(rates=RULES["shuffled"]),
        "flayer": spec(rates="flayer"),
        "time": spec(network=SLOW),
        "series-ring": spec(data=SERIES, model=FORECASTER),
        "series-full": spec(data=SERIES, model=FORECASTER, topology="full"),
        "convolution": spec(model="small_cnn", rounds=3),
    }
    other |= {
        f"statistics-{policy}": spec(algorithm={"name": "fedavg", "buffers": policy}, model=NORMED, rounds=3)
        for policy in ("average", "local", "recalibrate")
    }
    packed = {"pack-ring": spec(), "pack-full": spec(topology="full", algorithm="fedyogi", data={"nodes": 4}, rounds=3)}
    longer = {
        f"longer-{name}": spec(algorithm=name, rates=adapt(horizon=5)) for name in ("fedavg", "choco", "push_sum")
    }
    return [
        Job("one-process", algorithms | other | packed | longer),
        Job("algorithms", algorithms, ranks=2),
        Job("other", other, ranks=2),
        Job("packed", packed, packed=True, ranks=2),
        Job("extended", longer, kind="extend", at=(2,), ranks=2),
        Job("command", {"fedavg": spec(rounds=3)}, kind="command", ranks=2),
    ]


def _swarm() -> list[Job]:
    """Left out: crash, restart, hang and delay in a plan, and interrupted swarms. They depend on real time."""
    three, five = {"nodes": 3, "alpha": 0.5}, {"nodes": 5, "alpha": 0.5}
    plain = {
        "fedavg": spec(data=five, rounds=4),
        "fedawa": spec(data=five, rounds=3, algorithm="fedawa", topology="full"),
        "dfedhpo": spec(data=three, rounds=3, algorithm=HPO | {"consensus": False}),
        "choco": spec(data=five, rounds=3, algorithm={"name": "choco", "compressor": "random_k"}),
        "dfedavgm": spec(data=three, rounds=3, algorithm="dfedavgm"),
        "gossip": spec(data=three, rounds=3, algorithm=VARIANTS["dfedsam-gossip"]),
        "push_sum": spec(data=five, rounds=3, algorithm="push_sum", topology="directed_ring"),
        "statistics": spec(
            data=three,
            rounds=3,
            model=NORMED,
            training={"momentum_state": "average"},
            evaluation={"on": "both", "every": 2},
        ),
    }
    planned = {"planned": spec(data=five, rounds=6, faults="peers.toml")}
    longer = {"longer": spec(data=three, rounds=4, rates=adapt(horizon=4))}
    return [
        # not `planned`: a swarm's checkpoint does not hold the last messages, which the simulator keeps under a plan
        Job("simulated", plain | longer),
        Job("peers", plain, kind="swarm"),
        Job("planned", planned, kind="swarm", options=("--faults", "peers.toml")),
        Job("extended", longer, kind="swarm", at=(2,)),
        Job("bf16", {"fedavg": spec(data=three, rounds=3)}, kind="swarm", options=("--wire", "bf16", "--insecure")),
    ]


GROUPS: dict[str, list[Job]] = {
    "simulator": _simulator(),
    "data": _data(),
    "packed": _packed(),
    "resume": _resume(),
    "workers": _workers(),
    "bf16": _bf16(),
    "faults": _faults(),
    "network": _network(),
    "ranks": _ranks(),
    "swarm": _swarm(),
}
