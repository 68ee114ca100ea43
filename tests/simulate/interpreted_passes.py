"""Compare Timer's Triton kernels with PyTorch in Triton's interpreter on a CPU. Run by test_cuda_passes.py."""

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.engines import timer_passes
from feda2l.engines.batched_timer import count_dropout_layers, timer_forward
from feda2l.engines.timer_passes import DropoutMask, draws_of
from feda2l.models.timer import Timer

ROWS, WINDOWS, TOKENS, HEADS, WIDTH, HIDDEN = 3, 7, 4, 2, 16, 32
DRAWS = draws_of(torch.tensor([5, 99, -1234567], dtype=torch.int32), torch.zeros(3), 5)


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Return random tensors. Biases [rows, width] have gaps between rows, as in a population."""
    wide = [torch.randn(*shape[:-1], shape[-1] + 8) for shape in shapes]
    cut = [numbers[..., :-8] if numbers.dim() == 2 else numbers[..., :-8].contiguous() for numbers in wide]
    return [numbers.requires_grad_() for numbers in cut]


def compare(make: Callable[[Sequence[Tensor], DropoutMask], tuple[Tensor, Tensor]], inputs: list[Tensor]) -> None:
    """Compare outputs and gradients, with and without dropout."""
    for dropout in (DropoutMask(DRAWS, 3, 0.3), DropoutMask(None, 3, 0.3), DropoutMask(DRAWS, 3, 0.0)):
        plain, found = make(inputs, dropout)
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
        weights = torch.randn_like(plain)
        expected, gradients = (torch.autograd.grad((out * weights).sum(), inputs) for out in (plain, found))
        for number, (one, other) in enumerate(zip(expected, gradients, strict=True)):
            torch.testing.assert_close(
                other, one, rtol=1e-4, atol=1e-5, msg=lambda text, n=number: f"input {n}: {text}"
            )


def main() -> None:
    from feda2l.engines import cuda_passes  # needs triton

    torch.manual_seed(1)
    place, bias, many = (ROWS, WINDOWS * TOKENS, WIDTH), (ROWS, WIDTH), (ROWS, WINDOWS * TOKENS, HIDDEN)
    compare(lambda x, d: (timer_passes.activated(*x, d), cuda_passes.activated(*x, d)), leaves(many, (ROWS, HIDDEN)))
    compare(
        lambda x, d: (timer_passes.normed(*x, d), cuda_passes.normed(*x, d)), leaves(place, place, bias, bias, bias)
    )
    for cuda_passes.LINE in (1024, 32):  # all windows in one part and in several parts
        compare(
            lambda x, d: (
                timer_passes.attended(x[:3], x[3:], TOKENS, HEADS, d),
                cuda_passes.attended(x[:3], x[3:], TOKENS, HEADS, d),
            ),
            leaves(place, place, place, bias, bias, bias),
        )
    # far from 0, where only the tail of the normal distribution matters
    x = torch.linspace(-30, 30, 4096).view(1, 128, 32)
    found = cuda_passes.activated(x, torch.zeros(1, 32), DropoutMask(None, 0, 0.0))
    torch.testing.assert_close(found.double(), F.gelu(x.double()), rtol=0, atol=1e-6)
    whole(cuda_passes)
    print("equal")


def whole(passes: ModuleType) -> None:
    """Compare a whole Timer with both modules, traced as by the compiler."""
    model = Timer(input=(32, 2), horizon=8, patch=8, width=WIDTH, heads=HEADS, hidden=HIDDEN, dropout=0.3)
    shapes = [(ROWS, *parameter.shape) for parameter in model.parameters()]
    parameters = [
        (leaf.detach() * 0.3).requires_grad_() for leaf in leaves(*shapes)
    ]  # larger values have larger rounding errors
    x, draws = (
        torch.randn(ROWS, 5, 32, 2),
        draws_of(torch.arange(ROWS).int(), torch.zeros(ROWS), count_dropout_layers(model)),
    )
    found = []
    for used in (timer_passes, passes):
        torch.compiler.reset()  # otherwise both use the code compiled first, since guards ignore modules
        forward = torch.compile(timer_forward(model, torch.device("cpu"), torch.float32, used), backend="aot_eager")
        forecast = forward(parameters, x, draws)
        found.append([forecast, *torch.autograd.grad(forecast.square().sum(), parameters)])
        with torch.no_grad():
            found[-1].append(forward(parameters, x, None))
    names = ["forecast", *(name for name, _ in model.named_parameters()), "forecast without dropout"]
    for name, one, other in zip(names, *found, strict=True):
        if not name.endswith("key.bias"):  # its gradient is 0, because softmax ignores a common shift of all keys
            assert (one - other).norm() < 1e-5 * one.norm(), name


if __name__ == "__main__":
    main()
