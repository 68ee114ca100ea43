"""BatchNorm statistics: averaged like parameters, kept local, or re-estimated after mixing."""

import copy

import pytest
import torch
from torch import Tensor, nn

import feda2l
from feda2l.engines.engine import EVALUATION_BATCH
from feda2l.round.population import averaged_buffers, point
from first_models import initial_model

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.last = nn.BatchNorm1d(144)
        self.fc = nn.Linear(144, 10)
        self.register_buffer("running_count", torch.zeros(2))

    def forward(self, x):
        x = self.drop(self.norm(self.conv(x)).relu().flatten(1))
        return self.fc(self.last(x))
"""
STATISTICS = ["norm.running_mean", "norm.running_var", "last.running_mean", "last.running_var"]
COUNTS = ["norm.num_batches_tracked", "last.num_batches_tracked"]
PARAMETERS = 40 + 8 + 288 + 1450
VALUES = 2 * 4 + 2 * 144


def spec(model: str, policy: str, **more) -> dict:
    return {
        "rounds": 1,
        "data": {"nodes": 4, "alpha": 1.0},
        "model": {"name": model},
        "topology": {"name": "ring"},
        "algorithm": {"buffers": policy},
        "rates": {"name": "constant", "base": 0.05},
    } | more


def ring_weights(sizes: list[int]) -> Tensor:
    W = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(4):
        near = [(i - 1) % 4, i, (i + 1) % 4]
        for j in near:
            W[i, j] = sizes[j] / sum(sizes[k] for k in near)
    return W


def trained_buffers(start, settings: dict) -> dict[str, Tensor]:
    """Return the statistics after training and before mixing."""
    simulator = start(settings)
    simulator.engine.train(simulator.runs[0].jobs())
    return {name: values.clone() for name, values in simulator.engine.population.buffers.items()}


def test_only_running_means_and_variances_are_averaged(module):
    model = initial_model(spec(f"{module(NET)}:Net", "average"))
    assert averaged_buffers(model) == STATISTICS


def test_average_mixes_statistics_with_the_weights_of_the_round(start, module):
    settings = spec(f"{module(NET)}:Net", "average")
    before = trained_buffers(start, settings)
    simulator = start(settings)
    ((completed,),) = simulator.rounds()
    sizes = [len(shard) for shard in simulator.runs[0].plan.member.shards]
    assert len(set(sizes)) > 1
    W = ring_weights(sizes)
    for name in STATISTICS:
        assert not torch.allclose(before[name][0], before[name][1], atol=1e-3)
        mixed = (W @ before[name].double()).float()
        torch.testing.assert_close(simulator.engine.population.buffers[name], mixed, rtol=1e-5, atol=1e-6)
    for name in COUNTS:  # batch counts are not averaged
        assert simulator.engine.population.buffers[name].tolist() == [size // 10 for size in sizes]
    assert completed.record["nodes"]["bytes_sent"] == [2 * 4 * (PARAMETERS + VALUES)] * 4


def test_local_statistics_are_not_exchanged(start, module):
    settings = spec(f"{module(NET)}:Net", "local")
    before = trained_buffers(start, settings)
    simulator = start(settings)
    ((completed,),) = simulator.rounds()
    for name in (*STATISTICS, *COUNTS):
        assert torch.equal(simulator.engine.population.buffers[name], before[name])
    assert completed.record["nodes"]["bytes_sent"] == [2 * 4 * PARAMETERS] * 4


def by_hand(model: nn.Module, x: Tensor, batches: list[Tensor]) -> dict[str, Tensor]:
    """Return, per norm, the mean over batches of batch mean and unbiased variance, without dropout."""
    seen: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    for batch in batches:
        h = model.conv(x[batch])
        for norm, dims in (("norm", (0, 2, 3)), ("last", (0,))):
            seen[f"{norm}.running_mean"].append(h.mean(dims))
            seen[f"{norm}.running_var"].append(h.var(dims, correction=1))
            layer, column = getattr(model, norm), (1, -1, 1, 1) if h.dim() == 4 else (1, -1)
            centred = h - h.mean(dims).view(column)
            h = centred / (h.var(dims, correction=0).view(column) + layer.eps).sqrt()
            h = h * layer.weight.view(column) + layer.bias.view(column)
            h = h.relu().flatten(1)
    return {name: torch.stack(values).mean(dim=0) for name, values in seen.items()}


@pytest.mark.parametrize("nodes", [4, 1])
def test_recalibrate_is_a_cumulative_pass_over_the_samples_of_the_node(start, module, nodes):
    name = f"{module(NET)}:Net"
    settings = spec(name, "recalibrate", data={"nodes": nodes, "alpha": 1.0}, topology={"name": "full"})
    simulator = start(settings)
    ((completed,),) = simulator.rounds()
    population, member = simulator.engine.population, simulator.runs[0].plan.member
    model = copy.deepcopy(initial_model(settings))
    x = member.training.samples.normalise(member.training.samples.x)
    for node in range(nodes):
        point(model, [view.clone() for view in population.layout.views(population.base[node])], {})
        shard = member.shards[node]
        batches = list(shard.tensor_split(-(-len(shard) // EVALUATION_BATCH)))
        assert len(batches) == (3 if nodes == 1 else 1)  # 1,078 samples are three batches
        with torch.no_grad():
            expected = by_hand(model, x, batches)
        for key, values in expected.items():
            torch.testing.assert_close(population.buffers[key][node], values, rtol=1e-4, atol=1e-5)
        assert [int(population.buffers[key][node]) for key in COUNTS] == [len(batches)] * 2
    assert completed.record["nodes"]["bytes_sent"] == [(nodes - 1) * 4 * PARAMETERS] * nodes
    norms = [m for m in simulator.engine.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert [norm.momentum for norm in norms] == [0.1, 0.1]  # training continues as before


def test_recalibrate_avoids_a_batch_of_one_sample(start, module):
    """With 501 samples, batches of 500 + 1 would raise an error in BatchNorm."""
    fraction = (EVALUATION_BATCH + 1) / 1438
    data = {"nodes": 1, "partition": "iid", "train_fraction": fraction}
    simulator = start(spec(f"{module(NET)}:Net", "recalibrate", data=data, topology={"name": "full"}))
    assert len(simulator.runs[0].plan.member.shards[0]) == EVALUATION_BATCH + 1
    list(simulator.rounds())
    assert simulator.engine.population.buffers["norm.num_batches_tracked"].tolist() == [2]


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_statistics_and_dropout_give_the_same_bytes_for_any_number_of_workers(module, tmp_path, policy):
    name = f"{module(NET)}:Net"
    folders = []
    for workers in (0, 1, 2):
        settings = spec(name, policy, rounds=2, runtime={"workers": workers})
        folders.append(feda2l.run(settings, out=tmp_path / str(workers), progress=False).path)
    for file in ("rounds.jsonl", "checkpoint.safetensors"):
        assert len({(folder / file).read_bytes() for folder in folders}) == 1


def test_averaged_nodes_of_a_full_graph_share_one_model(start, module, monkeypatch):
    simulator = start(spec(f"{module(NET)}:Net", "average", topology={"name": "full"}))
    asked, score = [], simulator.engine.score
    monkeypatch.setattr(simulator.engine, "score", lambda jobs: [asked.extend(jobs), score(jobs)][1])
    ((completed,),) = simulator.rounds()
    counts = simulator.engine.population.buffers[COUNTS[0]].tolist()
    assert len(set(counts)) > 1
    assert simulator.runs[0].compared.same == [0, 0, 0, 0]
    assert len(asked) == 1  # one model is scored for all nodes and for the mean
    assert completed.record["nodes"]["accuracy"] == [completed.record["mean_model_accuracy"]] * 4


def test_nodes_are_scored_with_their_statistics_and_the_mean_model_with_the_mean(start, module):
    settings = spec(f"{module(NET)}:Net", "local", topology={"name": "full"})
    simulator = start(settings)
    ((completed,),) = simulator.rounds()
    population, member = simulator.engine.population, simulator.runs[0].plan.member
    assert torch.equal(population.base[0], population.base[3])  # a full graph: the parameters are equal
    model = initial_model(settings).eval()
    x, y, normalise = member.test.x, member.test.y, member.test.normalise
    mean = {name: values.double().mean(dim=0).to(values.dtype) for name, values in population.buffers.items()}
    accuracies = []
    for own in [*({n: v[node] for n, v in population.buffers.items()} for node in range(4)), mean]:
        point(model, population.layout.views(population.base[0]), own)
        with torch.no_grad():
            accuracies.append(float((model(normalise(x)).argmax(dim=1) == y).double().mean()))
    assert completed.record["nodes"]["accuracy"] == pytest.approx(accuracies[:4], abs=1e-12)
    assert completed.record["mean_model_accuracy"] == pytest.approx(accuracies[4], abs=1e-12)
    assert len(set(accuracies)) > 1
    assert completed.record["disagreement"] == 0


def test_the_batched_engine_rejects_models_with_buffers(start, module):
    with pytest.raises(feda2l.errors.FedA2LError, match=r'runtime.engine = "rows"'):
        start(spec(f"{module(NET)}:Net", "average", runtime={"engine": "batched"}))
