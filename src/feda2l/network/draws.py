"""Random draws by id: the properties of a node or link depend neither on the graph nor on the other nodes."""

import numpy as np
from numpy.typing import NDArray

from feda2l.randomness import derive_seed

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DECIMALS = 6  # logarithms may differ in the last bit between machines; rounding makes the draws equal


def lognormal(seed: int, purpose: str, spread: float, *ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return exp(spread z) with z standard normal, of median 1: one draw per entry of the ids.

    Counter-based as `feda2l.randomness` is, but for whole arrays: a full graph of 1,000 nodes has a million links.
    """
    if not spread:
        return np.ones(len(ids[0]))
    state = np.full(len(ids[0]), derive_seed(seed, purpose=purpose), dtype=np.uint64)
    for values in ids:
        state = _mixed(state ^ values.astype(np.uint64))
    first, second = (_uniform(_mixed(state ^ np.uint64(number))) for number in (1, 2))
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)  # Box and Muller, 1958
    drawn: NDArray[np.float64] = np.round(np.exp(spread * normal), DECIMALS)
    return np.maximum(drawn, 10.0**-DECIMALS)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64 (Steele, Lea, Flood, 2014)."""
    state = state + GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _uniform(state: NDArray[np.uint64]) -> NDArray[np.float64]:
    """In (0, 1]."""
    return ((state >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
