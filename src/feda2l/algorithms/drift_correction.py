"""Drift correction with one message: each node cancels its drift from the average that it already receives.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020 (option II), without a server and without sending the control variates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feda2l.algorithms.base import Algorithm, NodeStates, Task
from feda2l.errors import FedA2LError

GRID = 0.05  # steps in which the error message names a stable damping


@dataclass(frozen=True, kw_only=True)
class DriftCorrection(Algorithm):
    """Every local step follows g + D_i. After mixing, with the average a_i = sum_j W_ij T_j:

        D_i <- D_i + damping (T_i - a_i) / reach_i

    reach_i is the distance that a constant unit gradient moves the node in the round, layer by layer. With local
    momentum mu, the velocity of such a gradient is v_k = mu v_{k-1} + 1, and reach_i = rate (v_1 + ... + v_K). The
    node remembers v between rounds. `momentum_state = "reset"` sets it to 0. With "keep" it continues. With "average"
    it continues too, which is exact if all nodes take equally many steps.

    **Invariant.** Let p be the weights with p W = p (the rows of a full graph, or 1/n). Then sum_i p_i (T_i - a_i) = 0,
    so each update adds nothing to sum_i p_i reach_i D_i. With rates and momenta that are equal at all nodes and
    constant, sum_i p_i K_i D_i stays 0.

    **Fixed point.** All nodes hold one x and stay there, so D_i = -g_i(x). By the invariant, sum_i p_i K_i g_i(x) = 0:
    nodes are weighted by p_i K_i, and the corrections remove the bias of local steps. With equal K_i and damping 1 on a
    full graph, the round is SCAFFOLD's option II with D_i = c - c_i.

    **Stability.** Without gradients and local momentum, the mode of W with the eigenvalue l follows

        B' = l (B - D) + beta (B - B_before),   D' = D + c (1 - l) (B - D),   D in units of 1 / reach, c = damping

    with the characteristic polynomial (z^2 - (l + beta) z + beta) (z - 1 + c (1 - l)) + c l (1 - l) z. Without outer
    momentum it is stable for c < 2 (1 + l) / (1 - l), so c = 1 needs l > -1/3. With outer momentum beta, slow modes (l
    near 1) need c < (1 - beta) / (beta (2 - beta)): below 1 from beta = 0.382 on. A full graph (l = 0) is stable for
    c = 1 and every beta < 1. A damping outside the range is refused.

    Args:
        damping: the factor c of the update. Smaller values are stable on more graphs and remove the drift more slowly.
    """

    summary = "cancels the drift of local steps with the average it already has; one message"
    citation = "Karimireddy et al. 2020"
    state = ("drift",)
    mixing = "full_or_symmetric"
    claims = ("weigh", "combine", "accept")  # the average must be that of W

    damping: float = 1.0

    def __post_init__(self) -> None:
        self.demand(0 <= self.damping <= 1, "damping", "must be from 0 (FedAvg) to 1")

    def check(self, task: Task) -> None:
        if task.optimizer != "sgd" or task.momentum >= 1:
            raise FedA2LError(
                'algorithm.name = "drift_correction" computes gradients from how far a node moved: it needs '
                'training.optimizer = "sgd" and a training.momentum below 1'
            )

    def check_graph(self, eigenvalues: Sequence[float], betas: Sequence[float]) -> None:
        if stable(self.damping, eigenvalues, betas):
            return
        grid = (round(GRID * k, 2) for k in range(round(1 / GRID), 0, -1))
        most = next((damping for damping in grid if stable(damping, eigenvalues, betas)), 0.0)
        advice = f"use a damping of at most {most:g}" if most else "use another graph, or remove this part"
        outer = f" with an outer momentum of up to {max(betas):g}" if max(betas) else ""
        raise FedA2LError(f"algorithm.damping = {self.damping:g}: is unstable on this graph{outer}; {advice}")

    def small_state(self, shares: Tensor, nodes: int, layers: int) -> dict[str, Tensor]:
        """Return the velocity that a constant unit gradient has given to each node."""
        return {"velocity": torch.zeros(len(shares), dtype=torch.float64)}

    def gradient(self, gradient: Tensor, parameters: Tensor, base: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return gradient.add_(state["drift"])

    def observe(self, states: NodeStates, average: Tensor) -> None:
        velocity = states.small_state["velocity"]
        if states.momentum_state == "reset":
            velocity.zero_()
        # one number after the other: the bits of a vectorized power depend on the number of nodes
        moved = [
            unit_response(int(steps), states.momentum, start)
            for steps, start in zip(states.steps.tolist(), velocity.tolist(), strict=True)
        ]
        velocity.copy_(torch.tensor([end for _, end in moved], dtype=torch.float64))
        reach = states.rates * torch.tensor([[distance] for distance, _ in moved], dtype=torch.float64)
        # a layer with rate 0 and a node without steps did not move
        factor = torch.where(reach > 1e-30, self.damping / reach, 0.0)
        states.state["drift"].add_((states.trained - average).mul_(states.expand(factor)))


def unit_response(steps: int, momentum: float, velocity: float) -> tuple[float, float]:
    """Return v_1 + ... + v_K and v_K of v_k = momentum v_{k-1} + 1, from v_0 = velocity.

    >>> unit_response(3, 0.5, 0.0)  # 1 + 1.5 + 1.75
    (4.25, 1.75)
    """
    steady, decay = 1 / (1 - momentum), momentum**steps
    excess = velocity - steady
    return steps * steady + momentum * (1 - decay) * steady * excess, steady + decay * excess


def stable(damping: float, eigenvalues: Sequence[float], betas: Sequence[float]) -> bool:
    """Return whether every mode of W that is not the average decays, for every outer momentum in `betas`."""
    modes = [value for value in eigenvalues if value < 1 - 1e-9]
    return not damping or all(_radius(value, beta, damping) < 1 - 1e-9 for value in modes for beta in betas)


def _radius(eigenvalue: float, beta: float, damping: float) -> float:
    """Return the largest root of the characteristic polynomial by magnitude."""
    update = damping * (1 - eigenvalue)
    product = np.polymul([1, -eigenvalue - beta, beta], [1, update - 1])
    return float(np.abs(np.roots(np.polyadd(product, [update * eigenvalue, 0]))).max())
