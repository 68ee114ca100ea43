"""The data sets by name, on the real files: loading, verification and errors about damaged files."""

import dataclasses
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from feda2l import data
from feda2l.data import catalog, cifar
from feda2l.data.download import File
from feda2l.errors import FedA2LError

SHA256 = {  # of the images as height x width x channel and of the labels as bytes; recorded with the packed data
    ("cifar100", "train_x"): "ccff483f53e15ae3e8a5650b2b870ab02d11b98858b7381d8c84f50c10dcf6f6",
    ("cifar100", "train_y"): "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
    ("cifar100", "test_x"): "b6b260b3d9c9e007b010e5478d415604a298b6a07fa749cc01f90c9d6b50a664",
    ("cifar100", "test_y"): "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
    ("cifar10", "train_x"): "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    ("cifar10", "train_y"): "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ("cifar10", "test_x"): "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    ("cifar10", "test_y"): "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
TEXTS = {"cifar10": "cifar-10-batches-bin/batches.meta.txt", "cifar100": "cifar-100-binary/fine_label_names.txt"}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_the_published_data(official: Path, name: str) -> None:
    images = data.load(name, official)
    for split in ("train", "test"):
        x, y = getattr(images, f"{split}_x"), getattr(images, f"{split}_y")
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        pixels = x.permute(0, 2, 3, 1).contiguous().numpy()
        assert hashlib.sha256(pixels).hexdigest() == SHA256[name, f"{split}_x"]
        assert hashlib.sha256(y.numpy().astype(np.uint8)).hexdigest() == SHA256[name, f"{split}_y"]
    assert images.input == (3, 32, 32)
    assert images.classes == len(images.class_names) == int(name.removeprefix("cifar"))
    assert list(images.class_names) == (official / TEXTS[name]).read_text().split()


def test_digits_are_complete_in_a_fixed_stratified_split() -> None:
    from sklearn.datasets import load_digits

    images, source = data.load("digits"), load_digits()
    assert images.input == (1, 8, 8)
    assert (len(images.train_y), len(images.test_y)) == (1438, 359)
    x, y = torch.cat([images.train_x, images.test_x]), torch.cat([images.train_y, images.test_y])
    actual = sorted((label, *picture) for label, picture in zip(y.tolist(), x.flatten(1).tolist(), strict=True))
    assert actual == sorted((int(t), *map(int, row)) for t, row in zip(source.target, source.data, strict=True))
    counts, tested = torch.bincount(y), torch.bincount(images.test_y)
    assert (tested - counts / 5).abs().max() <= 0.5
    assert torch.equal(images.train_x, data.load("digits").train_x)
    assert data.fetch("digits").is_dir()
    assert data.verify("digits").ok


@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), (0.485, 0.456, 0.406)])
def test_normalise_equals_the_formula_and_keeps_its_input(mean: tuple[float, ...]) -> None:
    std = (0.229, 0.224, 0.225)
    x = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 3, 16, 16)
    images = data.Images("toy", x, x, x, x, 2, 255.0, mean, std, ("a", "b"))
    expected = (x.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    actual = images.normalise(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-6)
    half = images.normalise(x[:, :, 3:5])
    assert torch.equal(half, actual[:, :, 3:5])  # a pixel's bits do not depend on the batch around it
    images.normalise(floats := x.float())
    assert torch.equal(floats, x.float())


def test_digits_are_normalised_to_minus_one_and_one() -> None:
    images = data.load("digits")
    ends = images.normalise(torch.tensor([0, 8, 16], dtype=torch.uint8).reshape(3, 1, 1, 1))
    assert ends.flatten().tolist() == [-1.0, 0.0, 1.0]


@pytest.fixture
def copy(official: Path, tmp_path: Path) -> Path:
    """A folder of links to CIFAR-10, so that a test can replace one file without copying all."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for path in (official / folder.name).glob("*.bin"):
        (folder / path.name).symlink_to(path)
    return tmp_path


def damage(folder: Path, name: str, offset: int, byte: int | None) -> Path:
    """Set one byte of a file, or truncate the file there."""
    path = folder / "cifar-10-batches-bin" / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if byte is None:
        del content[offset:]
    else:
        content[offset] = byte
    path.write_bytes(content)
    return path


def test_a_missing_file_is_reported(copy: Path) -> None:
    path = copy / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.unlink()
    with pytest.raises(FedA2LError, match=f"{path} is missing; `feda2l data fetch cifar10 --data {copy}`"):
        data.load("cifar10", copy)
    verdict = data.verify("cifar10", copy)
    assert not verdict.ok
    assert any(line.startswith(f"BAD {path}: missing") for line in verdict.lines)


def test_a_truncated_file_is_reported(copy: Path) -> None:
    path = damage(copy, "data_batch_2.bin", 12345, None)
    with pytest.raises(FedA2LError, match=f"{path} is damaged: expected 30730000 bytes, found 12345"):
        data.load("cifar10", copy)
    verdict = data.verify("cifar10", copy)
    assert not verdict.ok
    assert f"BAD {path}: expected 30730000 bytes, found 12345" in verdict.lines


def test_a_label_out_of_range_is_reported(copy: Path) -> None:
    path = damage(copy, "test_batch.bin", 7 * 3073, 10)
    message = re.escape(f"{path} is damaged: expected labels 0..9, found 10 in picture 7 (byte 21511)")
    with pytest.raises(FedA2LError, match=message):
        data.load("cifar10", copy)
    assert not data.verify("cifar10", copy).ok


def test_verify_detects_bytes_that_are_not_official(official: Path, copy: Path) -> None:
    assert data.verify("cifar10", official).official
    path = damage(copy, "data_batch_5.bin", 5000, 1)  # one pixel: only the checksum shows it
    data.load("cifar10", copy)
    verdict = data.verify("cifar10", copy)
    assert not verdict.ok
    assert any(line.startswith(f"BAD {path}: not the official bytes: expected sha256 7553") for line in verdict.lines)
    unknown = data.verify("cifar100", official)  # the order within the classes is not official
    assert unknown.ok
    assert not unknown.official
    assert "the structure is right, but it is unknown whether the bytes are official" in unknown.lines[0]


@pytest.mark.parametrize("name", ["exchange_rate", "beijing_air_quality"])
def test_series_are_verified_file_by_file(official: Path, tmp_path: Path, name: str) -> None:
    archive = data.find(name).archive
    assert archive is not None
    verdict = data.verify(name, official)
    assert verdict.official
    assert [line.split(":")[0] for line in verdict.lines] == [
        *(f"ok  {official / file}" for file in archive.files),
        f"ok  {name}",
    ]
    missing = data.verify(name, tmp_path)
    assert not missing.ok
    assert len(missing.lines) == len(archive.files)
    assert all("missing; to place it by hand, save https://" in line for line in missing.lines)
    first = next(iter(archive.files))
    for file in archive.files:
        (tmp_path / file).write_bytes((official / file).read_bytes())
    whole = bytearray((tmp_path / first).read_bytes())
    whole[-1000] ^= 1
    (tmp_path / first).write_bytes(whole)
    changed = data.verify(name, tmp_path)
    assert not changed.official
    words = "not the official bytes: expected sha256" if archive.proven else "unknown whether the bytes are official"
    assert words in changed.lines[0]


def test_an_archive_is_sufficient_and_proves_the_official_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small archive with the layout of CIFAR-100, registered in the catalogue."""
    random = np.random.default_rng(0)
    content = {name: random.integers(0, 20, (4, 3074), dtype=np.uint8).tobytes() for name in ("train.bin", "test.bin")}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in content.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    whole = gzip.compress(packed.getvalue(), mtime=0)
    archive = dataclasses.replace(
        cifar.CIFAR100.archive,
        checksum=hashlib.md5(whole).hexdigest(),
        files={name: File(len(text), "unknown") for name, text in content.items()},
    )
    small = dataclasses.replace(cifar.CIFAR100, archive=archive)
    entry = dataclasses.replace(catalog.CATALOG["cifar100"], archive=archive, load=lambda path: cifar.load(small, path))
    monkeypatch.setitem(catalog.CATALOG, "cifar100", entry)

    (tmp_path / archive.name).write_bytes(whole)
    before = data.verify("cifar100", tmp_path)
    assert before.official
    assert "not extracted yet" in before.lines[1]
    images = data.load("cifar100", tmp_path)
    records = np.frombuffer(content["train.bin"], np.uint8).reshape(4, 3074)
    assert images.train_y.tolist() == records[:, 1].tolist()  # the second byte: the fine label
    assert images.train_x.flatten().tolist() == records[:, 2:].ravel().tolist()
    assert data.verify("cifar100", tmp_path).official
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.write_bytes(content["test.bin"])
    verdict = data.verify("cifar100", tmp_path)
    assert not verdict.ok
    assert f"BAD {path}: not the official bytes" in verdict.lines[1]
    (tmp_path / archive.name).write_bytes(whole[:-1])
    assert f"expected md5 {archive.checksum}" in data.verify("cifar100", tmp_path).lines[0]
    shutil.rmtree(tmp_path / "cifar-100-binary")
    assert not data.verify("cifar100", tmp_path).ok


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(FedA2LError, match=r"data\.name = 'cifar-10' is unknown; did you mean 'cifar10'"):
        data.load("cifar-10")
    assert [entry.model for entry in data.CATALOG.values()] == ["mlp", "cnn", "cnn", "resnet18", "timer", "timer"]
    assert data.find("cifar10").source.startswith("https://")


def test_the_import_loads_no_heavy_package() -> None:
    script = "import sys, feda2l.data; sys.exit(any(name in sys.modules for name in ('sklearn', 'pooch', 'requests')))"
    subprocess.run([sys.executable, "-c", script], check=True)
