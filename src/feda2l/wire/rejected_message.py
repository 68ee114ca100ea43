"""The error for a message or a peer that a node rejects."""


class RejectedMessage(Exception):
    """Received bytes that a node rejects. This is not a user's mistake: it is counted per sender and the run continues.

    `reason` is one of a few short, fixed phrases that can label a counter. `detail` explains more in the log. It never
    contains text that the sender wrote.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
