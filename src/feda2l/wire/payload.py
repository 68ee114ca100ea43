"""Convert the tensors of a message to bytes and back, in the safetensors format, with one pass over the values.

A payload has 8 bytes of header length, a JSON header, and the values of all tensors:

    payload = length (uint64, little-endian) | header | values

`safetensors` writes the same bytes. Both sides have the same model, so the receiver knows every byte except the values
in advance. It does not parse the header of a payload; it compares it.
"""

import hashlib
import json
import math
import struct
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import torch
from blake3 import blake3
from torch import Tensor

from feda2l.wire.rejected_message import RejectedMessage

Payload = bytes | bytearray | memoryview

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}  # in the order of the payload
ALIGNMENT = 8  # bytes; the header is padded with spaces to a multiple of it
VARIANCES = "running_var"
PIECE = 1 << 20  # values

with warnings.catch_warnings():  # torch warns once that read-only bytes could be written to; this module only reads
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class TensorPlace(NamedTuple):
    """The dtype and shape of a tensor, and the position of its values in the payload: bytes [start, stop)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Template:
    """The layout of every message of a run: names, dtypes and shapes, and so the size. A node knows it from its model.

    `limit` is the exact size of a payload in bytes. `fingerprint` is the sha256 of `head`, the first bytes, and of
    `about`, other facts on which neighbours must agree. Neighbours compare it before the first round.

    >>> template = Template({"weight": (torch.float32, (2, 3))})
    >>> template.limit - len(template.head)
    24
    """

    def __init__(self, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], about: str = "") -> None:
        if odd := [f"{name} ({dtype})" for name, (dtype, _) in tensors.items() if dtype not in DTYPES]:
            raise ValueError(f"a message holds only floating-point tensors, not {', '.join(odd)}")
        ranks = list(DTYPES)
        entries, places, end = {}, {}, 0
        # wide values first, so that all values are aligned; then by name
        for name in sorted(tensors, key=lambda name: (ranks.index(tensors[name][0]), name.encode())):
            dtype, shape = tensors[name]
            start, end = end, end + math.prod(shape) * dtype.itemsize
            entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            places[name] = TensorPlace(dtype, shape, start, end)
        header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        header += b" " * (-len(header) % ALIGNMENT)
        self.head = struct.pack("<Q", len(header)) + header
        ahead = len(self.head)
        self.places = {n: p._replace(start=ahead + p.start, stop=ahead + p.stop) for n, p in places.items()}
        self.limit = ahead + end
        self.fingerprint = hashlib.sha256(self.head + about.encode()).hexdigest()

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], wire: torch.dtype = torch.float32, about: str = "") -> "Template":
        """The template of these tensors; float32 values are sent as `wire`, others (a push-sum mass) unchanged."""
        shapes = {
            name: (wire if tensor.dtype == torch.float32 else tensor.dtype, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        return cls(shapes, about)

    def views(self, payload: Payload) -> dict[str, Tensor]:
        """The tensors of a payload of the correct size, as views of its bytes."""
        values = torch.frombuffer(payload, dtype=torch.uint8)
        return {
            name: values[place.start : place.stop].view(place.dtype).view(place.shape)
            for name, place in self.places.items()
        }


def pack(tensors: Mapping[str, Tensor], template: Template | None = None, into: bytearray | None = None) -> bytearray:
    """The payload of these tensors: the same bytes for the same values, converted and copied in one pass.

    `into` is an old payload whose memory is reused unless it is still being read. The page faults of new memory take
    three times as long as the copy.
    """
    template = template or Template.of(tensors)
    if tensors.keys() != template.places.keys():
        raise ValueError(f"not the template's tensors: {sorted(tensors.keys() ^ template.places.keys())}")
    payload = into if into is not None and _is_free(into, template.limit) else bytearray(template.limit)
    payload[: len(template.head)] = template.head
    for name, view in template.views(payload).items():
        if view.shape != tensors[name].shape:  # copy_ would broadcast
            raise ValueError(f"{name} has shape {list(tensors[name].shape)}, the template has {list(view.shape)}")
        view.copy_(tensors[name])
    return payload


def _is_free(payload: bytearray, size: int) -> bool:
    """Does it have this size and no view? Python does not allow a bytearray with views to be resized."""
    try:
        payload.append(0)
    except BufferError:
        return False
    payload.pop()
    return len(payload) == size


def digest(payload: Payload) -> str:
    """BLAKE3 in hexadecimal. It takes 9 ms for 45 MB; sha256 takes 25 ms, and more without CPU instructions for it."""
    return blake3(payload).hexdigest()


def unpack(
    payload: Payload, template: Template, promised: str | None = None, most: float = math.inf
) -> dict[str, Tensor]:
    """Check a received payload and return its tensors as read-only views of its bytes.

    Args:
        payload: The received bytes.
        template: The layout that the payload must have.
        promised: The digest in the signed head; None skips this check.
        most: The largest accepted norm.

    Raises:
        RejectedMessage: with one of these reasons: "size" (differs from the template), "digest" (differs from the
            head), "layout" (a name, dtype, shape or offset differs), "not finite" (a value is infinite or NaN),
            "negative variance", or "norm" (the norm is larger than `most`).
    """
    payload = memoryview(payload).cast("B")
    if payload.nbytes != template.limit:
        raise RejectedMessage("size", f"{payload.nbytes} bytes instead of {template.limit}")
    if promised is not None and digest(payload) != promised:
        raise RejectedMessage("digest", "the bytes differ from the signed digest")
    if payload[: len(template.head)] != template.head:
        raise RejectedMessage("layout", "names, dtypes or shapes differ from this node's model")
    tensors = template.views(payload)
    if (size := math.hypot(*(_checked_norm(name, tensor) for name, tensor in tensors.items()))) > most:
        raise RejectedMessage("norm", f"{size:.3g} is more than {most:.3g}")
    return tensors


def _checked_norm(name: str, tensor: Tensor) -> float:
    size = _norm(tensor)
    if not math.isfinite(size):
        raise RejectedMessage("not finite", name)
    if name.endswith(VARIANCES) and tensor.numel() and tensor.min() < 0:
        raise RejectedMessage("negative variance", name)
    return size


def norm(tensors: Mapping[str, Tensor]) -> float:
    """||x|| over all values of all tensors, correct to at least two digits; non-finite if any value is non-finite."""
    return math.hypot(*map(_norm, tensors.values()))


def _norm(tensor: Tensor) -> float:
    """||x||, finite if and only if every value is finite.

    A sum of squares is finite only if every value is finite, and it is much faster than `isfinite`. It can overflow
    although every value is finite. Then it is computed again in float64, where squares of smaller floats cannot
    overflow. Where squares of float64 values overflow, max |x| replaces the norm. Both work in pieces because torch
    may copy its input.
    """
    size = float(torch.linalg.vector_norm(tensor))
    if math.isfinite(size):
        return size
    pieces = tensor.reshape(-1).split(PIECE)
    size = math.hypot(*(float(torch.linalg.vector_norm(piece, dtype=torch.float64)) for piece in pieces))
    if math.isfinite(size):
        return size
    largest = [float(torch.linalg.vector_norm(piece, math.inf)) for piece in pieces]
    return max(largest) if all(map(math.isfinite, largest)) else math.inf
