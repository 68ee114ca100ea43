"""Tiny ImageNet from a small archive with the same layout: loading, errors and the cached file."""

import dataclasses
import hashlib
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from feda2l import data
from feda2l.data import catalog, download, pictures, tinyimagenet
from feda2l.data.tinyimagenet import TINYIMAGENET, TinyImageNet
from feda2l.errors import FedA2LError, RunFailed

SMALL = dataclasses.replace(TINYIMAGENET, classes=3, train=12, test=2)
IDS = ("n03", "n01", "n02")  # in the order of wnids.txt, which is not sorted
TOP = "tiny-imagenet-200"
CACHED = "tiny-imagenet-200.safetensors"
GREY, DAMAGED, WIDE = (f"{TOP}/train/{name}" for name in (
    "n01/images/n01_3.JPEG", "n02/images/n02_5.JPEG", "n03/images/n03_11.JPEG"
))  # fmt: skip


def jpeg(shade: tuple[int, int, int] | int, size: tuple[int, int] = (64, 64)) -> bytes:
    packed = io.BytesIO()
    Image.new("L" if isinstance(shade, int) else "RGB", size, shade).save(packed, "JPEG", quality=100)
    return packed.getvalue()


def shade(name: str) -> int:
    """A different red for each image, far enough from the next to survive JPEG compression."""
    prefix, _, number = Path(name).stem.rpartition("_")
    return {"n01": 0, "n02": 60, "n03": 120, "val": 180}[prefix] + 5 * int(number)


def members() -> dict[str, bytes]:
    """The files of a complete archive. One image is grey."""
    annotated = [f"val_{number}.JPEG\t{IDS[number % 3]}\t0\t0\t9\t9" for number in range(6)]
    files = {
        "wnids.txt": "\n".join(IDS).encode() + b"\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn03\tgoldfish\nn99\tentity\n",
        "val/val_annotations.txt": "\n".join([*annotated[3:], *annotated[2::-1]]).encode() + b"\n",
        "test/images/test_0.JPEG": jpeg(0),
    }
    names = [f"train/{word_id}/images/{word_id}_{number}.JPEG" for word_id in IDS for number in range(12)]
    names += [f"val/images/val_{number}.JPEG" for number in range(6)]
    files |= {name: jpeg((shade(name), 0, 0)) for name in names}
    return {f"{TOP}/{name}": content for name, content in files.items()} | {GREY: jpeg(77)}


def with_faults(files: dict[str, bytes]) -> dict[str, bytes]:
    return files | {DAMAGED: files[DAMAGED][:400], WIDE: jpeg((0, 0, 0), (65, 64))}


def place(folder: Path, files: dict[str, bytes], kind: str = "zip") -> TinyImageNet:
    """Put the files into the data folder, as an archive or extracted, and return a source with a matching md5."""
    folder.mkdir(exist_ok=True)
    if kind == "folder":
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return SMALL
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    md5 = hashlib.md5((folder / "tiny-imagenet-200.zip").read_bytes()).hexdigest()
    return dataclasses.replace(SMALL, archive=dataclasses.replace(SMALL.archive, checksum=md5))


