"""What a node says of a message or a peer that it does not trust."""


class RejectedMessage(Exception):
    """Bytes from outside that are not taken. Not a user's mistake: it is counted, attributed, and the run goes on.

    `reason` is one of a few short, fixed phrases, fit to label a counter; `detail` says more for the log and never
    holds what the sender wrote.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
