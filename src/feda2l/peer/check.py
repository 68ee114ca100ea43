"""Reject specs that cannot run on real nodes, before anything starts."""

from feda2l.errors import FedA2LError
from feda2l.peer.config import NodeConfig
from feda2l.spec.spec import Spec

STRICT = ("doubly_stochastic", "symmetric", "full_or_symmetric")  # what `Algorithm.mixing` needs on both ends of a link


def refuse_network(spec: Spec) -> None:
    """Reject what only the simulator can do: a simulated network, and estimates that need all models."""
    if spec.network is not None:
        raise FedA2LError(
            "network: the section [network] is for the simulator, and real nodes use the real network; remove the "
            "section, or use feda2l run"
        )
    if spec.evaluation.theory_every is not None:
        raise FedA2LError(
            f"evaluation.theory_every = {spec.evaluation.theory_every}: the estimates need the models and the data of "
            "all nodes, and a peer sees only its neighbours' models; leave the key out, or simulate with feda2l run"
        )


def refuse_unfit(spec: Spec, config: NodeConfig) -> None:
    """Reject a spec that a node cannot follow because it knows only its neighbours."""
    refuse_network(spec)
    algorithm, weights = spec.algorithm.algorithm, spec.topology.weights
    name = f'algorithm.name = "{spec.algorithm.name}"'
    one_way = [neighbour.name for neighbour in config.neighbours if neighbour.direction != "both"]
    if algorithm.rate_search and algorithm.rate_search.consensus:
        raise FedA2LError(
            "algorithm.consensus = true: a real node cannot know when all others have agreed on a rate; "
            "set algorithm.consensus = false"
        )
    # if every node exchanges messages with all others, each finds the whole graph full
    full = len(config.neighbours) + 1 == (config.nodes or spec.data.nodes) and not one_way
    if algorithm.mixing in STRICT and not (full and algorithm.mixing == "full_or_symmetric"):
        if weights != "metropolis":
            raise FedA2LError(
                f'{name} needs the same weight on both ends of a link; set topology.weights = "metropolis"'
            )
        if one_way:
            raise FedA2LError(
                f'{name} needs links in both directions; set direction = "both" for neighbour {one_way[0]}'
            )
    if weights == "metropolis" and one_way:
        raise FedA2LError(
            f'topology.weights = "metropolis" needs links in both directions, and neighbour {one_way[0]} has one '
            'direction; use "uniform" or "samples"'
        )
