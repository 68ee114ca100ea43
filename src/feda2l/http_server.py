"""A small HTTP server on threads, for the monitor of a node and for the live page.

It answers GET and HEAD with what a function returns. It never reads a request's body and never serves a file.
"""

import contextlib
import select
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qsl

__all__ = ["HttpServer", "Query", "Response", "Stream", "listen"]

DEADLINE = 5.0  # seconds that a client may send nothing of its request, or accept nothing of the answer
QUEUE = 64  # connections that wait to be accepted: a burst is answered or closed at once

Query = Mapping[str, str]
Stream = Generator[bytes, None, None]
Request = socket.socket | tuple[bytes, socket.socket]  # what socketserver passes; a datagram server has the second


@dataclass(frozen=True)
class Response:
    """An answer.

    A body that is a generator is a stream. An empty part of a stream sends nothing: the server then checks whether the
    client is still connected. The server closes the generator when the client is gone.
    """

    body: bytes | Stream
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises OSError or OverflowError if the address cannot be used."""
    if not 0 <= port < 2**16:  # getaddrinfo would take it modulo 2^16
        raise OverflowError("a port is a number from 0 to 65535")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free again
        listener.bind(address)
        listener.listen(QUEUE)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


class HttpServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves on daemon threads, at most `connections` of them; more connections are closed at once.

    Args:
        listener: a listening socket, which the server closes in `server_close`.
        answer: maps the path and the query of a request to the response.
        connections: how many requests are answered at the same time.
        hosts: names that the Host header may have; another name gets status 400. This protects a server on the
            loopback interface against DNS rebinding. None accepts every name.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[str, Query], Response],
        *,
        connections: int,
        hosts: Collection[str] | None = None,
    ) -> None:
        self.answer, self.hosts = answer, hosts
        self._free = threading.BoundedSemaphore(connections)
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.address_family = listener, listener.family
        # HTTPServer would ask the name service for its own name, and might wait for it
        self.server_address = listener.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Request, client_address: object) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Print a traceback, unless the client only closed the connection or took too long."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    server_version, sys_version = "feda2l", ""  # the versions are not for strangers
    timeout = DEADLINE

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        if self.server.hosts is not None and host not in self.server.hosts:
            self.send_error(400, "Invalid host header")
            return
        path, _, query = self.path.partition("?")
        self._send(self.server.answer(path, dict(parse_qsl(query))))

    do_HEAD = do_GET  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A short text in place of the standard page; a method without an answer is 405."""
        code = 405 if code == 501 else int(code)
        allow = {"Allow": "GET, HEAD"} if code == 405 else {}
        self._send(Response(f"{message or self.responses[code][0]}\n".encode(), status=code, headers=allow))

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        headers = {"Content-Type": response.kind, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if isinstance(response.body, bytes):
            headers["Content-Length"] = str(len(response.body))
        for name, value in (headers | dict(response.headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(response.body, bytes):
            self.wfile.write(response.body)
        else:
            self._stream(response.body)

    def _stream(self, parts: Stream) -> None:
        with contextlib.closing(parts):
            for part in parts:
                if part:
                    self.wfile.write(part)
                elif self._is_closed():
                    return

    def _is_closed(self) -> bool:
        """Has the client closed the connection? What it still sends is not read."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
