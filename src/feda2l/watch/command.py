"""`feda2l watch`: choose a port, say where, serve until Ctrl-C."""

import contextlib
import os
import socket
import webbrowser
from pathlib import Path

from feda2l.errors import FedA2LError

PORT = 8765  # the first that is tried
TRIES = 20
POLITE = 10  # how far this process steps back behind the runs it looks at


def watch(folder: Path, port: int | None, *, open_browser: bool) -> None:
    """Serve the live page of an existing folder or bundle; its runs may still be to come."""
    if not folder.is_dir():
        raise FedA2LError(
            f"{folder}: is not a folder; name a run's, a study's or a swarm's, or a folder in which one will begin",
            see="no-run",
        )
    try:
        from feda2l.watch.serve import HOST, LiveServer
    except ImportError as error:
        raise FedA2LError(
            f"watch needs starlette and uvicorn ({error}): pip install 'feda2l[watch]'", see="missing-extra"
        ) from error
    from feda2l.watch.follow import Follower
    from feda2l.watch.page import live_page

    page = live_page()
    with listen(HOST, port) as listener, contextlib.suppress(KeyboardInterrupt):
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        print(f"{folder}: {address}\nCtrl-C ends this view; what runs goes on without it", flush=True)
        os.nice(POLITE)
        if open_browser:
            webbrowser.open(address)
        LiveServer(Follower(folder), page).run(sockets=[listener])


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket at the port, which must be free; without one, at the first free of a few."""
    if port is not None:
        return _listen(host, port)
    for candidate in range(PORT, PORT + TRIES):
        with contextlib.suppress(FedA2LError):
            return _listen(host, candidate)
    return _listen(host, 0)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port just left is free again
    try:
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or str(error)
        raise FedA2LError(
            f"--port {port}: cannot be used ({why}); choose another, or leave --port out for a free one",
            see="port-in-use",
        ) from error
    return listener
