"""The forward pass of k Timers at once. A node's dropout does not depend on the nodes that train beside it."""

from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from feda2l.engines import timer_passes
from feda2l.engines.batched_product import product
from feda2l.engines.stacked import trains_as_written
from feda2l.engines.timer_passes import DropoutMask
from feda2l.models.timer import Block, Timer, positions

TOKENS = 16  # maximum tokens per window, since the explicit attention costs tokens x tokens x width


def covers_timer(model: Timer) -> bool:
    """True if the model is an unmodified Timer with head "flatten", few tokens, no hooks and no frozen parameters."""
    written = all(getattr(type(model), name) is getattr(Timer, name) for name in ("forward", "encode", "_rescaled"))
    few = not model.rolls and model.head.in_features <= TOKENS * model.embed.out_features
    return written and few and all(type(block) is Block for block in model.blocks) and trains_as_written(model)


def timer_forward(
    model: Timer, device: torch.device, dtype: torch.dtype, passes: ModuleType | None = None
) -> Callable[[Sequence[Tensor], Tensor, Tensor | None], Tensor]:
    """Return the forward pass of k Timers: windows [k, batch, length, channels] to [k, batch, horizon, channels].

    `passes` is the module of operations between matrix products: `timer_passes` or `cuda_passes`. None chooses the
    fastest that supports the model. Without draws there is no dropout.
    """
    names = [name for name, _ in model.named_parameters()]
    tokens = model.head.in_features // model.embed.out_features
    # computed here, because a captured step must not create it
    table = positions(tokens, model.embed.out_features, device, dtype)
    chance, heads_of = model.dropout.p, [block.heads for block in model.blocks if isinstance(block, Block)]
    passes = passes or _fastest(model, device, dtype, tokens)

    def forward(parameters: Sequence[Tensor], x: Tensor, draws: Tensor | None) -> Tensor:
        tensors = dict(zip(names, parameters, strict=True))

        def dropout(site: int) -> DropoutMask:
            return DropoutMask(draws, site, chance)

        def normed(x: Tensor, update: Tensor, bias: str, norm: str, site: int) -> Tensor:
            weight, shift = tensors[f"{norm}.weight"], tensors[f"{norm}.bias"]
            result: Tensor = passes.normed(x, update, tensors[bias], weight, shift, dropout(site))
            return result

        mean = x.mean(dim=2, keepdim=True)
        scale = (x.var(dim=2, keepdim=True, correction=0) + 1e-5).sqrt()
        sequences = ((x - mean) / scale).transpose(2, 3)  # [k, batch, channels, length]
        values = sequences.reshape(len(x), -1, model.patch).to(tensors["embed.weight"].dtype)
        values = product(values, tensors["embed.weight"]).unflatten(1, (-1, tokens))
        values = dropout(0).of(values + table).flatten(1, 2)
        for number, heads in enumerate(heads_of):
            block, site = f"blocks.{number}", 4 * number
            parts = [f"{block}.{part}" for part in ("query", "key", "value")]
            projected = [product(values, tensors[f"{part}.weight"]) for part in parts]
            mixed = passes.attended(
                projected, [tensors[f"{part}.bias"] for part in parts], tokens, heads, dropout(site + 1)
            )
            update = product(mixed, tensors[f"{block}.output.weight"])
            values = normed(values, update, f"{block}.output.bias", f"{block}.norm1", site + 2)
            hidden = product(values, tensors[f"{block}.expand.weight"])
            hidden = passes.activated(hidden, tensors[f"{block}.expand.bias"], dropout(site + 3))
            update = product(hidden, tensors[f"{block}.contract.weight"])
            values = normed(values, update, f"{block}.contract.bias", f"{block}.norm2", site + 4)
        plain = F.layer_norm(values, values.shape[-1:])
        values = plain * tensors["norm.weight"].unsqueeze(1) + tensors["norm.bias"].unsqueeze(1)
        forecast = product(values.unflatten(1, (-1, tokens)).flatten(2), tensors["head.weight"], tensors["head.bias"])
        rescaled: Tensor = forecast.unflatten(1, sequences.shape[1:3]).transpose(2, 3) * scale + mean
        return rescaled

    return forward


def count_dropout_layers(model: Timer) -> int:
    """Return the number of dropouts in a forward pass: one after the embedding and four per block."""
    return 1 + 4 * len(model.blocks)


def _fastest(model: Timer, device: torch.device, dtype: torch.dtype, tokens: int) -> ModuleType:
    """Return the Triton kernels on a GPU if they support the model, else the PyTorch operations."""
    if device.type != "cuda" or dtype == torch.float64 or not _fills_tiles(model, tokens):
        return timer_passes
    from feda2l.engines import cuda_passes

    return cuda_passes


def _fills_tiles(model: Timer, tokens: int) -> bool:
    """True if the model's sizes fit the tiles of the kernels, whose sides are powers of 2."""
    sides = [tokens, model.embed.out_features]
    for block in model.blocks:
        assert isinstance(block, Block)
        sides += [block.heads, block.expand.out_features]
    return all(side & (side - 1) == 0 for side in sides)
