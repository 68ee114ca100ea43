"""Log connections that TLS or the access rules reject. zenoh only prints them; here they become lines of the log."""

import os
import re
import threading
import time

import zenoh

from feda2l.peer.log import NodeLog

WANTED = "off,zenoh_link_tls=warn,zenoh::net::routing::interceptor::access_control=info"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NOT_NEAR = "did not match any configured ACL subject"
QUIET = 10.0  # seconds without a second line for the same reason, so that repeated attempts do not fill the log


def watch_for_strangers(log: NodeLog) -> None:
    """Log rejected links from now on, and links with a certificate that does not belong to a neighbour.

    zenoh writes to stdout, which a node does not use. So stdout becomes a pipe that a thread reads.
    """
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)
    os.environ.pop("RUST_LOG", None)  # it would replace our filter
    zenoh.init_log_from_env_or(WANTED)
    threading.Thread(target=_listen, args=(read, log), name="strangers", daemon=True).start()


def _listen(read: int, log: NodeLog) -> None:
    logged: dict[str, float] = {}  # when each reason was logged last
    suppressed: dict[str, int] = {}  # how many lines were suppressed since then
    with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            reason = reason_of(line)
            now = time.monotonic()
            if not reason or now - logged.get(reason, -QUIET) < QUIET:
                suppressed[reason] = suppressed.get(reason, 0) + 1
                continue
            logged[reason] = now
            log.warning("stranger", refused=reason, times=suppressed.pop(reason, 0) + 1)


def reason_of(line: str) -> str:
    """Why zenoh rejected a stranger, from a line of its output; "" for any other line.

    >>> reason_of("WARN zenoh_link_tls::unicast: received fatal alert: UnknownCA. Hint: increase the limit.")
    'received fatal alert: UnknownCA'
    >>> reason_of("WARN zenoh_link_tls::unicast: certificate expired: verification time 1763338000 (UNIX), but ...")
    'certificate expired'
    """
    text = COLOUR.sub("", line)
    if NOT_NEAR in text:
        return "not a neighbour's certificate"
    _, tls, reason = text.partition("zenoh_link_tls::unicast: ")
    # cut the time of day: every moment would be a new reason and would be logged
    return re.split(r"\. Hint|: verification time", reason)[0].strip()[:100] if tls else ""