@pytest.mark.parametrize("kind", ["zip", "folder"])
@pytest.mark.parametrize("processes", [0, 2])
def test_images_labels_and_names_match_the_files(
    tmp_path: Path, kind: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "CHUNK", 5)
    images = tinyimagenet.load(place(tmp_path, members(), kind), tmp_path, processes=processes)
    assert (images.name, images.input, images.classes, images.scale) == ("tinyimagenet", (3, 64, 64), 3, 255.0)
    assert (images.train_x.dtype, images.train_y.dtype) == (torch.uint8, torch.int64)
    assert (images.mean, images.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert images.class_names == (
        "goldfish n01",
        "bullfrog",
        "goldfish n03",
    )  # in the order of the ids; duplicate words get their id
    assert images.train_y.tolist() == [0] * 12 + [1] * 12 + [2] * 12
    order = sorted(range(12), key=str)  # alphabetical order: 0, 1, 10, 11, 2, ...
    expected = torch.tensor([60 * label + 5 * number for label in range(3) for number in order])
    grey = order.index(3)
    assert torch.equal(images.train_x[grey], torch.full((3, 64, 64), 77, dtype=torch.uint8))
    coloured = torch.arange(36) != grey
    reds = images.train_x[:, 0].float().mean((1, 2))
    assert (reds - expected)[coloured].abs().max() < 2
    assert images.train_x[coloured, 1:].max() < 5
    assert images.test_y.tolist() == [{"n01": 0, "n02": 1, "n03": 2}[IDS[number % 3]] for number in range(6)]
    assert (images.test_x[:, 0].float().mean((1, 2)) - torch.arange(6) * 5 - 180).abs().max() < 2


def test_faults_are_counted_and_reported_and_nothing_is_cached(tmp_path: Path) -> None:
    files = with_faults(members())
    del files[f"{TOP}/train/n01/images/n01_0.JPEG"]
    files[f"{TOP}/train/n01/images/n01_1.JPEG"] = b"<html>"
    files[f"{TOP}/val/val_annotations.txt"] = files[f"{TOP}/val/val_annotations.txt"].replace(b"n01", b"n99", 1)
    with pytest.raises(FedA2LError) as error:
        tinyimagenet.load(place(tmp_path, files), tmp_path)
    text = str(error.value)
    assert "5 of 42 pictures cannot be used" in text
    for part in (
        f"{TOP}/train/n01/images/n01_0.JPEG (missing)",
        f"{TOP}/train/n01/images/n01_1.JPEG (not a picture)",
        f"{DAMAGED} (damaged: ",
        f"{WIDE} (is 65 x 64, expected 64 x 64)",
        f"{TOP}/val/images/val_4.JPEG (its class n99 is not in wnids.txt)",
        "skip_corrupt=True",
        f"remove {tmp_path / 'tiny-imagenet-200.zip'} and fetch it again",
    ):
        assert part in text
    assert os.listdir(tmp_path) == ["tiny-imagenet-200.zip"]
    with pytest.raises(FedA2LError, match=f"remove {tmp_path / 'b' / TOP} and fetch it again"):
        tinyimagenet.load(place(tmp_path / "b", files, "folder"), tmp_path / "b")


def test_only_the_first_of_many_faults_are_listed(tmp_path: Path) -> None:
    files = {name: content for name, content in members().items() if "/n02/" not in name}
    source = place(tmp_path, files)
    with pytest.raises(FedA2LError, match=r"12 of 42 pictures cannot be used: .*n02_0.JPEG .*n02_2.* and 7 more"):
        tinyimagenet.load(source, tmp_path)
    with pytest.raises(FedA2LError, match="no train picture of n02 is left"):
        tinyimagenet.load(source, tmp_path, skip_corrupt=True)


def test_a_byte_changed_in_the_archive_is_a_fault(tmp_path: Path) -> None:
    source = place(tmp_path, members())
    path = tmp_path / source.archive.name
    content, changed = path.read_bytes(), members()[f"{TOP}/val/images/val_5.JPEG"]
    at = content.index(changed) + len(changed) - 40  # Pillow would read it; only the CRC in the archive detects it
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(FedA2LError, match=r"1 of 42 .*val_5\.JPEG \(damaged: Bad CRC-32"):
        tinyimagenet.load(source, tmp_path)


def test_faults_are_skipped_on_request_and_reported_each_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = with_faults(members())
    whole = tinyimagenet.load(place(tmp_path / "whole", members()), tmp_path / "whole")
    annotations = f"{TOP}/val/val_annotations.txt"
    files[annotations] = b"".join(line for line in files[annotations].splitlines(True) if b"val_2" not in line)
    source = place(tmp_path / "a", files)
    message = "3 of 42 pictures cannot be used: .* left out as requested, 34 training and 5 test pictures are kept"
    for skip in (True, False):  # from the archive, then from the cached file, which repeats the report
        images = tinyimagenet.load(source, tmp_path / "a", skip_corrupt=skip)
        err = capfd.readouterr().err
        assert re.search(message, err)
        assert "val_2.JPEG (no line in val_annotations.txt)" in err
        names = [f"{word_id}_{number}" for word_id in sorted(IDS) for number in sorted(range(12), key=str)]
        kept = torch.tensor([name not in ("n02_5", "n03_11") for name in names])
        assert torch.equal(images.train_x, whole.train_x[kept])
        assert torch.equal(images.train_y, whole.train_y[kept])
        tested = torch.tensor([0, 1, 3, 4, 5])
        assert torch.equal(images.test_x, whole.test_x[tested])
        assert torch.equal(images.test_y, whole.test_y[tested])


def change_annotations(change: Callable[[bytes], bytes]) -> dict[str, bytes]:
    files = members()
    files[f"{TOP}/val/val_annotations.txt"] = change(files[f"{TOP}/val/val_annotations.txt"])
    return files


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (change_annotations(lambda text: text + b"val_6.JPEG\tn01\t0"), "line 7: expected a picture .*'val_6.JPEG"),
        (change_annotations(lambda text: text + b"val_0.JPEG\t\t0"), "line 7: expected a picture"),
        (change_annotations(lambda text: b"\n" + text), "line 1: expected a picture and its class, found ''"),
        (change_annotations(lambda text: text + b"val_3.JPEG\tn01\n"), "line 7: val_3.JPEG has a second line"),
        (change_annotations(lambda text: b"\xff" + text), "val_annotations.txt cannot be read"),
        (change_annotations(lambda text: text.split(b"\n", 1)[1]), r"1 of 42 .*val_3.JPEG \(no line in val_annot"),
        (members() | {f"{TOP}/wnids.txt": b"n01\nn02\nn02\n"}, "wnids.txt should name 3 classes, found 2"),
        ({k: v for k, v in members().items() if "words" not in k}, "does not contain tiny-imagenet-200/words.txt"),
    ],
)
def test_mistakes_in_text_files_are_reported(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(FedA2LError, match=message):
        tinyimagenet.load(place(tmp_path, files), tmp_path)


def test_a_missing_text_file_is_reported(tmp_path: Path) -> None:
    source = place(tmp_path, {k: v for k, v in members().items() if "wnids" not in k}, "folder")
    with pytest.raises(FedA2LError, match=r"wnids\.txt cannot be read: .*No such file"):
        tinyimagenet.load(source, tmp_path)


def test_a_class_without_a_word_has_its_id(tmp_path: Path) -> None:
    source = place(tmp_path, members() | {f"{TOP}/words.txt": b"n02\tbullfrog\n\n"})
    assert tinyimagenet.load(source, tmp_path).class_names == ("n01", "bullfrog", "n03")


def test_the_cached_file_is_sufficient_and_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place(tmp_path, members())
    first = tinyimagenet.load(source, tmp_path)
    (tmp_path / "plain").touch()
    assert (tmp_path / CACHED).stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert stat.S_ISREG((tmp_path / CACHED).stat().st_mode)
    (tmp_path / source.archive.name).unlink()
    monkeypatch.setitem(sys.modules, "PIL", None)  # nothing is decoded
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    second = tinyimagenet.load(source, tmp_path)
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.class_names == second.class_names
    before = (tmp_path / CACHED).read_bytes()
    second.train_x.zero_()  # copy on write: the file does not change
    assert (tmp_path / CACHED).read_bytes() == before


def rewrite(path: Path, **about: str) -> None:
    """Change the metadata of the cached file."""
    with safe_open(path, "pt") as file:
        known = file.metadata()
    save_file(load_file(path), path, known | about)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: rewrite(path, version="0"), "version 0, expected 2"),
        (lambda path: rewrite(path, left_out=json.dumps({"a": "b"})), "43 pictures, expected 42"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is not used"),
        (lambda path: path.write_bytes(b""), "is not used"),
        (lambda path: save_file({"x": torch.zeros(1)}, path, {"version": "2"}), "is not used"),
    ],
)
def test_an_invalid_cached_file_is_replaced(
    tmp_path: Path, spoil: Callable[[Path], None], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = place(tmp_path, members())
    tinyimagenet.load(source, tmp_path)
    good = (tmp_path / CACHED).read_bytes()
    spoil(tmp_path / CACHED)
    bad = (tmp_path / CACHED).read_bytes()
    images = tinyimagenet.load(source, tmp_path, keep=False)
    assert message in capfd.readouterr().err
    assert len(images.train_y) == 36
    assert (tmp_path / CACHED).read_bytes() == bad  # keep=False writes nothing
    tinyimagenet.load(source, tmp_path)
    assert len((tmp_path / CACHED).read_bytes()) == len(good)
    capfd.readouterr()
    tinyimagenet.load(source, tmp_path)
    assert capfd.readouterr().err == ""
    spoil(tmp_path / CACHED)
    (tmp_path / source.archive.name).unlink()
    with pytest.raises(FedA2LError, match=f"{CACHED} cannot be used, and the archive is missing; to place it by hand"):
        tinyimagenet.load(source, tmp_path)


INTERRUPTED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_tinyimagenet as test
def wait(*_):
    print("written", flush=True)
    time.sleep(60)
test.tinyimagenet.os.replace = wait
test.tinyimagenet.load(test.SMALL, Path(sys.argv[2]))
"""


def test_an_interrupted_write_leaves_no_file_that_is_read(tmp_path: Path) -> None:
    source = place(tmp_path, members())
    command = [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.kill()
    assert not (tmp_path / CACHED).exists()
    assert len(list(tmp_path.glob(f".partial-*/{CACHED}"))) == 1
    assert len(tinyimagenet.load(source, tmp_path).train_y) == 36
    assert (tmp_path / CACHED).exists()


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_tinyimagenet as test
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
print(len(test.tinyimagenet.load(test.SMALL, Path(sys.argv[2])).train_y))
"""


def test_a_full_disk_is_reported_and_the_images_are_used(tmp_path: Path) -> None:
    place(tmp_path, members())
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "36\n"
    assert "the decoded pictures are not kept" in done.stderr
    assert os.listdir(tmp_path) == ["tiny-imagenet-200.zip"]


def test_a_truncated_archive_is_reported(tmp_path: Path) -> None:
    source = place(tmp_path, members())
    path = tmp_path / source.archive.name
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(FedA2LError, match=f"{path} is not a whole archive .* remove it and fetch it again"):
        tinyimagenet.load(source, tmp_path)
    with pytest.raises(FedA2LError, match=f"not the official archive: expected md5 {source.archive.checksum}"):
        download.fetch(source.archive, tmp_path)


def test_without_pillow_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place(tmp_path, members())
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(FedA2LError, match=re.escape("pip install 'feda2l[images]'")):
        tinyimagenet.load(source, tmp_path)


def test_a_killed_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place(tmp_path, members())
    parent = os.getpid()

    def killed(*_: object) -> str:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return "missing"

    monkeypatch.setattr(pictures, "_picture", killed)
    with pytest.raises(RunFailed, match="was killed, perhaps because memory ran out"):
        tinyimagenet.load(source, tmp_path, processes=2)


def test_the_catalogue_fetches_verifies_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place(tmp_path, members())
    entry = dataclasses.replace(
        data.find("tinyimagenet"),
        archive=source.archive,
        load=lambda folder: tinyimagenet.load(source, folder),
        check=lambda folder: tinyimagenet.load(source, folder, keep=False),
    )
    monkeypatch.setitem(catalog.CATALOG, "tinyimagenet", entry)
    path, cached = tmp_path / source.archive.name, tmp_path / CACHED
    assert data.fetch("tinyimagenet", tmp_path) == path
    verdict = data.verify("tinyimagenet", tmp_path)
    assert verdict.official
    assert verdict.lines == [f"ok  {path.name}: the official archive, md5 {source.archive.checksum}"]
    assert not cached.exists()
    data.load("tinyimagenet", tmp_path)
    assert data.fetch("tinyimagenet", tmp_path) == cached
    verdict = data.verify("tinyimagenet", tmp_path)
    assert verdict.official
    assert "decoded from the official archive" in verdict.lines[1]
    assert "36 training and 6 test pictures of 3 x 64 x 64, 3 classes" in verdict.lines[2]

    empty = tmp_path / "empty"
    verdict = data.verify("tinyimagenet", empty)
    assert not verdict.ok
    assert verdict.lines[0].startswith(f"BAD {empty / TOP}: missing; to place it by hand, save http://cs231n")
    with pytest.raises(FedA2LError, match=f"{empty / TOP} is missing; `feda2l data fetch tinyimagenet --data {empty}`"):
        data.load("tinyimagenet", empty)

    extracted = tmp_path / "extracted"
    place(extracted, members(), "folder")
    verdict = data.verify("tinyimagenet", extracted)
    assert verdict.ok
    assert not verdict.official
    assert "it is unknown whether the pictures are the official ones" in verdict.lines[0]
    assert os.listdir(extracted) == [TOP]
    assert data.fetch("tinyimagenet", extracted) == extracted / TOP
    data.load("tinyimagenet", extracted)
    assert not data.verify("tinyimagenet", extracted).official
    (extracted / CACHED).write_bytes(b"")
    assert tinyimagenet.origin(extracted / CACHED) is None
    assert data.verify("tinyimagenet", extracted).ok  # the extracted folder still exists
    (extracted / WIDE).write_bytes(b"")
    verdict = data.verify("tinyimagenet", extracted)
    assert not verdict.ok
    assert f"1 of 42 pictures cannot be used: {WIDE} (not a picture)" in verdict.lines[1]


def test_the_real_entry_is_the_published_set() -> None:
    entry = data.find("tinyimagenet")
    assert entry.archive is TINYIMAGENET.archive
    assert TINYIMAGENET.pictures == 110_000
    assert entry.model == "resnet18"


@pytest.mark.parametrize(
    ("mode", "shape"), [("1", (4, 6)), ("L", (4, 6)), ("LA", (4, 6)), ("P", (4, 6, 3)), ("RGBA", (4, 6, 3))]
)
def test_image_modes(tmp_path: Path, mode: str, shape: tuple[int, ...]) -> None:
    Image.new(mode, (6, 4)).save(tmp_path / "a.png")
    (image,) = pictures.decode(tmp_path, ["a.png"])
    assert isinstance(image, np.ndarray)
    assert image.shape == shape


def test_images_with_16_bits_are_rejected(tmp_path: Path) -> None:
    Image.new("I;16", (6, 4)).save(tmp_path / "a.png")
    (image,) = pictures.decode(tmp_path, ["a.png"])
    assert "has more than 8 bits per channel (mode I;16" in image
    (tmp_path / "b.png").mkdir()
    assert list(pictures.decode(tmp_path, ["b.png"])) == ["damaged: Is a directory"]


def test_progress_is_shown_for_many_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "FEW", 1)
    for number in range(3):
        Image.new("L", (2, 2), number).save(tmp_path / f"{number}.png")
    images = list(pictures.decode(tmp_path, ["2.png", "0.png", "1.png"]))
    assert [int(picture.max()) for picture in images if isinstance(picture, np.ndarray)] == [2, 0, 1]
    assert f"decoding 3 pictures of {tmp_path}" in capfd.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then assumes a terminal
    list(pictures.decode(tmp_path, ["2.png", "0.png", "1.png"]))
    assert "3/3" in capfd.readouterr().err
