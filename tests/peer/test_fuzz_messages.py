"""The decoder reads any bytes correctly or rejects them: a short version of `make fuzz`."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feda2l.wire.message import FIELDS, HEAD_LIMIT, LENGTHS, TAG, seal, unseal
from feda2l.wire.payload import Template, norm, pack, unpack
from feda2l.wire.rejected_message import RejectedMessage
from tools import fuzz_messages
from tools.fuzz_messages import Case, fuzz, make_case

SHORT = settings(max_examples=150, deadline=None)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("certs"))


def test_mutated_messages() -> None:
    found = fuzz(2000, seed=0)
    reasons = {reason for outcomes in found.outcomes.values() for reason in outcomes}
    usual = {"head", "head too large", "field", "certificate", "signature", "size", "layout", "not finite"}
    assert reasons >= usual | {"taken", "negative variance"}
    assert found.meter.longest < fuzz_messages.LONGEST
    assert 0 < found.meter.largest < fuzz_messages.MOST_PYTHON
    assert found.resident < fuzz_messages.MOST_RESIDENT


@SHORT
@given(data=st.binary(max_size=HEAD_LIMIT + 10), secure=st.booleans())
def test_random_bytes_are_rejected_as_a_head(case: Case, data: bytes, secure: bool) -> None:
    with pytest.raises(RejectedMessage):
        unseal(data, case.authority if secure else None)


NAMES = st.text(max_size=5)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | NAMES
VALUES = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(NAMES, PLAIN, max_size=2)


@SHORT
@given(field=st.sampled_from(FIELDS), value=VALUES)
def test_any_value_of_a_field_is_read_exactly_or_rejected(case: Case, field: str, value: object) -> None:
    text = json.dumps(asdict(case.heads[0]) | {field: value}, separators=(",", ":")).encode()[:HEAD_LIMIT]
    alice = case.identities[0]
    parts = (text, alice.certificate, alice.sign(TAG + text))
    sealed = LENGTHS.pack(*map(len, parts)) + b"".join(parts)
    try:
        head = unseal(sealed, case.authority)
    except RejectedMessage:
        return
    assert getattr(head, field) == value
    assert seal(head, alice) == sealed


@SHORT
@given(der=st.binary(max_size=600))
def test_random_bytes_are_rejected_as_a_certificate(case: Case, der: bytes) -> None:
    with pytest.raises(RejectedMessage):
        case.authority.check(der)


@SHORT
@given(
    values=st.binary(min_size=24, max_size=24), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64])
)
def test_any_values_are_read_exactly_or_rejected(values: bytes, dtype: torch.dtype) -> None:
    template = Template({"x.running_var": (dtype, (24 // dtype.itemsize,))})
    payload = template.head + values
    expected = torch.frombuffer(bytearray(values), dtype=dtype)
    valid = bool((expected.isfinite() & (expected >= 0)).all())
    try:
        received = unpack(payload, template)
    except RejectedMessage:
        assert not valid
        return
    assert valid
    assert math.isfinite(norm(received)) or dtype == torch.float64
    assert pack(received, template) == payload


@SHORT
@given(data=st.binary(max_size=400))
def test_random_bytes_are_rejected_as_a_payload(case: Case, data: bytes) -> None:
    with pytest.raises(RejectedMessage):
        unpack(data, case.template)
    if data and not case.payloads[0].startswith(data):
        with pytest.raises(RejectedMessage):
            unpack(data + case.payloads[0][len(data) :], case.template)
