"""Numbers the classes and nodes that the user's own data name, and holds out a test set where there is none."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feda2l.data.errors import own_data_error
from feda2l.randomness import numpy_generator


def distinct(names: Sequence[str]) -> list[str]:
    """The distinct names, ordered by value if all are whole numbers, otherwise alphabetically.

    >>> distinct(["10", "9", "10"]), distinct(["b", "10", "9"])
    (['9', '10'], ['10', '9', 'b'])
    """
    once = sorted(set(names))
    return sorted(once, key=int) if all(name.removeprefix("-").isdecimal() for name in once) else once


def numbered(names: Sequence[str], order: Sequence[str]) -> NDArray[np.int64]:
    """The index of each name in `order`."""
    place = {name: number for number, name in enumerate(order)}
    return np.array([place[name] for name in names], dtype=np.int64)


def hold_out(labels: NDArray[np.int64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """A mask of the test samples: a rounded `share` of each class, at least one sample and never all.

    A class with a single sample stays in the training set.

    >>> hold_out(np.array([0, 0, 0, 0, 1, 1, 2]), share=0.25, seed=0).sum()
    np.int64(2)
    """
    if not 0 < share < 1:
        raise own_data_error(f"test_fraction = {share!r}: expected a number between 0 and 1, for example 0.2")
    test = np.zeros(len(labels), dtype=bool)
    generator = numpy_generator(seed, purpose="test part")
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        test[members[: min(max(round(share * len(members)), 1), len(members) - 1)]] = True
    return test


def groups_of(nodes: Sequence[str], train: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The node number of each training sample. Nodes are numbered in the order of `distinct`."""
    order = distinct(nodes)
    groups = numbered(nodes, order)[train]
    if empty := sorted(set(range(len(order))) - set(groups.tolist())):
        raise own_data_error(
            f"node {order[empty[0]]!r} has no training sample: all of its samples were held out for the test set; "
            "provide a separate test set, or choose a smaller test_fraction or another seed"
        )
    return groups
