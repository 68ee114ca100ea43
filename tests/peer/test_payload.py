"""Payloads: the same bytes as safetensors, and every received value is checked."""

import math

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from feda2l.wire.payload import DTYPES, PIECE, Template, digest, norm, pack, unpack
from feda2l.wire.rejected_message import RejectedMessage


def model() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    return {
        "model.conv.weight": torch.randn(4, 3, 2, 2, generator=draw),
        "model.conv.bias": torch.randn(4, generator=draw),
        "buffers.norm.running_var": torch.rand(4, generator=draw),
        "mass": torch.rand((), generator=draw, dtype=torch.float64),
    }


def reason(payload: bytes | bytearray, template: Template, promised: str | None = None) -> str:
    with pytest.raises(RejectedMessage) as refused:
        unpack(payload, template, promised)
    return refused.value.reason


def test_a_payload_equals_the_bytes_of_safetensors() -> None:
    tensors = model() | {'é"\n': torch.ones(3), "none": torch.zeros(0, 3), "half": torch.ones(2).bfloat16()}
    tensors |= {"float16": torch.ones(1).half()}
    payload = pack(tensors)
    assert payload == save(tensors)
    assert len(payload) == Template.of(tensors).limit
    assert all(torch.equal(load(bytes(payload))[name], tensor) for name, tensor in tensors.items())


def test_the_format_of_a_payload_does_not_change() -> None:
    payload = pack({"b": torch.tensor([1.0, -2.0]), "a": torch.tensor(0.5, dtype=torch.float64)})
    header = (
        b'{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
    )
    assert payload == b"\x70" + bytes(7) + header.ljust(0x70) + bytes.fromhex("000000000000e03f0000803f000000c0")
    # the digest of the empty input, from the test vectors of the BLAKE3 specification
    assert digest(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_unpacking_returns_the_packed_tensors_without_a_copy() -> None:
    tensors = model()
    template = Template.of(tensors)
    payload = pack(dict(reversed(tensors.items())), template)
    assert payload == pack(tensors)  # the order of the tensors does not matter
    for kind in (bytes, bytearray, memoryview):
        received = unpack(kind(payload), template, digest(payload))
        assert {n: t.dtype for n, t in received.items()} == {n: t.dtype for n, t in tensors.items()}
        assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())
    received = unpack(payload, template)
    payload[-1] ^= 0x80
    assert any(not torch.equal(received[name], tensor) for name, tensor in tensors.items())


def test_permuted_tensors_are_packed_by_value_and_buffers_are_reused() -> None:
    tensors = model()
    permuted = tensors | {
        "model.conv.weight": tensors["model.conv.weight"].contiguous(memory_format=torch.channels_last)
    }
    template = Template.of(tensors)
    old = bytearray(b"\xff" * template.limit)
    assert pack(permuted, template, into=old) is old
    assert old == pack(tensors)
    assert pack(permuted, template, into=bytearray(3)) == old


def test_only_float32_is_sent_in_fewer_bits() -> None:
    tensors = model()
    template = Template.of(tensors, torch.bfloat16)
    received = unpack(pack(tensors, template), template)
    assert torch.equal(received["model.conv.bias"], tensors["model.conv.bias"].bfloat16())
    assert torch.equal(received["mass"], tensors["mass"])
    assert template.fingerprint != Template.of(tensors).fingerprint
    assert reason(pack(tensors), template) == "size"


def test_tensors_that_differ_from_the_template_are_not_packed() -> None:
    tensors = model()
    template = Template.of(tensors)
    with pytest.raises(ValueError, match="mass"):
        pack({name: tensor for name, tensor in tensors.items() if name != "mass"}, template)
    with pytest.raises(ValueError, match="bias"):
        pack(tensors | {"model.conv.bias": torch.zeros(1)}, template)
    with pytest.raises(ValueError, match="int64"):
        Template.of({"steps": torch.tensor(3)})


