"""The live page and its stream of server-sent events, on the loopback interface only."""

import socket
import threading
import time
from dataclasses import replace

from feda2l.http_server import HttpServer, Query, Response, Stream
from feda2l.watch.follow import Follower

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
TICK = 1.0  # seconds between two looks at the files, while a page is open
CONNECTIONS = 64  # answered at the same time; a browser keeps at most six to one address
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class LiveServer(HttpServer):
    """Serves the page at `/` and the stream at `/events`. The files are read only while a stream is open."""

    def __init__(self, listener: socket.socket, follower: Follower, page: str) -> None:
        self.follower = follower
        self.listeners = 0  # open streams
        self._page = page.encode()
        self._lock = threading.Lock()
        self._next_refresh = 0.0
        self._closed = threading.Event()
        super().__init__(listener, self._respond, connections=CONNECTIONS, hosts=HOSTS)

    def server_close(self) -> None:
        """Stop listening, and end every stream."""
        self.follower.closed = True
        self._closed.set()
        super().server_close()

    def _respond(self, path: str, query: Query) -> Response:
        if path == "/":
            response = Response(self._page, "text/html; charset=utf-8")
        elif path == "/events":
            response = Response(self._events(query.get("run")), "text/event-stream; charset=utf-8")
        else:
            response = Response(b"Not Found\n", status=404)
        return replace(response, headers=HEADERS)

    def _events(self, chosen: str | None) -> Stream:
        """All that is known, then what is new, for as long as the page is open; `chosen` is shown in detail."""
        yield b"retry: 1000\n\n"
        seen = detailed = -1
        self._count(1)
        try:
            while not self._closed.is_set():
                self._refresh()
                follower = self.follower
                if (version := follower.version) > seen:
                    text, seen = follower.since(seen), version
                    yield _event("news", text)
                if chosen is not None and (changed := follower.changed(chosen)) > detailed:
                    text, detailed = follower.detail(chosen), changed
                    yield _event("detail", text)
                yield b""
                self._closed.wait(TICK)
        finally:
            self._count(-1)

    def _refresh(self) -> None:
        """Look at the files, at most once per tick for all streams."""
        with self._lock:
            if time.monotonic() >= self._next_refresh:
                self.follower.refresh()
                self._next_refresh = time.monotonic() + TICK

    def _count(self, change: int) -> None:
        with self._lock:
            self.listeners += change


def _event(name: str, text: str) -> bytes:
    return f"event: {name}\ndata: {text}\n\n".encode()
