"""FedA2L for any PyTorch training loop: layer-wise learning rates, set once per communication round."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from feda2l.equations import Signals, WindowForm, aggregation_stability, weight_divergence
from feda2l.errors import FedA2LError, warn_once
from feda2l.layers import Layer
from feda2l.optimizer_groups import (
    Group,
    claim,
    demand_equal,
    demand_still_used,
    demand_supported,
    layer_groups_of,
    read_rates,
    shapes_of,
    warn_of_changed_rates,
    without_wrapper,
    write_rates,
)
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.rates.base import Setting
from feda2l.rates.feda2l import DEEP, FedA2LRule
from feda2l.rates.frozen_layers import FreezableRates

CALLS = ("begin_round", "end_training", "step")  # of one round, in order


class LayerRate(NamedTuple):
    """The rate and the signals of one layer after the last step."""

    rate: float  # of the coming round
    multiplier: float  # m, the factor on the decayed base rate; 1 during warm-up
    divergence: float  # sigma of the last round
    stability: float  # zeta of the last round


class FedA2L:
    """Set each layer's learning rate from its weight divergence and its aggregation stability (Algorithm 1).

        optimizer = torch.optim.SGD(feda2l.layer_groups(model), lr=0.01, momentum=0.9)
        rates = feda2l.FedA2L(optimizer)
        for round in range(rounds):
            rates.begin_round()                # the base state B
            train(model, optimizer)
            rates.end_training()               # the trained state T
            average_with_neighbours(model)
            rates.step()                       # the aggregated state A; sets the rates of the next round

    For each layer sigma = ||T - B|| / (||B|| + eps) and zeta = mean(|A - T| < tau). Their z-scores over the last rounds
    are omega and delta. The next rate is eta0 (1 + tanh(log lambda)) (1 + xi r)^(-1/2) with
    lambda = beta exp(omega) + (1 - beta) exp(delta). eta0 is the `lr` of each group at construction.

    FedA2L sends nothing. It keeps one copy of the measured parameters while a round is open. It changes only `lr`:
    never momentum, weight decay or parameters. Groups that do not come from `layer_groups` are left alone. A layer
    that you freeze later (`requires_grad_(False)`) keeps its rate; when you thaw it, its z-scores start with a fresh
    history. A call that fails changes nothing: fix the cause and call it again.

    Optimizers: every torch optimizer that accepts parameter groups and multiplies its step by the group's `lr`, such as
    SGD, Adam, AdamW, RMSprop and Adagrad. `LBFGS` and `Rprop` are refused. Use one FedA2L per optimizer and no other
    learning rate scheduler on the same groups; FedA2L warns if a rate was changed since it was set.

    BatchNorm's running mean and variance are buffers, not parameters. FedA2L neither reads nor writes them. Average
    them with the parameters (usually better: the statistics then match the averaged weights), or keep them local.

    Caveats:
        - At the end of warm-up the rates drop at once to about eta0 (1 + xi R_warm)^(-1/2).
        - Signals that are pure noise still raise the mean rate by about 14 %. Compare with a tuned constant rate and
          with the decay alone.
        - A layer that starts at zero has a huge divergence in its first round: choose a warm-up longer than the window.
        - `state_dict` does not hold the arguments below: pass the same ones to the constructor when you resume.

    Args:
        optimizer: an optimizer whose groups come from `layer_groups`.
        preset: `paper`, or `reference` to reproduce the released code with its lag, clip and warm-up.
        warmup_rounds: R_warm, the rounds at the base rate. Choose it so that the first steep fall of the loss is over,
            and at least `window`. Default 10; 40 for more than 10 layers.
        window: rho, the rounds in a z-score. A shorter window reacts faster and is noisier. Default 5; 10 for more than
            10 layers.
        window_form: `sample`, or `printed` as an ablation. `printed` divides the sum of window + 1 values by window, as
            the paper prints Eqs. 5 and 6, which lowers every z-score.
        decay: xi. Choose it for the last round R, where the rate is near eta0 (xi R)^(-1/2). 0 disables the decay.
            Default 0.3; 0.1 for more than 10 layers.
        balance: beta, the weight of divergence against stability: 1 uses divergence only, 0 stability only. Results
            depend little on it.
        threshold: tau. A parameter counts as stable if averaging changed it by less. Choose it near the typical change
            of a parameter, so that the stability (see `last`) is neither always 0 nor always 1.
        consensus_sign: 1 raises the rate where neighbours agree more than usual (the paper's equation); -1 where they
            agree less (the paper's text).
        eps_norm, eps_std: keep the two divisions finite. Raise `eps_norm` if layers start at zero, and `eps_std` to
            ignore signals that hardly vary.
        transform: `softsign` applies x / (1 + x) to both signals first, `none` does not. It matters for a divergence
            near 1 or above.
        newest: whether the window ends with the `current` round or, with a lag of one round, with the `previous` one.
        decay_index: whether r in the decay counts every `round` or only the `adaptations`; these start at full eta0.
        warmup_factor, bn_warmup_factor: factor on eta0 during warm-up, and a further factor for layers with "bn" in
            their name. Choose values below 1 if the first rounds at eta0 are unstable.
        lr_clip: (low, high) bounds of every adapted rate. A lower bound keeps long runs learning. None takes the
            preset's.
        measured: `all` tensors of a layer, or only its `weight`. Biases are small and move far from a start at zero.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        preset: Literal["paper", "reference"] = "paper",
        warmup_rounds: int | None = None,
        window: int | None = None,
        window_form: WindowForm = "sample",
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
        demand_supported(optimizer)
        groups = layer_groups_of(optimizer)
        self._shapes = shapes_of(groups)
        self._measured = [
            Layer(group["name"], tuple(group["tensors"])).measured(self._measure.tensors) for group in groups
        ]
        self._rates = self._start(tuple(read_rates(groups)))
        self.round = 1  # the round that is open or comes next
        self._done = 0  # how many of its calls are done
        self._last_states: list[Tensor] = []  # the last state of the open round: base, then trained
        self._divergence = torch.zeros(len(groups), dtype=torch.float64)  # sigma of the open round
        self._signals: Signals | None = None  # of the last step
        self._written: list[float] = []  # the rates as the groups held them after the last write
        if preset == "reference" and len(groups) > DEEP:
            warn_once(
                f"preset 'reference' on {len(groups)} layers: the released code gives models of more than {DEEP} "
                "layers no momentum; FedA2L does not change your optimizer's momentum",
                stacklevel=2,
            )
        claim(optimizer, self)
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
        """Measure sigma = ||T - B|| / (||B|| + eps) and remember the trained state T. Call it before averaging."""
        groups = self._expect("end_training")

        def divergence(base: Tensor, trained: Tensor) -> Tensor:
            return weight_divergence(base, trained, self._measure.eps, eps_in_norm=self._measure.eps_in_norm)

        self._divergence = self._read(groups, "trained", divergence)
        self._keep(groups)
        self._done = 2

    @torch.no_grad()
    def step(self) -> None:
        """Measure zeta = mean(|A - T| < tau) and set the rates of the next round. Call it after averaging."""
        groups = self._expect("step")

        def stability(trained: Tensor, aggregated: Tensor) -> Tensor:
            return aggregation_stability(trained, aggregated, self._measure.threshold)

        signals_now = Signals(self._divergence, self._read(groups, "aggregated", stability))
        # a frozen layer does not move: its zero divergence is no signal
        frozen = torch.tensor([not any(p.requires_grad for p in group["params"]) for group in groups])
        self._rates.step(self.round, Signals(*(signal.masked_fill(frozen, torch.nan) for signal in signals_now[:2])))
        shown = signals_now if self._signals is None else self._signals
        self._signals = Signals(*(torch.where(frozen, *pair) for pair in zip(shown[:2], signals_now[:2], strict=True)))
        self._write(groups)
        self._close()

    def skip_round(self) -> None:
        """Skip the open round, or the next one if none is open: no signal is stored and the rates stay.

        Call it for a round that was not completed, or in which this node was offline. The round counter goes up by one.
        """
        self._close()

    @property
    def next_call(self) -> str:
        """The call that comes next: `begin_round`, `end_training` or `step`; `begin_round` if no round is open."""
        return CALLS[self._done]

    @torch.no_grad()
    def mixed(self) -> bool:
        """Return whether averaging changed a measured parameter since `end_training`.

        If not, this node received nothing: call `skip_round()` in place of `step()`.
        """
        groups = self._expect("step")
        states = zip(self._last_states, self._tensors(groups), strict=True)
        return any(not torch.equal(state.to(tensors[0].device), _flat(tensors)) for state, tensors in states)

    @property
    def last(self) -> dict[str, LayerRate]:
        """The rate, multiplier and signals of each layer at the last step, by name; empty before the first."""
        if self._signals is None:
            return {}
        columns = (self._rates.rates[0], self._rates.multiplier[0], *self._signals[:2])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {name: LayerRate(*row) for name, row in zip(self._shapes, rows, strict=True)}

    def get_last_lr(self) -> list[float]:
        """Return the rate of each of the optimizer's groups, as torch's schedulers do."""
        return read_rates(self.optimizer.param_groups)

    def state_dict(self) -> PlainDict:
        """Return everything that changes, an open round included, as plain tensors and numbers."""
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
            "kept": [state.clone() for state in self._last_states],
        }

    def load_state_dict(self, state: PlainMapping) -> None:
        """Resume where `state_dict` was called, between any two calls, and write the rates to the optimizer's groups.

        Load the states of the model and the optimizer yourself, before or after. A state that was saved from a bare
        model also loads for the same model under `DataParallel`, `DistributedDataParallel` or `torch.compile`, and
        the other way round.
        """
        groups = self._groups()
        try:
            demand_equal(without_wrapper(state["shapes"]), without_wrapper(self._shapes))
            rates = self._start(tuple(state["base"].tolist()))
            rates.load_state_dict(state["rates"])
            round, done, divergence = int(state["round"]), int(state["done"]), state["divergence"].clone()
            signals = Signals(**{k: v.clone() for k, v in state["signals"].items()}) if state["signals"] else None
            devices = [group["params"][0].device for group in groups] if done else []
            states = [tensor.to(device, copy=True) for tensor, device in zip(state["kept"], devices, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedA2LError(f"this is not a state of FedA2L ({type(error).__name__}: {error})") from error
        if done:
            self._demand_sizes(states, groups)
        self._rates, self.round, self._done = rates, round, done
        self._divergence, self._signals, self._last_states = divergence, signals, states
        self._write(groups)

    def _start(self, base: tuple[float, ...]) -> FreezableRates:
        return FreezableRates(self._rule.resolved(len(self._shapes)), Setting(base=base, layers=tuple(self._shapes)))

    def _expect(self, call: str) -> list[Group]:
        """Return the layer groups as they are now, if `call` is the one that comes next."""
        if CALLS[self._done] != call:
            raise FedA2LError(
                f"{call}() in round {self.round}, where {CALLS[self._done]}() comes next: call {'(), '.join(CALLS)}() "
                "once per round in this order, or skip_round() to skip the round"
            )
        groups = self._groups()
        demand_still_used(groups)
        self._written = warn_of_changed_rates(groups, self._written)
        return groups

    def _groups(self) -> list[Group]:
        groups = layer_groups_of(self.optimizer)
        demand_equal(shapes_of(groups), self._shapes)
        return groups

    def _tensors(self, groups: list[Group]) -> list[list[Tensor]]:
        """Return the measured tensors of each layer."""
        return [[group["params"][i] for i in which] for group, which in zip(groups, self._measured, strict=True)]

    def _demand_sizes(self, states: list[Tensor], groups: list[Group]) -> None:
        sizes = [sum(tensor.numel() for tensor in tensors) for tensors in self._tensors(groups)]
        if [state.numel() for state in states] != sizes:
            raise FedA2LError(
                "the saved state has an open round that measured other tensors: build FedA2L with the same `measured`"
            )

    def _keep(self, groups: list[Group]) -> None:
        # layer by layer: the old copy of a layer is freed before the next one is made
        self._last_states = self._last_states or [torch.empty(0)] * len(groups)
        for i, tensors in enumerate(self._tensors(groups)):
            self._last_states[i] = _flat(tensors)

    def _read(self, groups: list[Group], name: str, signal: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Measure the signal between the kept and the present state, [layers] in float64; non-finite values raise."""
        values: list[Tensor] = []
        for i, (group, tensors) in enumerate(zip(groups, self._tensors(groups), strict=True)):
            state = _wide(_flat(tensors))
            value = signal(_wide(self._last_states[i].to(state.device)) if self._last_states else state, state)
            finite = torch.stack([torch.isfinite(parameter).all() for parameter in group["params"]]).all()
            values.append(value.masked_fill(~finite, torch.nan).to(values[0].device if values else value.device))
        measured = torch.stack(values).cpu().double()  # the only wait for the device
        for layer, value in zip(self._shapes, measured.tolist(), strict=True):
            if not -torch.inf < value < torch.inf:
                raise FedA2LError(
                    f"layer {layer}: NaN, Inf or an overflow in its {name} state in round {self.round}. Nothing was "
                    "changed: fix the parameters and call again, or call skip_round()"
                )
        return measured

    def _write(self, groups: list[Group]) -> None:
        self._written = write_rates(groups, self._rates.rates[0].tolist())

    def _close(self) -> None:
        self._last_states, self._done = [], 0
        self.round += 1


def _flat(tensors: list[Tensor]) -> Tensor:
    """Return a copy of a layer's tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _wide(state: Tensor) -> Tensor:
    return state.to(torch.promote_types(state.dtype, torch.float32))