def test_different_models_have_different_fingerprints() -> None:
    base = Template({"a": (torch.float32, (2, 3)), "b": (torch.float32, ())})
    same = Template({"b": (torch.float32, ()), "a": (torch.float32, (2, 3))})
    assert base.fingerprint == same.fingerprint
    for other in (
        {"a": (torch.float32, (3, 2)), "b": (torch.float32, ())},
        {"a": (torch.float32, (2, 3)), "c": (torch.float32, ())},
        {"a": (torch.float32, (2, 3))},
        {"a": (torch.float64, (2, 3)), "b": (torch.float32, ())},
    ):
        assert Template(other).fingerprint != base.fingerprint


def test_size_digest_and_layout_must_match_the_template() -> None:
    tensors = model()
    template, payload = Template.of(tensors), bytes(pack(tensors))
    for wrong in (b"", payload[:-1], payload + b"\0", payload[:8]):
        assert reason(wrong, template) == "size"
    assert reason(payload, template, "0" * 64) == "digest"
    for old, new in (
        (b"model.conv.bias", b"model.conv.bios"),
        (b'"F32"', b'"I32"'),
        (b"[4,3,2,2]", b"[3,4,2,2]"),
        (b"[0,8]", b"[8,0]"),
        (b'"dtype"', b'"dtypo"'),
        (b'{"mass"', b' "mass"'),
    ):
        assert old in payload
        assert reason(payload.replace(old, new, 1), template) == "layout"
    for length in (0, 1, 2**31, 2**63, 2**64 - 1):
        assert reason(length.to_bytes(8, "little") + payload[8:], template) == "layout"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", model())
def test_non_finite_values_are_rejected(name: str, value: float) -> None:
    tensors = model()
    tensors[name].view(-1)[-1] = value
    with pytest.raises(RejectedMessage, match=name) as refused:
        unpack(pack(tensors), Template.of(tensors))
    assert refused.value.reason == "not finite"


def test_only_negative_variances_are_rejected() -> None:
    tensors = model()
    tensors["buffers.norm.running_var"][2] = -1e-30
    assert reason(pack(tensors), Template.of(tensors)) == "negative variance"
    tensors["buffers.norm.running_var"][2] = -0.0
    unpack(pack(tensors), Template.of(tensors))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 33, 1000, PIECE + 1])
def test_a_norm_is_finite_if_and_only_if_every_value_is(dtype: torch.dtype, size: int) -> None:
    largest = torch.finfo(dtype).max
    values = torch.full((size,), largest, dtype=dtype)
    assert math.isfinite(norm({"x": values}))
    if dtype != torch.float64:
        assert norm({"x": values}) == pytest.approx(largest * math.sqrt(size), rel=0.01)
    for at in {0, size // 2, size - 1}:
        for value in (math.nan, math.inf, -math.inf):
            for rest in (0, largest):
                spoilt = torch.full((size,), rest, dtype=dtype)
                spoilt[at] = value
                assert not math.isfinite(norm({"x": spoilt}))


def test_messages_with_a_large_norm_are_rejected() -> None:
    assert norm({"a": torch.full((3,), 2.0), "b": torch.tensor([2.0], dtype=torch.float64)}) == pytest.approx(4)

    def send(value: float) -> None:
        sent = {"a": torch.full((4,), value)}
        unpack(pack(sent), Template.of(sent), most=15.0)  # the norm is 2 |value|

    send(7.4)
    for value in (7.6, 3e38):
        with pytest.raises(RejectedMessage) as refused:
            send(value)
        assert refused.value.reason == "norm"


def test_old_memory_is_reused_unless_it_is_being_read() -> None:
    first, second = ({"a": torch.full((4,), value)} for value in (1.0, 2.0))
    old = pack(first)
    assert pack(second, into=old) is old
    reader = memoryview(old)
    fresh = pack(first, into=old)
    assert fresh is not old
    assert reader == pack(second)
    assert pack({"a": torch.zeros(9)}, into=fresh) is not fresh  # another size
