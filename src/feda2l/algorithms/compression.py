"""Compress messages: top-k, random-k and quantization of rows."""

import torch
from torch import Tensor

from feda2l.randomness import torch_generator

BLOCK = 64  # columns that share a scale; tensors are aligned to it, so a block never spans two tensors


def top_k(rows: Tensor, count: int) -> Tensor:
    """Keep the `count` entries of largest absolute value of each row and set the others to 0."""
    places = rows.abs().topk(count, dim=1, sorted=False).indices
    return torch.zeros_like(rows).scatter_(1, places, rows.gather(1, places))


def random_k(rows: Tensor, count: int, columns: Tensor, seed: int, round: int, ids: tuple[int, ...]) -> Tensor:
    """Keep `count` random entries of each row; receivers draw the same positions from (seed, node, round)."""
    kept = torch.zeros_like(rows)
    for row, node in enumerate(ids):
        generator = torch_generator(seed, node=node, round=round, purpose="random_k")
        places = columns[torch.randperm(len(columns), generator=generator)[:count].to(columns.device)]
        kept[row, places] = rows[row, places]
    return kept


def quantise(rows: Tensor, bits: int) -> Tensor:
    """Round each entry to one of 2^bits - 1 evenly spaced values, scaled to the largest entry of its block of 64."""
    blocks = rows.unflatten(1, (-1, BLOCK))
    levels = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(dim=2, keepdim=True) / levels
    # a block of zeros has scale 0, and 0 / tiny is 0
    steps = (blocks / scale.clamp_min(torch.finfo(rows.dtype).tiny)).round()
    values: Tensor = (steps * scale).flatten(1)
    return values
