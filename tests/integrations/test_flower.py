"""FedA2L in real Flower clients under Flower's FedAvg. Function calls replace the network."""

import copy
import io
import random
from itertools import pairwise

import pytest
import torch
from replay import SETTINGS, replay, snapshot
from torch import nn

import feda2l
from feda2l.errors import FedA2LError

pytest.importorskip("flwr", reason="flwr is not installed: make test-integrations")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from feda2l.integrations.flower import KEY, client_round


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train_locally(model: nn.Module, optimizer: torch.optim.Optimizer, node: int, round: int) -> None:
    generator = torch.Generator().manual_seed(100 * node + round)
    for _ in range(3):
        x = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + node % 2).backward()
        optimizer.step()


app = ClientApp()
SEEN: dict[int, list] = {}  # per node: round, rates, received parameters, sent parameters


@app.train()
def train(message: Message, context: Context) -> Message:
    model, round = small(), message.content["config"]["server-round"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    received = snapshot(model)
    optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
    with client_round(optimizer, context.state, round, **SETTINGS) as rates:
        train_locally(model, optimizer, context.node_id, round)
    SEEN.setdefault(context.node_id, []).append((round, rates.get_last_lr(), received, snapshot(model)))
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 8, "loss": 0.0})}
    return Message(RecordDict(reply), reply_to=message)


class LocalGrid(Grid):
    """A grid whose nodes live in this process. Each has a separate context, as in a SuperNode."""

    run = None

    def __init__(self, nodes: int) -> None:
        self.contexts = {i: Context(1, i, {}, RecordDict(), {}) for i in range(1, nodes + 1)}

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        messages = [copy.deepcopy(message) for message in messages]
        return [app(message, self.contexts[message.metadata.dst_node_id]) for message in messages]

    def set_run(self, run): ...
    def create_message(self, *args, **kwargs): ...
    def push_messages(self, messages): ...
    def pull_messages(self, message_ids): ...


def federate(nodes: int, rounds: int, fraction: float = 1.0) -> None:
    SEEN.clear()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in Flower's processes
    strategy = FedAvg(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=nodes)
    strategy.start(grid=LocalGrid(nodes), initial_arrays=ArrayRecord(small().state_dict()), num_rounds=rounds)


def test_rates_follow_from_received_sent_and_next_received_parameters():
    federate(nodes=3, rounds=6)
    for rounds in SEEN.values():
        states = [(now[2], now[3], after[2]) for now, after in pairwise(rounds)]
        assert [rates for _, rates, _, _ in rounds] == replay(small(), states, lr=0.05)
    assert len({tuple(rounds[-1][1]) for rounds in SEEN.values()}) == 3  # the rates differ between nodes


def test_rounds_without_a_client_keep_its_rates_and_are_counted():
    random.seed(1)  # Flower's sample
    federate(nodes=3, rounds=20, fraction=0.34)  # one of three each round
    followed = 0
    for rounds in SEEN.values():
        model = small()
        rates = feda2l.FedA2L(torch.optim.SGD(feda2l.layer_groups(model), lr=0.05), **SETTINGS)
        for (number, actual, base, trained), after in zip(rounds, [*rounds[1:], (None, [], {}, {})], strict=True):
            while rates.round < number:
                rates.skip_round()
            assert actual == rates.get_last_lr()
            if after[0] == number + 1:
                followed += 1
                states = base, trained, after[2]
                for state, call in zip(states, (rates.begin_round, rates.end_training, rates.step), strict=True):
                    model.load_state_dict(state)
                    call()
    assert 3 <= followed <= 16


class Client(NumPyClient):
    """The older interface, which gets the state from `client_fn(context)`."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def fit(self, parameters, config):
        model = small()
        for parameter, received in zip(model.parameters(), parameters, strict=True):
            parameter.data = torch.tensor(received)
        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
        with client_round(optimizer, self.state, config["round"], **SETTINGS) as rates:
            train_locally(model, optimizer, 1, config["round"])
        return [p.detach().numpy() for p in model.parameters()], 8, {"rate": rates.get_last_lr()[0]}


def test_the_older_interface():
    state, parameters = RecordDict(), [p.detach().numpy() for p in small().parameters()]
    rates = []
    for round in range(1, 6):
        parameters, _, metrics = Client(state).fit(parameters, {"round": round})
        parameters = [p * 0.99 for p in parameters]  # a server's average
        rates.append(metrics["rate"])
    assert rates[:2] == [0.05, 0.05]
    assert len(set(rates)) == 4


def test_failed_training_keeps_the_state():
    state = RecordDict()

    def play(round: int, fail: bool = False):
        model = small()
        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.05)
        with client_round(optimizer, state, round, **SETTINGS) as rates:
            train_locally(model, optimizer, 1, round)
            if fail:
                raise RuntimeError("out of memory")
        return rates

    play(1)
    before = state[KEY]["state"]
    with pytest.raises(RuntimeError, match="out of memory"):
        play(2, fail=True)
    assert state[KEY]["state"] == before
    assert torch.load(io.BytesIO(before), weights_only=True)["round"] == 1
    assert play(3).last == {}  # the average of round 1 was lost with round 2
    with pytest.raises(FedA2LError, match=r"round 1 of the server, .* round 3 already: a new run needs a new context"):
        play(1)
