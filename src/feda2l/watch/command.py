"""`feda2l watch`: choose a port, print the address, serve until Ctrl-C."""

import contextlib
import os
import socket
import webbrowser
from pathlib import Path

from feda2l import http_server
from feda2l.errors import FedA2LError
from feda2l.watch.follow import Follower
from feda2l.watch.page import live_page
from feda2l.watch.serve import HOST, LiveServer

PORT = 8765  # the first port to try
TRIES = 20
POLITE = 10  # how much the priority of this process is lowered, so that runs go first


def watch(folder: Path, port: int | None, *, open_browser: bool) -> None:
    """Serve the live page of an existing folder or bundle until Ctrl-C. Runs may start in the folder later."""
    if not folder.is_dir():
        raise FedA2LError(
            f"{folder}: is not a folder; name the folder of a run, a study or a swarm, or a folder for future runs",
            see="no-run",
        )
    page = live_page()
    with LiveServer(listen(HOST, port), Follower(folder), page) as server, contextlib.suppress(KeyboardInterrupt):
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{folder}: {address}\nCtrl-C stops this view; the runs continue", flush=True)
        os.nice(POLITE)
        if open_browser:
            webbrowser.open(address)
        server.serve_forever()


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket at `port`, which must be free. Without a port it is the first free one of a few."""
    if port is not None:
        return _listen(host, port)
    for candidate in range(PORT, PORT + TRIES):
        with contextlib.suppress(FedA2LError):
            return _listen(host, candidate)
    return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return http_server.listen(host, port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FedA2LError(
            f"--port {port}: cannot be used ({why}); choose another port, or omit --port to use a free one",
            see="port-in-use",
        ) from error
