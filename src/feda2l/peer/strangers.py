"""Who was turned away before it could say anything: TLS and access rules refuse strangers below us, and zenoh only
prints it. What it prints becomes lines of the node's log."""

import os
import re
import threading
import time

import zenoh

from feda2l.peer.log import NodeLog

WANTED = "off,zenoh_link_tls=warn,zenoh::net::routing::interceptor::access_control=info"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NOT_NEAR = "did not match any configured ACL subject"
QUIET = 10.0  # seconds: whoever knocks all the time fills no log


def watch_for_strangers(log: NodeLog) -> None:
    """Log from now on who is refused a link, or gets one with a certificate that is no neighbour's.

    zenoh writes to stdout, and a node has nothing to say there: it becomes a pipe that a thread reads.
    """
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)
    os.environ.pop("RUST_LOG", None)  # it would replace what we want to hear, and nobody else hears zenoh
    zenoh.init_log_from_env_or(WANTED)
    threading.Thread(target=_listen, args=(read, log), name="strangers", daemon=True).start()


def _listen(read: int, log: NodeLog) -> None:
    said: dict[str, float] = {}
    unsaid: dict[str, int] = {}
    with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            reason = reason_of(line)
            now = time.monotonic()
            if not reason or now - said.get(reason, -QUIET) < QUIET:
                unsaid[reason] = unsaid.get(reason, 0) + 1
                continue
            said[reason] = now
            log.warning("stranger", refused=reason, times=unsaid.pop(reason, 0) + 1)


def reason_of(line: str) -> str:
    """Why a stranger was refused, from a line of zenoh's; "" for any other line.

    >>> reason_of("WARN zenoh_link_tls::unicast: received fatal alert: UnknownCA. Hint: increase the limit.")
    'received fatal alert: UnknownCA'
    >>> reason_of("WARN zenoh_link_tls::unicast: certificate expired: verification time 1763338000 (UNIX), but ...")
    'certificate expired'
    """
    text = COLOUR.sub("", line)
    if NOT_NEAR in text:
        return "not a neighbour's certificate"
    _, tls, words = text.partition("zenoh_link_tls::unicast: ")
    # without the time of day: each moment would be a reason of its own, and logged
    return re.split(r"\. Hint|: verification time", words)[0].strip()[:100] if tls else ""
