"""Downloads over a real socket: complete archives are kept, anything else is reported and removed."""

import dataclasses
import gzip
import hashlib
import io
import random
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from feda2l.data import download
from feda2l.data.download import Archive, File
from feda2l.errors import FedA2LError, RunFailed

CONTENT = {"train.bin": random.Random(1).randbytes(50_000), "test.bin": random.Random(2).randbytes(20_000)}


def pack(members: dict[str, bytes | None]) -> bytes:
    """A `.tar.gz` of plain files; None makes a link to /etc/passwd."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content or b""))
    return gzip.compress(packed.getvalue(), mtime=0)


def zipped(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(
                zipfile.ZipInfo(name), text
            )  # ZipInfo has a fixed date, so every process gets the same bytes
    return content.getvalue()


INSIDE = {f"toy/{name}": content for name, content in CONTENT.items()}
WHOLE = pack({"toy/readme.html": b"hello", **INSIDE})
SERVED = {"toy.tar.gz": WHOLE, "toy.zip": zipped({"inner.zip": zipped(INSIDE)}), "train.bin": CONTENT["train.bin"]}


class Server(BaseHTTPRequestHandler):
    """Serves the archive whole, with one byte changed, or truncated, as the path requests."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "absent":
            return self.send_error(404)
        body = SERVED[self.path.split("/")[2]]
        body = body[:-100] + bytes([body[-100] ^ 1]) + body[-99:] if kind == "changed" else body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if kind == "dropped" else body)
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


FILES = {name: File(len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()}


def toy(url: str) -> Archive:
    return Archive("toy", f"{url}/toy.tar.gz", hashlib.md5(WHOLE).hexdigest(), len(WHOLE), "toy", FILES, proven=True)


def nested(url: str) -> Archive:
    """The same files in a nested archive with a sha256 checksum."""
    body = SERVED["toy.zip"]
    checksum = hashlib.sha256(body).hexdigest()
    return Archive("toy", f"{url}/toy.zip", checksum, len(body), "toy", FILES, proven=True, inner="inner.zip")


def single(url: str) -> Archive:
    """A single file that is downloaded without an archive."""
    file = FILES["train.bin"]
    return Archive("toy", f"{url}/train.bin", file.sha256, file.size, ".", {"train.bin": file}, proven=True)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_whole_archive_is_downloaded_with_progress_and_extracted(
    server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive, folder = toy(f"{server}/whole"), tmp_path / "new" / "data"
    assert download.fetch(archive, folder) == folder / "toy"
    assert "100%" in capfd.readouterr().err
    assert listing(folder) == ["toy", "toy.tar.gz", "toy/test.bin", "toy/train.bin"]
    assert all((folder / "toy" / name).read_bytes() == content for name, content in CONTENT.items())
    download.fetch(
        dataclasses.replace(archive, url="http://127.0.0.1:1/toy.tar.gz"), folder
    )  # no further download is needed


def test_a_nested_archive_is_downloaded_and_extracted(server: str, tmp_path: Path) -> None:
    archive = nested(f"{server}/whole")
    assert download.fetch(archive, tmp_path) == tmp_path / "toy"
    assert listing(tmp_path) == ["toy", "toy.zip", "toy/test.bin", "toy/train.bin"]
    assert all((tmp_path / "toy" / name).read_bytes() == content for name, content in CONTENT.items())


def test_a_single_file_is_downloaded_into_the_data_folder(server: str, tmp_path: Path) -> None:
    archive = single(f"{server}/whole")
    assert download.fetch(archive, tmp_path) == tmp_path
    assert listing(tmp_path) == ["train.bin"]
    assert "extract" not in archive.by_hand(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"short")
    with pytest.raises(FedA2LError, match=r"train.bin is damaged: expected 50000 bytes, found 5; remove it and fetch"):
        download.fetch(archive, tmp_path)


def test_files_placed_directly_in_the_data_folder_are_accepted(tmp_path: Path) -> None:
    archive = toy("http://127.0.0.1:1")
    for name, content in CONTENT.items():
        (tmp_path / name).write_bytes(content)
    assert download.fetch(archive, tmp_path) == tmp_path
    for name in CONTENT:
        (tmp_path / name).write_bytes(b"another file of that name")
    assert archive.missing(tmp_path) == list(CONTENT)


@pytest.mark.parametrize("make", [toy, nested, single])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("changed", "wrong checksum and was removed: expected {size} bytes with {sum}, found {size} bytes with "),
        ("dropped", "cannot download {url}: "),
        ("absent", "cannot download {url}: 404"),
    ],
)
def test_a_bad_download_is_reported_and_removed(
    server: str, tmp_path: Path, kind: str, message: str, make: Callable[[str], Archive]
) -> None:
    archive = make(f"{server}/{kind}")
    with pytest.raises(RunFailed) as error:
        download.fetch(archive, tmp_path)
    known = f"{'md5' if make is toy else 'sha256'} {archive.checksum}"
    assert message.format(size=archive.size, sum=known, url=archive.url) in str(error.value)
    assert f"--data {tmp_path}" in str(error.value)
    assert listing(tmp_path) == []


