"""What neighbours hand each other (Algorithm 1, line 5), counted in bytes."""

from torch import Tensor

from feda2l.topology import Mixing


def bytes_sent(mixing: Mixing, round: int, message: int) -> Tensor:
    """Bytes that each node sends in a round: one message of so many bytes to every node that hears it.

    What really travels is counted: what the algorithm publishes, the averaged statistics, the optimiser's memory if it
    is averaged. A rate rule adds nothing. Padding does not travel; sample counts do so once and are not counted.
    """
    return mixing.messages(round) * message
