"""The form of errors and warnings: location, message and help topic; each warning is issued once."""

import warnings

import pytest

from feda2l.errors import Busy, FedA2LError, FedA2LWarning, warn_once
from feda2l.spec.spec import Spec


def test_an_error_names_the_file_the_key_the_value_and_the_topic() -> None:
    error = FedA2LError("at least 2 rounds are needed", file="my.toml", key="rates.window", value=1, see="spec")
    assert str(error) == "my.toml: rates.window = 1: at least 2 rounds are needed"
    assert error.__notes__ == ["See: feda2l explain spec"]
    assert str(FedA2LError("is empty", file="my.toml")) == "my.toml: is empty"
    assert str(FedA2LError("expected a name", key="data.name", value=None)) == "data.name = None: expected a name"


def test_an_error_without_a_topic_has_no_note_and_a_class_may_set_a_topic() -> None:
    assert not hasattr(FedA2LError("wrong"), "__notes__")
    assert Busy("runs/a: in use").__notes__ == ["See: feda2l explain folder-in-use"]


def test_a_wrong_value_in_a_spec_raises_an_error_of_this_form() -> None:
    with pytest.raises(FedA2LError) as raised:
        Spec.parse({"rates": {"window": 1}}, "my.toml")
    assert str(raised.value).startswith("my.toml: rates.window = 1: ")
    assert raised.value.see == "spec"


def test_a_warning_is_issued_once() -> None:
    with pytest.warns(FedA2LWarning, match="no peer") as caught:
        warn_once("no peer", stacklevel=1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_once("no peer")
    with pytest.warns(FedA2LWarning, match="another"):
        warn_once("another")
