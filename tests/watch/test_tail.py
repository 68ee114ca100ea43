"""Reading a file that grows, is truncated or is replaced: each line once, and none of an old file."""

import os
from pathlib import Path

import pytest

from feda2l.records import growing_file as tail
from feda2l.records.growing_file import Tail


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def test_each_complete_line_is_returned_once(file: Path) -> None:
    reader = Tail(file)
    assert reader.read() == []  # does not exist yet
    file.write_bytes(b"one\ntw")
    assert reader.read() == [b"one"]
    with open(file, "ab") as more:
        more.write(b"o\nthree\n")
    assert reader.read() == [b"two", b"three"]
    assert reader.read() == []
    assert reader.begun == 1


def test_old_lines_are_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"first\n" * 1000)
    reader = Tail(file)
    reader.read()
    with open(file, "ab") as more:
        more.write(b"last\n")
    monkeypatch.setattr(tail, "PART", 5)  # only the new line is read
    assert reader.read() == [b"last"]
    assert (reader.offset, reader.begun) == (6005, 1)


def test_a_truncated_file_is_read_from_its_start(file: Path) -> None:
    file.write_bytes(b"1\n2\n3\n")
    reader = Tail(file)
    reader.read()
    os.truncate(file, 4)
    assert reader.read() == [b"1", b"2"]
    assert reader.begun == 2


def test_a_replaced_file_is_read_from_its_start(file: Path) -> None:
    file.write_bytes(b"1\n2\n")
    reader = Tail(file)
    reader.read()
    other = file.with_suffix(".partial")
    other.write_bytes(b"1\n2\n3\n4\n")
    os.replace(other, file)
    assert reader.read() == [b"1", b"2", b"3", b"4"]


def test_a_file_overwritten_with_equal_size_is_read_from_its_start(file: Path) -> None:
    file.write_bytes(b"1\n2\n")
    reader = Tail(file)
    reader.read()
    file.write_bytes(b"3\n4\n5\n")  # overwritten in place: same inode
    assert reader.read() == [b"3", b"4", b"5"]


def test_a_long_file_is_read_in_parts_but_lines_are_complete(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PART", 8)
    file.write_bytes(b"1\n2\n3\n4\n5\n" + b"x" * 30 + b"\nend\n")
    reader, found = Tail(file), []
    while part := reader.read():
        found.append(part)
    assert [line for part in found for line in part] == [b"1", b"2", b"3", b"4", b"5", b"x" * 30, b"end"]
    assert len(found) > 2
