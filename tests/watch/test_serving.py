"""The server of the live page: accepted hosts, served content, and its end."""

import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from growing import begin, grow
from served import served

from feda2l.errors import FedA2LError
from feda2l.watch import command
from feda2l.watch.command import listen, watch

HOST = "127.0.0.1"


def ask(address: str, path: str = "/", method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def test_serves_only_the_page_and_the_stream(serve: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    address = serve(tmp_path).address
    page = ask(address)
    assert (page.status, page.headers.get_content_type()) == (200, "text/html")
    assert page.headers["Cache-Control"] == "no-store"
    assert "connect-src 'self'" in page.headers["Content-Security-Policy"]
    for path in ("/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/events/x", "//etc/passwd"):
        assert ask(address, path).status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(address, method=method).status == 405
    assert "no run" not in ask(address, "/events?run=../secret.txt").readline().decode()


@pytest.mark.parametrize("path", ["/", "/events"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", ""])
def test_other_host_names_are_rejected(serve: Callable[..., Any], tmp_path: Path, host: str, path: str) -> None:
    address = serve(tmp_path).address
    assert ask(address, path, host=host).status == 400
    assert ask(address, host="localhost:1234").status == 200  # a port that ssh forwards


def test_files_are_not_read_while_no_page_is_open(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = serve(tmp_path)
    stream = urllib.request.urlopen(server.address + "events")
    assert stream.headers.get_content_type() == "text/event-stream"
    assert [stream.readline() for _ in range(3)] == [b"retry: 1000\n", b"\n", b"event: news\n"]
    assert server.listeners == 1
    stream.close()
    while server.listeners:
        pass  # limited by the timeout of the test
    seen, server.follower.refresh = [], lambda: seen.append(1)
    time.sleep(0.3)  # three ticks
    assert not seen


def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        stream = urllib.request.urlopen(server.address + "events")
        stream.readline()
    stream.read()  # read to the regular end; a broken stream would raise IncompleteRead


def test_details_are_sent_to_pages_that_select_a_run(serve: Callable[..., Any], tmp_path: Path) -> None:
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 3))
    folder.close()
    stream = urllib.request.urlopen(serve(tmp_path).address + "events?run=one")
    told = b"".join(stream.readline() for _ in range(7))
    assert b"event: detail\n" in told
    assert b'"layers":["a","b"]' in told
    stream.close()


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with listen(HOST, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(FedA2LError, match=rf"--port {port}: cannot be used \(Address already in use\)") as refused:
            watch(tmp_path, port, open_browser=False)
        assert refused.value.exit_code == 2
    with pytest.raises(FedA2LError, match="--port 70000: cannot be used"):
        listen(HOST, 70_000)


def test_the_next_free_port_is_used_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(HOST, 0) as first:
        monkeypatch.setattr(command, "PORT", first.getsockname()[1])
        with listen(HOST, None) as second:
            assert second.getsockname()[0] == HOST
            assert second.getsockname()[1] != first.getsockname()[1]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match="nowhere: is not a folder; name the folder of a run"):
        watch(tmp_path / "nowhere", None, open_browser=False)


def test_a_missing_extra_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(FedA2LError, match=r"pip install 'feda2l\[watch\]'"):
        watch(tmp_path, None, open_browser=False)


def test_ctrl_c_ends_the_server_with_an_open_page(tmp_path: Path) -> None:
    process = start(tmp_path)
    try:
        address = process.stdout.readline().split(": ", 1)[1].strip()
        stream = urllib.request.urlopen(address + "events")
        stream.readline()
        with pytest.raises(HTTPError):
            urllib.request.urlopen(address + "favicon.ico")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()


def start(folder: Path) -> Any:
    command = [sys.executable, "-m", "feda2l", "watch", str(folder), "--port", "0"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