def test_without_network_the_message_explains_how_to_place_the_files(tmp_path: Path) -> None:
    archive = toy("http://127.0.0.1:1")  # no server listens on this port
    with pytest.raises(RunFailed) as error:
        download.fetch(archive, tmp_path)
    for part in (archive.url, str(tmp_path / "toy.tar.gz"), str(tmp_path / "toy"), "--data", "FEDA2L_DATA"):
        assert part in str(error.value)
    assert listing(tmp_path) == []


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_download as test
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
try:
    test.download.fetch(test.toy(sys.argv[2]), Path(sys.argv[3]))
except test.RunFailed as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "placed"), [(10_000, False), (30_000, True)])
def test_a_full_disk_is_reported_and_the_partial_file_removed(
    server: str, tmp_path: Path, limit: int, placed: bool
) -> None:
    """A limit on the file size simulates a full disk, during the download and during the extraction."""
    if placed:
        (tmp_path / "toy.tar.gz").write_bytes(WHOLE)
    before = listing(tmp_path)
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-c", LIMITED, folder, f"{server}/whole", str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"the disk of {tmp_path} is full" in done.stdout
    assert listing(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_reported(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FedA2LError, match=r"cannot write to .*file/data: Not a directory; choose another folder"):
        download.fetch(toy(f"{server}/whole"), tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"toy/train.bin": CONTENT["train.bin"]}, "does not contain toy/test.bin"),
        ({"toy/train.bin": None}, "toy/train.bin should have 50000 bytes, found not a plain file"),
        ({"toy/train.bin": b"short"}, "toy/train.bin should have 50000 bytes, found 5 bytes"),
        ({"../toy/train.bin": CONTENT["train.bin"]}, "does not contain toy/train.bin"),
    ],
)
def test_an_archive_with_unexpected_members_is_rejected(
    tmp_path: Path, members: dict[str, bytes | None], message: str
) -> None:
    (tmp_path / "toy.tar.gz").write_bytes(pack(members))
    with pytest.raises(FedA2LError, match=message):
        download.locate(toy("http://127.0.0.1:1"), tmp_path)
    assert listing(tmp_path) == ["toy.tar.gz"]


def test_unexpected_members_are_never_written(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    evil = dict.fromkeys(("../evil", "../../evil", str(tmp_path / "evil"), "toy/evil", "toy/../evil"), b"evil")
    (inner / "toy.tar.gz").write_bytes(pack({**evil, **{f"./toy/{name}": text for name, text in CONTENT.items()}}))
    download.locate(toy("http://127.0.0.1:1"), inner)
    assert listing(tmp_path) == ["a", "a/b", "a/b/toy", "a/b/toy.tar.gz", "a/b/toy/test.bin", "a/b/toy/train.bin"]


@pytest.mark.parametrize("damaged", [WHOLE[: len(WHOLE) // 2], b"<html>not found</html>", b""])
def test_a_truncated_archive_is_reported(tmp_path: Path, damaged: bytes) -> None:
    archive = toy("http://127.0.0.1:1")
    (tmp_path / "toy.tar.gz").write_bytes(damaged)
    expected = f"not a whole archive .*expected {archive.size} bytes, found {len(damaged)}"
    with pytest.raises(FedA2LError, match=expected):
        download.locate(archive, tmp_path)
    with pytest.raises(FedA2LError, match=f"not the official archive: expected md5 {archive.checksum}"):
        download.fetch(archive, tmp_path)
    assert listing(tmp_path) == ["toy.tar.gz"]


def test_the_data_folder_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDA2L_DATA", str(tmp_path / "environment"))
    assert download.data_folder(tmp_path) == tmp_path
    assert download.data_folder() == tmp_path / "environment"
    monkeypatch.delenv("FEDA2L_DATA")
    assert download.data_folder().name == "feda2l"
    assert download.data_folder("~/data") == Path.home() / "data"
