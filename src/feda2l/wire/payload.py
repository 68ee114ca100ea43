"""The tensors of a message as bytes, and back: safetensors, one pass each, and nothing taken on trust.

A payload is 8 bytes of header length, a JSON header, and the values one after the other:

    payload = length (uint64, little-endian) | header | values

It is byte for byte what `safetensors` writes. Both sides have the same model, so the receiver knows every byte but the
values beforehand: it parses nothing, it compares.
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

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # as they lie
ALIGNMENT = 8  # bytes; the header is padded with spaces to a multiple of it
VARIANCES = "running_var"
PIECE = 1 << 20  # values

with warnings.catch_warnings():  # torch says once that it can write to read-only bytes; nobody here does
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class TensorPlace(NamedTuple):
    """What a tensor is, and where its values lie in the payload: bytes [start, stop)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Template:
    """What every message of a run looks like, known from a node's own: names, dtypes, shapes, and so the size.

    `limit` is the exact size of a payload in bytes; `fingerprint` is the sha256 of `head`, its first bytes, and of what
    else neighbours must agree on (`about`), which they compare before the first round.

    >>> template = Template({"weight": (torch.float32, (2, 3))})
    >>> template.limit - len(template.head)
    24
    """

    def __init__(self, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], about: str = "") -> None:
        if odd := [f"{name} ({dtype})" for name, (dtype, _) in tensors.items() if dtype not in DTYPES]:
            raise ValueError(f"only floating-point tensors travel, not {', '.join(odd)}")
        ranks = list(DTYPES)
        entries, places, end = {}, {}, 0
        # wide values first, so that all lie aligned; then by name
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
        """The template of these tensors; float32 values travel as `wire`, others (a push-sum mass) as they are."""
        shapes = {
            name: (wire if tensor.dtype == torch.float32 else tensor.dtype, tuple(tensor.shape))
            for name, tensor in tensors.items()
        }
        return cls(shapes, about)

    def views(self, payload: Payload) -> dict[str, Tensor]:
        """The tensors of a payload of the right size, as views of its bytes."""
        values = torch.frombuffer(payload, dtype=torch.uint8)
        return {
            name: values[place.start : place.stop].view(place.dtype).view(place.shape)
            for name, place in self.places.items()
        }


def pack(tensors: Mapping[str, Tensor], template: Template | None = None, into: bytearray | None = None) -> bytearray:
    """The payload of these tensors: the same bytes for the same values; converting and copying is one pass.

    `into` is an old payload, written over unless somebody still reads it: to fault in fresh memory takes three times
    as long as the copy.
    """
    template = template or Template.of(tensors)
    if tensors.keys() != template.places.keys():
        raise ValueError(f"not the template's tensors: {sorted(tensors.keys() ^ template.places.keys())}")
    payload = into if into is not None and _is_free(into, template.limit) else bytearray(template.limit)
    payload[: len(template.head)] = template.head
    for name, view in template.views(payload).items():
        if view.shape != tensors[name].shape:  # copy_ would broadcast
            raise ValueError(f"{name} is {list(tensors[name].shape)}, the template says {list(view.shape)}")
        view.copy_(tensors[name])
    return payload


def _is_free(payload: bytearray, size: int) -> bool:
    """Is it of this size, and does nobody hold a view of it? Python lets no one resize what is viewed."""
    try:
        payload.append(0)
    except BufferError:
        return False
    payload.pop()
    return len(payload) == size


def digest(payload: Payload) -> str:
    """BLAKE3, hexadecimal: 45 MB in 9 ms where sha256 takes 25, and more on processors without its instructions."""
    return blake3(payload).hexdigest()


def unpack(
    payload: Payload, template: Template, promised: str | None = None, most: float = math.inf
) -> dict[str, Tensor]:
    """The tensors of a payload from outside, as they are on the wire: views of its bytes, only to be read.

    Refused is what differs from the template in size ("size"), from the digest that its head promised ("digest"), or
    from the template in any byte of name, dtype, shape or offset ("layout"), a value that is infinite or no number
    ("not finite"), a variance below 0 ("negative variance"), and what is larger than `most` in norm ("norm").
    """
    payload = memoryview(payload).cast("B")
    if payload.nbytes != template.limit:
        raise RejectedMessage("size", f"{payload.nbytes} bytes instead of {template.limit}")
    if promised is not None and digest(payload) != promised:
        raise RejectedMessage("digest", "not the bytes that were signed")
    if payload[: len(template.head)] != template.head:
        raise RejectedMessage("layout", "names, dtypes or shapes are not those of our model")
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
    """||x|| over all values of all tensors, to two digits or better; not finite when one of them is not."""
    return math.hypot(*map(_norm, tensors.values()))


def _norm(tensor: Tensor) -> float:
    """||x||, finite if and only if every value is.

    A sum of squares is finite only if every value is, and costs a fraction of `isfinite`. It may overflow although
    every value is finite; then it is taken again in float64, where squares of smaller floats cannot overflow, and
    where those of float64 do, max |x| stands for it: both in pieces, for they may copy what they are given.
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
