"""Images from a user's folder: loading, and errors about folders that cannot be used."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feda2l.data import folder, partition
from feda2l.errors import FedA2LError

RANDOM = np.random.default_rng(0)


def draw(path: Path, *, grey: bool = False, size: tuple[int, int] = (6, 4)) -> torch.Tensor:
    """Write a random image to this path and return its pixels, channels first."""
    pixels = RANDOM.integers(0, 256, (size[1], size[0]) if grey else (size[1], size[0], 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return torch.from_numpy(pixels[None] if grey else pixels.transpose(2, 0, 1).copy())


def pets(root: Path, *, test: bool = True, grey: bool = False) -> dict[str, torch.Tensor]:
    """Write two classes with five training images each and two test images each."""
    names = [f"train/{label}/{number}.png" for label in ("dog", "cat") for number in range(5)]
    names += [f"test/{label}/{number}.png" for label in ("dog", "cat") for number in range(2)] if test else []
    return {name: draw(root / name, grey=grey) for name in names}


def test_a_folder_with_training_and_test_images(tmp_path: Path) -> None:
    drawn = pets(tmp_path)
    (tmp_path / "train" / ".DS_Store").write_text("hidden")
    (tmp_path / "train" / "cat" / ".hidden").write_text("hidden")
    images = folder.load(tmp_path)
    assert (images.name, images.input, images.classes) == (tmp_path.name, (3, 4, 6), 2)
    assert images.class_names == ("cat", "dog")
    assert images.train_y.tolist() == [0] * 5 + [1] * 5
    assert images.test_y.tolist() == [0, 0, 1, 1]
    for part, x in (("train", images.train_x), ("test", images.test_x)):
        expected = torch.stack([drawn[name] for name in sorted(drawn) if name.startswith(part)])
        assert torch.equal(x, expected)
    assert images.groups is None
    values = images.train_x.double() / 255
    assert images.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert images.std == pytest.approx(values.std((0, 2, 3), correction=0).tolist(), rel=1e-12)
    normal = images.normalise(images.train_x)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)


def test_grey_images_have_one_channel_unless_one_image_has_colour(tmp_path: Path) -> None:
    drawn = pets(tmp_path, grey=True)
    assert folder.load(tmp_path).input == (1, 4, 6)
    colours = draw(tmp_path / "test" / "dog" / "1.png")
    images = folder.load(tmp_path, processes=2)
    assert images.input == (3, 4, 6)
    assert torch.equal(images.train_x[0], drawn["train/cat/0.png"].expand(3, 4, 6))
    assert torch.equal(images.test_x[3], colours)


def test_a_channel_that_never_changes_is_normalised_to_zero(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for number in range(2):
            path = tmp_path / "train" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2), (100, 10 * number, 0)).save(path)
    images = folder.load(tmp_path, test_fraction=0.5)
    assert images.std[0] == images.std[2] == 1
    assert images.normalise(images.train_x)[:, 0].abs().max() < 1e-6


def test_without_a_test_folder_a_fraction_of_each_class_is_held_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drawn = pets(tmp_path, test=False)
    draw(tmp_path / "train" / "bird" / "0.png")
    images = folder.load(tmp_path, test_fraction=0.4, seed=3)
    assert f"{tmp_path} has no folder 'test': 4 of 11 pictures, 0.4 of each class (seed 3)" in capfd.readouterr().err
    assert torch.bincount(images.train_y).tolist() == [1, 3, 3]  # the only bird stays in the training set
    assert torch.bincount(images.test_y).tolist() == [0, 2, 2]
    again, other = folder.load(tmp_path, test_fraction=0.4, seed=3), folder.load(tmp_path, test_fraction=0.4, seed=4)
    assert torch.equal(images.test_x, again.test_x)
    assert not torch.equal(images.test_x, other.test_x)
    loaded = {tuple(x.flatten().tolist()) for x in torch.cat([images.train_x, images.test_x])}
    assert loaded >= {tuple(x.flatten().tolist()) for x in drawn.values()}
    for share in (0, 1, 1.5):
        with pytest.raises(FedA2LError, match=r"test_fraction = .*between 0 and 1"):
            folder.load(tmp_path, test_fraction=share)


def write_nodes(root: Path, owners: dict[str, str], heading: str = "path,node") -> None:
    (root / "nodes.csv").write_text("\n".join([heading, *(f"{name},{node}" for name, node in owners.items())]) + "\n")


def test_nodes_come_from_a_file(tmp_path: Path) -> None:
    names = sorted(name for name in pets(tmp_path) if name.startswith("train"))
    owners = {name: ("10" if index % 3 else "9") for index, name in enumerate(names)}
    write_nodes(
        tmp_path, {**dict(reversed(owners.items())), "test/cat/0.png": "77"}
    )  # the node of a test image is ignored
    images = folder.load(tmp_path)
    assert images.groups is not None
    assert images.groups.tolist() == [1 if index % 3 else 0 for index in range(10)]  # 9 comes before 10
    parts = partition.natural(images.groups, nodes=2)
    assert [len(part) for part in parts] == [4, 6]


def test_nodes_of_held_out_images_are_left_out(tmp_path: Path) -> None:
    names = sorted(pets(tmp_path, test=False))
    write_nodes(tmp_path, {name: name.split("/")[1] for name in names})
    images = folder.load(tmp_path)
    assert images.groups is not None
    assert torch.equal(images.groups, images.train_y)
    write_nodes(tmp_path, {name: f"node {index}" for index, name in enumerate(names)})
    with pytest.raises(FedA2LError, match=r"node 'node \d' has no training sample: all of its samples were held out"):
        folder.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train/cat/0.png": None}, "has no line for 1 of 10 pictures; the first of these is train/cat/0.png"),
        ({"train/cat/9.png": "a"}, "line 12, column 'path': the picture train/cat/9.png does not exist"),
        ({"train/cat/0.png": ""}, "line 2, column 'node': the cell is empty"),
        ({"train/cat/0.png": "a\ntrain/cat/0.png,b"}, "line 3, column 'path': train/cat/0.png has a second line"),
    ],
)
def test_mistakes_in_nodes_csv_are_reported(tmp_path: Path, change: dict[str, str | None], message: str) -> None:
    names = sorted(name for name in pets(tmp_path) if name.startswith("train"))
    owners = {**dict.fromkeys(names, "a"), **change}
    write_nodes(tmp_path, {name: node for name, node in owners.items() if node is not None})
    with pytest.raises(FedA2LError, match=f"nodes.csv.*{message}"):
        folder.load(tmp_path)


def test_a_wrong_header_of_nodes_csv_is_reported(tmp_path: Path) -> None:
    pets(tmp_path)
    write_nodes(tmp_path, {"train/cat/0.png": "a"}, heading="path,writer")
    with pytest.raises(FedA2LError, match=r"nodes.csv has no column 'node'; known: path, writer"):
        folder.load(tmp_path)
    (tmp_path / "nodes.csv").write_bytes(b"path,node\n\xff,a\n")
    with pytest.raises(FedA2LError, match=r"nodes.csv cannot be read"):
        folder.load(tmp_path)


def test_images_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    pets(tmp_path)
    draw(tmp_path / "test" / "dog" / "1.png", size=(7, 4))
    (tmp_path / "train" / "dog" / "notes.txt").write_text("not a picture")
    path = tmp_path / "train" / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(FedA2LError) as error:
        folder.load(tmp_path)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}: 3 of 15 pictures cannot be used: train/dog/3.png (damaged: ")
    assert "train/dog/notes.txt (not a picture)" in text
    assert "test/dog/1.png (is 7 x 4, expected 6 x 4 as train/cat/0.png is)" in text


def test_a_folder_without_any_usable_image_is_rejected(tmp_path: Path) -> None:
    for name in ("train/a/0.png", "train/b/0.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    with pytest.raises(FedA2LError, match=r"2 of 2 pictures cannot be used: train/a/0.png"):
        folder.load(tmp_path)


def test_a_wrong_layout_is_reported(tmp_path: Path) -> None:
    def fails(message: str) -> None:
        with pytest.raises(FedA2LError, match=message):
            folder.load(tmp_path)

    fails(f"{tmp_path / 'train'} is not a folder; expected FOLDER/train/CLASS/PICTURE")
    (tmp_path / "train").mkdir()
    fails(f"{tmp_path / 'train'} contains no class")
    draw(tmp_path / "train" / "cat" / "0.png")
    fails("contains only the class 'cat'")
    (tmp_path / "train" / "dog").mkdir()
    fails(f"{tmp_path / 'train' / 'dog'} contains no picture")
    draw(tmp_path / "train" / "dog" / "0.png")
    stray = draw(tmp_path / "train" / "0.png")
    assert stray.shape == (3, 4, 6)
    fails(f"{tmp_path / 'train' / '0.png'} is not in the folder of a class")
    (tmp_path / "train" / "0.png").unlink()
    draw(tmp_path / "test" / "bird" / "0.png")
    fails(f"{tmp_path / 'test' / 'bird'}: {tmp_path / 'train'} has no class 'bird'")
    draw(tmp_path / "train" / "dog" / "node" / "0.png")
    fails(f"{tmp_path / 'train' / 'dog' / 'node'} is a folder inside the folder of a class.*list the nodes in")


def test_a_class_may_be_absent_from_the_test_set(tmp_path: Path) -> None:
    pets(tmp_path)
    for path in (tmp_path / "test" / "dog").iterdir():
        path.unlink()
    with pytest.raises(
        FedA2LError, match="dog contains no picture"
    ):  # an empty folder is an error, an absent one is not
        folder.load(tmp_path)
    (tmp_path / "test" / "dog").rmdir()
    assert folder.load(tmp_path).test_y.tolist() == [0, 0]


def test_statistics_are_exact_over_many_images() -> None:
    x = RANDOM.integers(0, 256, (600, 2, 3, 3), dtype=np.uint8)
    mean, std = folder._statistics(x)
    values = x.astype(np.float64) / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), rel=1e-13)
    assert std == pytest.approx(values.std((0, 2, 3)).tolist(), rel=1e-13)
