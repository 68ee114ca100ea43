"""Compare the Triton convolutions with torch in Triton's interpreter on a CPU. Run by test_cuda_convolution.py."""

import torch
import torch.nn.functional as F
from torch import Tensor

# rows, batch, height, width, channels, outputs, side, stride
SHAPES = [
    (2, 2, 6, 5, 32, 16, 3, 1),
    (2, 3, 7, 6, 16, 32, 3, 2),  # 7 is odd, so halving leaves a remainder
    (2, 2, 7, 6, 32, 32, 1, 2),
    (1, 2, 5, 5, 16, 16, 1, 1),
]


def by_torch(x: Tensor, weight: Tensor, given: Tensor, side: int, stride: int) -> tuple[Tensor, ...]:
    """Return output and gradients of one row, in the memory order of the batched kernels."""
    picture = x.movedim(-1, 1).requires_grad_()
    kernel = weight.unflatten(1, (side, side, -1)).movedim(-1, 1).requires_grad_()
    out = F.conv2d(picture, kernel, stride=stride, padding=side // 2)
    gradients = torch.autograd.grad(out, (picture, kernel), given.movedim(-1, 1))
    first, *others = (tensor.detach().movedim(1, -1) for tensor in (out, *gradients))
    return first, others[0], others[1].flatten(1)


def main() -> None:
    from feda2l.engines import cuda_convolution as kernels  # needs triton

    torch.manual_seed(1)
    tile = kernels.Tile(32, 16, 16, 4, 2)
    for rows, batch, height, width, channels, outputs, side, stride in SHAPES:
        x = torch.randn(rows, batch, height, width, channels)
        inner = side * side * channels
        # rows of weights have gaps between them, as in the population
        weight = torch.randn(rows, outputs * inner + 64)[:, : outputs * inner].unflatten(1, (outputs, inner))
        out = kernels.convolve(x, weight, side, stride, tile)
        given = torch.randn_like(out)
        found = [out, kernels.input_gradient(given, weight, x.shape, side, stride, tile)]
        for kernels.SHORTEST in (100, 1):  # a sum in one part and in several parts
            found.append(kernels.weight_gradient(x, given, side, stride, tile._replace(places=16)))
        for row in range(rows):
            expected = by_torch(x[row], weight[row], given[row], side, stride)
            for one, other in zip(found, (*expected, expected[2]), strict=True):
                torch.testing.assert_close(one[row], other, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()
