"""FedA2L, the drop-in: layer-wise rates for anyone's PyTorch loop, stepped once a communication round."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from feda2l.equations import Signals, aggregation_stability, weight_divergence
from feda2l.errors import FedA2LError
from feda2l.layers import Layer
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import DEEP, FedA2LRates, FedA2LRule

CALLS = ("begin_round", "end_training", "step")  # of a round, in their order


class LayerRate(NamedTuple):
    """What the last step made of one layer."""

    rate: float  # of the coming round
    multiplier: float  # m, the share of the decayed base rate; 1 during warm-up
    divergence: float  # sigma of the round
    stability: float  # zeta of the round


class FedA2L:
    """Sets each layer's rate from how far training moved it and how little averaging corrected it (Algorithm 1).

        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.01, momentum=0.9)
        rates = feda2l.FedA2L(optimizer)
        for round in range(rounds):
            rates.begin_round()                # the base state B
            train(model, optimizer)
            rates.end_training()               # the trained state T
            average_with_neighbours(model)
            rates.step()                       # the aggregated state A; sets the rates of the next round

    sigma = ||T - B|| / (||B|| + eps) and zeta = mean(|A - T| < tau) of each layer become z-scores over their last
    rounds, omega and delta; then rate = eta0 (1 + tanh(log lambda)) (1 + xi r)^(-1/2) with
    lambda = beta exp(omega) + (1 - beta) exp(delta). eta0 is each group's own `lr` at construction. It sends nothing,
    keeps one copy of the measured parameters while a round is open and never touches momentum, weight decay or the
    parameters. Groups without `tensors` (not from `layer_groups`) are left alone, and so is the rate of a layer that
    is frozen (`requires_grad_(False)`) later. A call that fails changes nothing: mend the cause and call it again.

    Buffers are yours: BatchNorm's running mean and variance are no parameters and FedA2L does not read or write them.
    Either average them with the parameters (mostly the better choice: the statistics then belong to the averaged
    weights) or keep them local on purpose; do not reset them by accident.

    Caveats: at the end of warm-up the rates drop at once to about eta0 (1 + xi R_warm)^(-1/2). Signals that are pure
    noise still raise the mean rate by some 14 %, so compare with a tuned constant rate and with the decay alone.
    A layer that starts at zero has a huge sigma in its first round: let warm-up be longer than the window.
    Do not step another scheduler on the same groups. The knobs below belong to the constructor, not to `state_dict`.

    Arguments, and how to choose them:
        optimizer: any torch optimizer whose groups come from `layer_groups`.
        preset: `paper` unless you want to re-run the released code, `reference`, with its lag, clip and warm-up.
        warmup_rounds: R_warm, rounds at the base rate: until the loss has left its first steep fall, and at least
            `window`. Default 10, and 40 for more than 10 layers.
        window: rho, rounds behind a z-score. Shorter follows faster and is noisier. Default 5; 10 for more than 10
            layers.
        decay: xi. Choose it for the last round: the rate ends near eta0 (xi R)^(-1/2); 0 switches the decay off.
            Default .3; .1 for more than 10 layers.
        balance: beta, the say of sigma against zeta; 1 is sigma alone, 0 zeta alone. Results depend little on it.
        threshold: tau, below which averaging left a parameter alone. Choose it so that zeta (see `last`) is neither
            always 0 nor always 1: near the usual correction of a parameter.
        consensus_sign: 1 raises the rate where neighbours agree more than usual (the paper's equation); -1 where
            they agree less (its prose).
        eps_norm, eps_std: guards of the two divisions. Raise `eps_norm` if layers start at zero, `eps_std` to mute
            signals that hardly vary.
        transform: `softsign` squashes both signals first, `none` does not; matters for a sigma near 1 or above.
        newest: may the window end with the `current` round or, a lag of one round, with the `previous`?
        decay_index: r of the decay counts every `round` or only the `adaptations`, which then start at full eta0.
        warmup_factor, bn_warmup_factor: share of eta0 during warm-up, and a further share for layers with "bn" in
            their name. Below 1 where the first rounds at eta0 are unstable.
        lr_clip: (low, high) of every adapted rate; a floor keeps long runs learning. None is the preset's.
        measured: `all` tensors of a layer, or its `weight` alone: biases are small and, from zero, move a lot.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        preset: Literal["paper", "reference"] = "paper",
        warmup_rounds: int | None = None,
        window: int | None = None,
        decay: float | None = None,
        balance: float = 0.6,
        threshold: float = 1e-3,
        consensus_sign: Literal[1, -1] = 1,
        eps_norm: float = 1e-8,
        eps_std: float = 1e-6,
        transform: Literal["none", "softsign"] | None = None,
        newest: Literal["current", "previous"] | None = None,
        decay_index: Literal["round", "adaptations"] | None = None,
        warmup_factor: float | None = None,
        bn_warmup_factor: float | None = None,
        lr_clip: tuple[float, float] | None = None,
        measured: Literal["all", "weight"] | None = None,
    ) -> None:
        keys = dict(locals())  # every argument but these two is a key of the rule: the signature is for editors
        del keys["self"], keys["optimizer"]
        self.optimizer = optimizer
        self._rule = FedA2LRule(**keys)
        self._measure = self._rule.measure
        groups = _layer_groups(optimizer)
        self._shapes = _shapes(groups)
        self._measured = [
            Layer(group["name"], tuple(group["tensors"])).measured(self._measure.tensors) for group in groups
        ]
        self._rates = self._start(tuple(float(group["lr"]) for group in groups))
        self.round = 1  # the round that is open or comes next
        self._done = 0  # calls of it that are done
        self._kept: list[Tensor] = []  # the open round's last state: base, then trained
        self._divergence = torch.zeros(len(groups), dtype=torch.float64)  # sigma of the open round
        self._signals: Signals | None = None  # of the last step
        if preset == "reference" and len(groups) > DEEP:
            warnings.warn(
                f"preset 'reference' on {len(groups)} layers: the released code gave models of more than {DEEP} layers "
                "no momentum; FedA2L leaves your optimizer's momentum as it is",
                UserWarning,
                stacklevel=2,
            )
        self._write(groups)

    @torch.no_grad()
    def begin_round(self) -> None:
        """Remember the base state B. Call it before local training."""
        groups = self._expect("begin_round")
        self._read(groups, "base", lambda _, state: state.new_zeros(()))
        self._keep(groups)
        self._done = 1

    @torch.no_grad()
    def end_training(self) -> None:
        """Take sigma = ||T - B|| / (||B|| + eps) and remember the trained state T. Call it before averaging."""
        groups = self._expect("end_training")

        def divergence(base: Tensor, trained: Tensor) -> Tensor:
            return weight_divergence(base, trained, self._measure.eps, eps_in_norm=self._measure.eps_in_norm)

        self._divergence = self._read(groups, "trained", divergence)
        self._keep(groups)
        self._done = 2

    @torch.no_grad()
    def step(self) -> None:
        """Take zeta = mean(|A - T| < tau) and set the rates of the next round. Call it after averaging."""
        groups = self._expect("step")

        def stability(trained: Tensor, aggregated: Tensor) -> Tensor:
            return aggregation_stability(trained, aggregated, self._measure.threshold)

        signals = Signals(self._divergence, self._read(groups, "aggregated", stability))
        frozen = torch.tensor([not any(p.requires_grad for p in group["params"]) for group in groups])
        if self._signals is not None:  # a frozen layer does not move: its silence is no signal
            pairs = zip(self._signals[:2], signals[:2], strict=True)
            signals = Signals(*(torch.where(frozen, *pair) for pair in pairs))
        rates, multiplier = self._rates.rates, self._rates.multiplier
        self._rates.step(self.round, signals)
        self._rates.rates = torch.where(frozen, rates, self._rates.rates)
        self._rates.multiplier = torch.where(frozen, multiplier, self._rates.multiplier)
        self._signals = signals
        self._write(groups)
        self._close()

    def skip_round(self) -> None:
        """Give up the open round, or the next one if none is open: no signal is stored and the rates stay.

        For a round that was not completed, or that this node spent offline. The round counter goes on.
        """
        self._close()

    @property
    def next_call(self) -> str:
        """Which of `begin_round`, `end_training` and `step` comes next; the first of them where no round is open."""
        return CALLS[self._done]

    @torch.no_grad()
    def mixed(self) -> bool:
        """Did averaging change a measured parameter since `end_training`? If not, nobody was heard: `skip_round()`."""
        groups = self._expect("step")
        states = zip(self._kept, self._tensors(groups), strict=True)
        return any(not torch.equal(kept.to(tensors[0].device), _flat(tensors)) for kept, tensors in states)

    @property
    def last(self) -> dict[str, LayerRate]:
        """Rate, multiplier, sigma and zeta of each layer at the last step, by name; empty before the first."""
        if self._signals is None:
            return {}
        columns = (self._rates.rates[0], self._rates.multiplier[0], *self._signals[:2])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {name: LayerRate(*row) for name, row in zip(self._shapes, rows, strict=True)}

    def get_last_lr(self) -> list[float]:
        """The rate of each of the optimizer's groups, as in torch's schedulers."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, the open round included, as plain tensors and numbers."""
        return {
            "round": self.round,
            "done": self._done,
            "shapes": {layer: dict(shapes) for layer, shapes in self._shapes.items()},
            "base": self._rates.base[0].clone(),
            "rates": self._rates.state_dict(),
            "divergence": self._divergence.clone(),
            "signals": {}
            if self._signals is None
            else {"divergence": self._signals.divergence.clone(), "stability": self._signals.stability.clone()},
            "kept": [state.clone() for state in self._kept],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state_dict` was taken, between any two calls, and write the rates to the optimizer's groups.

        Load the states of the model and the optimizer yourself, before or after.
        """
        groups = self._groups()
        try:
            _demand_equal(state["shapes"], self._shapes)
            rates = self._start(tuple(state["base"].tolist()))
            rates.load_state_dict(state["rates"])
            round, done, divergence = int(state["round"]), int(state["done"]), state["divergence"].clone()
            signals = Signals(**{k: v.clone() for k, v in state["signals"].items()}) if state["signals"] else None
            homes = [group["params"][0].device for group in groups] if done else []
            kept = [tensor.to(home, copy=True) for tensor, home in zip(state["kept"], homes, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedA2LError(f"this is not a state of FedA2L ({type(error).__name__}: {error})") from error
        if done:
            self._demand_sizes(kept, groups)
        self._rates, self.round, self._done = rates, round, done
        self._divergence, self._signals, self._kept = divergence, signals, kept
        self._write(groups)

    def _start(self, base: tuple[float, ...]) -> FedA2LRates:
        return self._rule.start(Setting(base=base, layers=tuple(self._shapes)))

    def _expect(self, call: str) -> list[dict[str, Any]]:
        """The layer groups as they are now, if `call` is the one that comes next."""
        if CALLS[self._done] != call:
            raise FedA2LError(
                f"{call}() in round {self.round}, where {CALLS[self._done]}() comes next: call {'(), '.join(CALLS)}() "
                "once a round in this order, or skip_round() to give the round up"
            )
        return self._groups()

    def _groups(self) -> list[dict[str, Any]]:
        groups = _layer_groups(self.optimizer)
        _demand_equal(_shapes(groups), self._shapes)
        return groups

    def _tensors(self, groups: list[dict[str, Any]]) -> list[list[Tensor]]:
        """The measured tensors of each layer."""
        return [[group["params"][i] for i in which] for group, which in zip(groups, self._measured, strict=True)]

    def _demand_sizes(self, kept: list[Tensor], groups: list[dict[str, Any]]) -> None:
        sizes = [sum(tensor.numel() for tensor in tensors) for tensors in self._tensors(groups)]
        if [state.numel() for state in kept] != sizes:
            raise FedA2LError("the saved state has an open round with another choice of `measured` tensors")

    def _keep(self, groups: list[dict[str, Any]]) -> None:
        # layer by layer: the old copy of a layer is freed before the next one is made
        self._kept = self._kept or [torch.empty(0)] * len(groups)
        for i, tensors in enumerate(self._tensors(groups)):
            self._kept[i] = _flat(tensors)

    def _read(self, groups: list[dict[str, Any]], name: str, signal: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The signal between the kept and the present state, [layers] in float64 on the CPU; NaN and Inf raise."""
        values: list[Tensor] = []
        for i, (group, tensors) in enumerate(zip(groups, self._tensors(groups), strict=True)):
            state = _wide(_flat(tensors))
            value = signal(_wide(self._kept[i].to(state.device)) if self._kept else state, state)
            sound = torch.stack([torch.isfinite(parameter).all() for parameter in group["params"]]).all()
            values.append(value.masked_fill(~sound, torch.nan).to(values[0].device if values else value.device))
        found = torch.stack(values).cpu().double()  # the one wait for the device
        for layer, value in zip(self._shapes, found.tolist(), strict=True):
            if not -torch.inf < value < torch.inf:
                raise FedA2LError(
                    f"layer {layer}: NaN, Inf or an overflow in its {name} state in round {self.round}; "
                    "nothing was changed, so mend the parameters and call again, or skip_round()"
                )
        return found

    def _write(self, groups: list[dict[str, Any]]) -> None:
        seen: set[int] = set()
        for group, rate in zip(groups, self._rates.rates[0].tolist(), strict=True):
            if isinstance(group["lr"], Tensor):
                # torch hands one tensor to all groups: each needs its own before it is filled
                if id(group["lr"]) in seen:
                    group["lr"] = group["lr"].clone()
                seen.add(id(group["lr"]))
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _close(self) -> None:
        self._kept, self._done = [], 0
        self.round += 1


def _layer_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    groups = [group for group in getattr(optimizer, "param_groups", ()) if "tensors" in group]
    if not groups:
        raise FedA2LError(
            f"{type(optimizer).__name__} has no layer groups: build it with "
            "feda2l.layer_groups(model) in place of model.parameters()"
        )
    names = [group["name"] for group in groups]
    for name, group in zip(names, groups, strict=True):
        if names.count(name) > 1:
            raise FedA2LError(f'{names.count(name)} layer groups are named "{name}": give each its own group["name"]')
        if len(group["tensors"]) != len(group["params"]):
            raise FedA2LError(
                f"layer {name}: {len(group['tensors'])} tensor names for {len(group['params'])} parameters"
            )
    return groups


def _shapes(groups: list[dict[str, Any]]) -> dict[str, dict[str, list[int]]]:
    return {
        group["name"]: {
            tensor: list(parameter.shape) for tensor, parameter in zip(group["tensors"], group["params"], strict=True)
        }
        for group in groups
    }


def _demand_equal(found: Mapping[str, Mapping[str, list[int]]], own: Mapping[str, Mapping[str, list[int]]]) -> None:
    if list(found) != list(own):
        unlike = [name for name in (*own, *found) if (name in own) != (name in found)] or ["their order"]
        raise FedA2LError(f"these are not the layers FedA2L was built with: they differ in {', '.join(unlike[:5])}")
    for layer in own:
        if dict(found[layer]) != dict(own[layer]):
            raise FedA2LError(
                f"layer {layer}: FedA2L was built with the tensors {dict(own[layer])}, not with {dict(found[layer])}"
            )


def _flat(tensors: list[Tensor]) -> Tensor:
    """A copy of a layer's tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _wide(state: Tensor) -> Tensor:
    return state.to(torch.promote_types(state.dtype, torch.float32))
