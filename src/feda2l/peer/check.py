"""What cannot run on peers, said before anything starts."""

from feda2l.errors import FedA2LError
from feda2l.peer.config import NodeConfig
from feda2l.spec.spec import Spec


def refuse_network(spec: Spec) -> None:
    """Refuse what only the simulator can do: make up a network, or estimate what needs all models."""
    if spec.network is not None:
        raise FedA2LError(
            "network: is what the simulator makes up, and real peers have a network of their own; leave [network] out "
            "(feda2l run simulates it)"
        )
    if spec.evaluation.theory_every is not None:
        raise FedA2LError(
            f"evaluation.theory_every = {spec.evaluation.theory_every}: the estimates need the models and the data of "
            "all nodes, and a peer sees only its neighbours' models; leave the key out, or simulate with feda2l run"
        )


def refuse_unfit(spec: Spec, config: NodeConfig) -> None:
    """Refuse a spec that a node cannot keep to when it knows only its neighbours."""
    refuse_network(spec)
    algorithm, weights = spec.algorithm.algorithm, spec.topology.weights
    name = f'algorithm.name = "{spec.algorithm.name}"'
    one_way = [neighbour.name for neighbour in config.neighbours if neighbour.direction != "both"]
    if algorithm.rate_search and algorithm.rate_search.consensus:
        raise FedA2LError(
            "algorithm.consensus = true: no peer knows when all others have agreed on a rate; "
            "set algorithm.consensus = false"
        )
    if algorithm.mixing in ("doubly_stochastic", "symmetric"):
        if weights != "metropolis":
            raise FedA2LError(
                f'{name} needs weights that a node and its neighbour agree on; set topology.weights = "metropolis"'
            )
        if one_way:
            raise FedA2LError(f'{name} needs neighbours that hear each other; {one_way[0]} has direction != "both"')
    if weights == "metropolis" and one_way:
        raise FedA2LError(
            f'topology.weights = "metropolis" needs neighbours that hear each other; {one_way[0]} has a direction; '
            'use "uniform" or "samples"'
        )
