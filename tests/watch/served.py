"""The live view of a folder, as `feda2l watch` serves it, in a thread of the test."""

import signal
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
    """A server with its `address`; ended as Ctrl-C ends it."""
    serve.TICK = 0.1
    listener = listen(HOST, port)
    server: Any = LiveServer(Follower(folder), live_page())
    server.address = f"http://{HOST}:{listener.getsockname()[1]}/"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield server
    finally:
        server.handle_exit(signal.SIGINT, None)
        thread.join()
        listener.close()
