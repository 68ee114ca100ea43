"""The errors a user can cause, and mend."""

__all__ = ["Busy", "FedA2LError", "RunFailed"]


class FedA2LError(Exception):
    """A user's mistake or a failed run, said in words that tell what, where and what to do.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    exit_code = 2
    said = False  # does another process of the job print it?
    see = ""  # its section of the troubleshooting page, which `feda2l explain SEE` prints

    def __init__(self, message: str = "", *, see: str | None = None) -> None:
        super().__init__(message)
        self.see = self.see if see is None else see
        if self.see:
            self.add_note(f"more: feda2l explain {self.see}")


class RunFailed(FedA2LError):
    """The request was sound but the run could not be finished (a diverged loss, a dead worker, a full disk)."""

    exit_code = 1


class Busy(FedA2LError):
    """Another process works in the folder."""

    see = "folder-in-use"
