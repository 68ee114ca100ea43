"""Fuzz the decoder of the peers' messages: `python tools/fuzz_messages.py --inputs 100000`.

Each input is a valid message with at most three mutations. The decoder must reject a head or return it unchanged. It
must reject a payload or return its tensors: of the template's shapes, finite, without a negative variance. If the
digest is known, only the unchanged payload may pass. Any other exception, a slow input, or memory above a limit is
a failure. A third of the inputs are heads that a member damages and then signs correctly: they may contain anything
but the name of another node.
"""

import argparse
import gc
import re
import resource
import struct
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from feda2l.wire.certificates import Authority, Identity, issue, make_authority
from feda2l.wire.message import HEAD_LIMIT, LENGTHS, PROTOCOL, TAG, Head, seal, unseal
from feda2l.wire.payload import Template, digest, pack, unpack
from feda2l.wire.rejected_message import RejectedMessage

LONGEST = 0.25  # s of CPU per input: hundreds of times the usual, because the garbage collector may run
MOST_PYTHON = 16 * HEAD_LIMIT  # bytes per input, without the input itself
MOST_RESIDENT = 32 * 1024 * 1024  # bytes for all inputs together
HUGE = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1)
ODD = (float("nan"), float("inf"), float("-inf"), -1.0, -1e-30, 0.0, -0.0, 1e-45, 3.4e38, -3.4e38)
TOKENS = [
    *(
        b"[" * 3000,
        b'{"a":' * 500,
        b"NaN",
        b"Infinity",
        b"-1",
        b"1e400",
        b"1.0",
        b"true",
        b"null",
        b"9" * 5000,
        b"9" * 4000,
    ),
    *(
        b'"round":7,',
        b'"\\ud800"',
        b"\xff\xfe",
        b"\0",
        b'"x":[],',
        b" ",
        b"}",
        b"{",
        b'"',
        b'"__metadata__":{"a":"b"},',
    ),
    *(struct.pack("<f", float("nan")), struct.pack("<f", float("-inf")), struct.pack("<f", -1.0), b"\x7f\x7f\xff\xff"),
]


class Case(NamedTuple):
    """Two messages of one template, from alice and bob; mutations copy parts of the second into the first."""

    template: Template
    payloads: tuple[bytes, bytes]
    heads: tuple[Head, Head]
    identities: tuple[Identity, Identity]
    authority: Authority


def make_case(folder: Path) -> Case:
    """Make two messages of a small model with BatchNorm statistics, and a CA with two nodes."""
    make_authority(folder)
    alice, bob = (Identity.load(issue(folder, name), folder / f"{name}.key") for name in ("alice", "bob"))
    draw = torch.Generator().manual_seed(8)
    models = [
        {
            "model.conv.weight": torch.randn(4, 3, 3, 3, generator=draw),
            "model.conv.bias": torch.randn(4, generator=draw),
            "buffers.norm.running_var": torch.rand(4, generator=draw),
            "half": torch.randn(5, generator=draw).bfloat16(),
            "mass": torch.rand(1, generator=draw, dtype=torch.float64),
        }
        for _ in range(2)
    ]
    template = Template.of(models[0])
    first, second = (bytes(pack(model, template)) for model in models)
    head = Head(PROTOCOL, "run", 3, 0, "alice", template.fingerprint, digest(first), len(first), 500, 50, 2, 2)
    other = replace(head, sender="bob", round=4, digest=digest(second))
    return Case(template, (first, second), (head, other), (alice, bob), Authority.load(folder / "ca.pem"))


