"""The page and its stream of events, on the loopback and for nobody else."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse
from starlette.routing import Route

from feda2l.watch.follow import Follower

HOST = "127.0.0.1"
TICK = 1.0  # seconds between two looks at the files, while somebody watches
CLOSE = 3  # seconds that a connection gets to end
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Live:
    """Looks at the files while there are listeners, and wakes these when something is new."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.closed = False
        self._listeners = 0
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def events(self, chosen: str | None) -> AsyncIterator[str]:
        """All that is known, then what is new, for as long as the page is open; `chosen` is shown in detail."""
        yield "retry: 1000\n\n"
        seen = detailed = -1
        self._listeners += 1
        try:
            await self._look()  # nobody may have looked for hours
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._keep_looking())
            while not self.closed:
                news, follower = self._news, self.follower
                if (version := follower.version) > seen:
                    text, seen = follower.since(seen), version
                    yield f"event: news\ndata: {text}\n\n"
                if chosen is not None and follower.changed(chosen) > detailed:
                    detailed = follower.changed(chosen)
                    text = await asyncio.to_thread(follower.detail, chosen)
                    yield f"event: detail\ndata: {text}\n\n"
                    continue
                await news.wait()
        finally:
            self._listeners -= 1

    async def _keep_looking(self) -> None:
        while self._listeners and not self.closed:
            await asyncio.sleep(TICK)
            await self._look()

    async def _look(self) -> None:
        if await asyncio.to_thread(self.follower.look):
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Let every stream end."""
        self.closed = self.follower.closed = True
        self._wake()


def application(live: Live, page: str) -> Starlette:
    async def show(request: Request) -> HTMLResponse:
        return HTMLResponse(page, headers=HEADERS)

    async def stream(request: Request) -> StreamingResponse:
        events = live.events(request.query_params.get("run"))
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    # a page elsewhere that makes its own name lead here (DNS rebinding) asks for that name, and is refused
    ours = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/", show), Route("/events", stream)], middleware=[ours])


class LiveServer(uvicorn.Server):
    """Serves until Ctrl-C, and ends its streams before it waits for them; Ctrl-C is raised again once all is closed."""

    def __init__(self, follower: Follower, page: str) -> None:
        self.live = Live(follower)
        self.loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            application(self.live, page),
            log_config=None,  # the process's logging is not ours to set
            log_level="error",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            loop="asyncio",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=CLOSE,
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.live.close)
        super().handle_exit(sig, frame)
