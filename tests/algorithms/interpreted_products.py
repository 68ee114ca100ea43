"""Compare the Triton kernel of inner products with float64, in Triton's interpreter on a CPU.

`test_cuda_products.py` runs this script.
"""

import torch


def main() -> None:
    from feda2l.algorithms.cuda_products import MOST, inner_products  # needs triton
    from feda2l.algorithms.fedawa import _sums, _sums_on_gpu

    torch.manual_seed(1)
    for count, width in ((1, 70), (2, 5000), (3, 2049), (8, 1000), (11, 300), (20, 70_000)):
        # as for models: rows not adjacent in memory, values far from zero and close to each other
        vectors = torch.randn(count, width + 64)[:, :width] * 1e-3 + torch.randn(width)
        shift = vectors.mean(dim=0)
        for offset in (None, shift):
            x = vectors.double() if offset is None else vectors.double() - offset.double()
            torch.testing.assert_close(inner_products(vectors, offset), x @ x.T, rtol=1e-12, atol=0)
    for count in (4, MOST + 1):
        models, base = torch.randn(count, 600) * 1e-2 + 1, torch.randn(600) * 1e-2 + 1
        for crossed in (False, True):
            sums = [make(models, base, crossed=crossed) for make in (_sums_on_gpu, _sums)]
            torch.testing.assert_close(*sums, rtol=1e-12, atol=0)
    # an isolated node: nothing moved, and subtracting the shift must leave exactly zero
    assert _sums_on_gpu(models[:1], models[0], crossed=False)[0] == 0
    print("equal")


if __name__ == "__main__":
    main()
