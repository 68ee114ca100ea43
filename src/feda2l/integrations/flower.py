"""FedA2L in a Flower client: the server averages, and every client sets the rates of its layers.

    from feda2l.integrations.flower import client_round

    @app.train()
    def train(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.01)
        with client_round(optimizer, context.state, message.content["config"]["server-round"], warmup_rounds=5):
            examples = train_locally(model, optimizer)
        ...  # reply with the model's parameters

When the three states exist: the received parameters are the aggregated state of the last round and the base state of
this one. The parameters that you send back are the trained state. So `client_round` sets the rates when it is entered.
Between rounds FedA2L's state, with a copy of the trained parameters, is stored in `context.state`, because Flower
builds a new client for every message.

What you must do: load the received parameters before `with`, train inside it, and reply after it. In a `NumPyClient`
keep `context.state` from `client_fn(context)`, and let the strategy's `on_fit_config_fn` send the number of the round.

A client that was not sampled in the last round does not know the average of that round. It stores no signal for the
rounds that it missed, and its rates stay. The optimizer and its momentum are also new in every round unless you store
its state.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from feda2l.errors import FedA2LError
from feda2l.scheduler import FedA2L

try:
    from flwr.app import ConfigRecord, RecordDict
except ImportError as error:
    raise FedA2LError("the Flower client needs flwr: pip install 'feda2l[flower]'", see="missing-extra") from error

KEY = "feda2l"


@contextmanager
def client_round(optimizer: Optimizer, state: RecordDict, server_round: int, **knobs: Any) -> Iterator[FedA2L]:
    """Run a client's part of round `server_round` (counted from 1); `knobs` are the arguments of `feda2l.FedA2L`.

    If training fails, `state` does not change.
    """
    rates = FedA2L(optimizer, **knobs)
    if KEY in state:
        rates.load_state_dict(torch.load(io.BytesIO(state[KEY]["state"]), weights_only=True))
    if server_round < rates.round or (server_round == rates.round and rates.next_call == "step"):
        raise FedA2LError(
            f"round {server_round} of the server, but this client has trained in round {rates.round} already: "
            "a new run needs a new context.state"
        )
    if server_round == rates.round + 1 and rates.next_call == "step":
        rates.step()
    while rates.round < server_round:
        rates.skip_round()
    rates.begin_round()
    yield rates
    rates.end_training()
    file = io.BytesIO()
    torch.save(rates.state_dict(), file)
    state[KEY] = ConfigRecord({"state": file.getvalue()})