def mutate(data: bytes, other: bytes, draw: Random) -> bytes:
    """Apply one mutation: to bits, bytes, lengths or numbers, or with an odd token or a part of the other message."""
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((1, 2, 8, 64)))
    match draw.randrange(9):
        case 0:
            spoilt = bytearray(data)
            for _ in range(draw.randint(1, 4) if data else 0):
                spoilt[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            return bytes(spoilt)
        case 1:
            return data[:at]
        case 2:
            return data + draw.randbytes(draw.choice((1, 8, 1000, 20000)))
        case 3:
            return data[:at] + draw.randbytes(end - at) + data[end:]
        case 4:
            return data[:at] + data[end:]
        case 5:
            token = draw.choice(TOKENS)
            return data[:at] + token + data[at + draw.choice((0, len(token))) :]
        case 6:
            return struct.pack(draw.choice("<>") + "Q", draw.choice(HUGE))[: draw.choice((2, 4, 6, 8))] + data[8:]
        case 7:
            numbers = list(re.finditer(rb"\d+", data))
            if not numbers:
                return other
            number = draw.choice(numbers)
            new = str(draw.choice((*HUGE, -1, 10**400, draw.randrange(100)))).encode()
            return data[: number.start()] + new + data[number.end() :]
        case _:
            return data[:at] + other[draw.choice((at, draw.randrange(len(other) + 1))) :]


class Meter:
    """Context manager that records the largest CPU time and Python memory of any block it measured."""

    def __init__(self) -> None:
        self.longest, self.largest = 0.0, 0
        self._start, self._before = 0.0, 0

    def __enter__(self) -> None:
        tracemalloc.reset_peak()
        self._before, self._start = tracemalloc.get_traced_memory()[0], time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.longest = max(self.longest, time.thread_time() - self._start)
        self.largest = max(self.largest, tracemalloc.get_traced_memory()[1] - self._before)


def fuzz_head(case: Case, draw: Random, meter: Meter) -> str:
    """Unseal a head that an outsider damaged; return the reason of its refusal, or "taken"."""
    sealed, other = (_seal(_text(head), name) for head, name in zip(case.heads, case.identities, strict=True))
    if draw.random() < 0.5:
        spoilt = _spoil(_join(*sealed), _join(*other), draw)
    else:
        which = draw.randrange(3)
        parts = [_spoil(part, other[n], draw) if n == which else part for n, part in enumerate(sealed)]
        spoilt = _join(*parts)
    try:
        with meter:
            head = unseal(spoilt, case.authority)
    except RejectedMessage as refused:
        return refused.reason
    assert head in case.heads, f"a forged head was taken: {head}"
    return "taken"


def fuzz_member(case: Case, draw: Random, meter: Meter) -> str:
    """Unseal a damaged head that a member, or anyone in an insecure network, sealed."""
    identity, authority = (case.identities[0], case.authority) if draw.random() < 0.5 else (None, None)
    mine, other = map(_text, case.heads)
    text = _spoil(mine, other, draw)
    spoilt = _join(*_seal(text, identity))
    try:
        with meter:
            head = unseal(spoilt, authority)
    except RejectedMessage as refused:
        return refused.reason
    assert _text(head) == text, f"a head was misread: {text!r}"
    assert identity is None or head.sender == identity.name, f"a member signed as {head.sender}"
    return "taken"


def fuzz_payload(case: Case, draw: Random, meter: Meter) -> str:
    """Unpack a damaged payload, first with the digest of the original, then as if its sender had signed the damage."""
    sent, other = case.payloads
    spoilt = _spoil(sent, other, draw)
    if draw.random() < 0.5:  # restore the right size, perhaps with an odd value
        spoilt = (spoilt + sent[len(spoilt) :])[: len(sent)]
        place = draw.choice(list(case.template.places.values()))
        at = draw.randrange(place.start, place.stop, place.dtype.itemsize)
        value = torch.tensor([draw.choice(ODD)]).to(place.dtype).view(torch.uint8).numpy().tobytes()
        spoilt = spoilt[:at] + value + spoilt[at + len(value) :]
    try:
        with meter:
            unpack(spoilt, case.template, digest(sent))
    except RejectedMessage:
        assert spoilt != sent, "a sound payload was refused"
    else:
        assert spoilt == sent, "a payload passed that was not signed"
    try:
        with meter:
            tensors = unpack(spoilt, case.template)
    except RejectedMessage as refused:
        return refused.reason
    assert pack(tensors, case.template) == spoilt, "a payload was misread"
    assert all(tensor.isfinite().all() for tensor in tensors.values()), "a value that is not finite passed"
    assert (tensors["buffers.norm.running_var"] >= 0).all(), "a negative variance passed"
    return "taken"


TARGETS: dict[str, Callable[[Case, Random, Meter], str]] = {
    "head": fuzz_head,
    "head of a member": fuzz_member,
    "payload": fuzz_payload,
}


class Figures(NamedTuple):
    """The results of one run of the fuzzer."""

    outcomes: dict[str, Counter[str]]
    meter: Meter
    resident: int  # growth of the process in bytes


def fuzz(inputs: int, seed: int) -> Figures:
    """Fuzz with this many inputs, one target after the other."""
    draw = Random(seed)
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in TARGETS}
    meter, resident = Meter(), 0
    with tempfile.TemporaryDirectory() as folder:
        case = make_case(Path(folder))
    tracemalloc.start()
    try:
        for number in range(inputs):
            if number == min(1000, inputs // 2):  # by now everything is imported and every pool is filled
                gc.collect()
                resident = _resident()
            name, target = list(TARGETS.items())[number % len(TARGETS)]
            outcomes[name][target(case, draw, meter)] += 1
    finally:
        tracemalloc.stop()
    return Figures(outcomes, meter, _resident() - resident)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the decoder of peers' messages.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    start = time.perf_counter()
    found = fuzz(asked.inputs, asked.seed)
    for name, outcomes in found.outcomes.items():
        counted = ", ".join(f"{reason} {count:,}" for reason, count in outcomes.most_common())
        print(f"{name:<17} {outcomes.total():>9,} inputs: {counted}")
    print(f"{asked.inputs:,} inputs (seed {asked.seed}) in {time.perf_counter() - start:.0f} s, no crash")
    print(f"slowest input, CPU time {1e3 * found.meter.longest:.1f} ms (cap {1e3 * LONGEST:.0f})")
    print(
        f"largest allocation by Python for one input {found.meter.largest / 1024:.0f} KiB (cap {MOST_PYTHON // 1024})"
    )
    print(f"resident memory grew by {found.resident / 2**20:.1f} MiB (cap {MOST_RESIDENT // 2**20})")
    if found.meter.longest > LONGEST or found.meter.largest > MOST_PYTHON or found.resident > MOST_RESIDENT:
        raise SystemExit("a measurement is above its cap")


def _spoil(data: bytes, other: bytes, draw: Random) -> bytes:
    for _ in range(draw.randint(0, 3)):
        data = mutate(data, other, draw)
    return data


def _text(head: Head) -> bytes:
    return seal(head, None)[LENGTHS.size :]


def _seal(text: bytes, identity: Identity | None) -> tuple[bytes, bytes, bytes]:
    return (text, identity.certificate, identity.sign(TAG + text)) if identity else (text, b"", b"")


def _join(*parts: bytes) -> bytes:
    return LENGTHS.pack(*(min(len(part), 2**16 - 1) for part in parts)) + b"".join(parts)


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
