"""Counter-based randomness: one generator per (seed, node, round, purpose).

No generator is shared and the global one is not used. What a node draws therefore does not depend on the runtime, on
the order of the nodes or on where a run was resumed.
"""

import hashlib

import numpy as np
import torch

__all__ = ["derive_seed", "numpy_generator", "torch_generator"]


def derive_seed(seed: int, *, node: int = 0, round: int = 0, purpose: str) -> int:
    """Return a 63-bit seed, a hash of the arguments: equal arguments give equal draws on every machine."""
    text = f"{seed}/{node}/{round}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def torch_generator(seed: int, *, node: int = 0, round: int = 0, purpose: str) -> torch.Generator:
    """Return a new torch generator on the CPU for one purpose of one node in one round."""
    return torch.Generator().manual_seed(derive_seed(seed, node=node, round=round, purpose=purpose))


def numpy_generator(seed: int, *, node: int = 0, round: int = 0, purpose: str) -> np.random.Generator:
    """Return a new NumPy generator for one purpose of one node in one round."""
    return np.random.default_rng(derive_seed(seed, node=node, round=round, purpose=purpose))
