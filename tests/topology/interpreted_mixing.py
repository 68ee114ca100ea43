"""Compare the Triton kernel of mixing with the CPU bit by bit, in Triton's interpreter.

`test_cuda_mixing.py` runs this script.
"""

import numpy as np
import torch

from feda2l.topology.plan import Plan, SparseRows


def main() -> None:
    from feda2l.topology.cuda_mixing import mix_rows  # needs triton

    draw = np.random.default_rng(1)
    for nodes, width, dtype in ((1, 5, torch.float32), (12, 3000, torch.float32), (7, 1024, torch.float64)):
        neighbours = [np.sort(draw.permutation(nodes)[: draw.integers(1, nodes + 1)]) for _ in range(nodes)]
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in neighbours])])
        rows = SparseRows(offsets, np.concatenate(neighbours), draw.random(offsets[-1]))
        source = torch.randn(nodes, width + 64, dtype=dtype)[:, :width]  # rows are not adjacent, as in a population
        source[0, :3] = torch.tensor([-0.0, 0.0, 1e-40])
        expected, actual = torch.empty_like(source), torch.full_like(source, torch.nan)
        places = draw.permutation(nodes)
        Plan.of(rows, places, source).apply(source, expected)
        mix_rows(source, actual, *rows.tensors(source), torch.from_numpy(places))
        bits = torch.int32 if dtype == torch.float32 else torch.int64
        assert torch.equal(actual.contiguous().view(bits), expected.contiguous().view(bits))
    print("equal")


if __name__ == "__main__":
    main()
