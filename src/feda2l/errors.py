"""Errors that a user can cause and fix, and warnings. An error names what is wrong, where, and where to read more."""

import warnings

__all__ = ["Busy", "FedA2LError", "FedA2LWarning", "RunFailed", "located", "warn_once"]

_NOT_GIVEN = object()
_warned: set[str] = set()


class FedA2LError(Exception):
    """A mistake of the user or a failed run; the message says what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with `exit_code`.

    Args:
        message: what is wrong and what would be right.
        file, key, value: where it is wrong; the message starts with those that are given (see `located`).
        see: the section of the troubleshooting page that `feda2l explain SEE` prints.
    """

    exit_code = 2
    printed = False  # has another process of the job printed the message?
    see = ""

    def __init__(
        self, message: str = "", *, file: object = "", key: str = "", value: object = _NOT_GIVEN, see: str | None = None
    ) -> None:
        super().__init__(located(message, file=file, key=key, value=value))
        self.see = self.see if see is None else see
        if self.see:
            self.add_note(f"See: feda2l explain {self.see}")


class RunFailed(FedA2LError):
    """The request was valid but the run could not finish: a non-finite loss, a dead worker, a full disk."""

    exit_code = 1


class Busy(FedA2LError):
    """Another process works in the folder."""

    see = "folder-in-use"


class FedA2LWarning(UserWarning):
    """Something works differently from what the user may expect."""


def located(message: str, *, file: object = "", key: str = "", value: object = _NOT_GIVEN) -> str:
    """The message after its file, key and value.

    >>> located("the window needs at least 2 rounds (default 5)", file="spec.toml", key="rates.window", value=1)
    'spec.toml: rates.window = 1: the window needs at least 2 rounds (default 5)'
    """
    setting = key if value is _NOT_GIVEN else f"{key} = {value!r}"
    return ": ".join(part for part in (str(file), setting, message) if part)


def warn_once(message: str, *, stacklevel: int = 2) -> None:
    """Issue a `FedA2LWarning`, each message once per process. `stacklevel` is that of `warnings.warn` in the caller."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, FedA2LWarning, stacklevel=stacklevel + 1)
