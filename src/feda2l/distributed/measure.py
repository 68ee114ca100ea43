"""`torchrun --nproc-per-node=2 -m feda2l.distributed.measure` measures the link between two ranks."""

import statistics
import time

import torch

from feda2l.distributed.cost import Interconnect
from feda2l.distributed.ranks import Ranks, here

SIZE = 4 << 20  # values sent in each direction
TIMES = 9


def measure(ranks: Ranks, device: torch.device) -> Interconnect:
    """Measure the bandwidth of a ring of simultaneous transfers, then the latency of small messages to all ranks."""
    out, into = torch.ones(SIZE, device=device), torch.empty(SIZE, device=device)
    after, before = (ranks.rank + 1) % ranks.world, (ranks.rank - 1) % ranks.world
    seconds: list[float] = []
    small: list[float] = []
    for _ in range(TIMES):
        ranks.all(None)
        start = time.perf_counter()
        ranks.start([(after, out)], [(before, into)]).wait()
        float(into[0])  # on a GPU the transfer is complete when a value can be read
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        ranks.all(None)
        small.append(time.perf_counter() - start)
    return Interconnect(4 * SIZE / statistics.median(seconds), statistics.median(small))


def main() -> None:
    ranks = here()
    if ranks is None or ranks.world < 2:
        raise SystemExit("start this module with torchrun and at least 2 ranks")
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    link = measure(ranks, device)
    if ranks.leads:
        print(f"{link.bandwidth / 1e6:,.0f} MB/s between ranks, {1e3 * link.latency:.2f} ms for a message to all ranks")


if __name__ == "__main__":
    main()
