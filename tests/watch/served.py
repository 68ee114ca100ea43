"""The live page of a folder, served in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feda2l.watch import serve
from feda2l.watch.command import listen
from feda2l.watch.follow import Follower
from feda2l.watch.page import live_page
from feda2l.watch.serve import HOST, LiveServer


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[Any]:
    """A server with its `address`. It ends in the same way as with Ctrl-C."""
    serve.TICK = 0.1
    with LiveServer(listen(HOST, port), Follower(folder), live_page()) as server:
        address = f"http://{HOST}:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        server.address = address  # type: ignore[attr-defined]
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
