"""A user's table from a CSV file: loading, training on it, and errors about tables that cannot be used."""

from pathlib import Path

import numpy as np
import pytest
import torch

import feda2l
from feda2l.data import catalog, table
from feda2l.errors import FedA2LError

PLAIN = "age,colour,weight,site\n1,red,2.5,b\n3,blue,-1e3,a\n\n5, red ,4,b\n7,blue,5,a\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "own.csv").write_text(PLAIN)
    return tmp_path / "own.csv"


def test_rows_classes_and_nodes(path: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("\ufeffweight;colour;age\n4;blue;3\n")
    loaded = table.load(path, "colour", node="site", features=["weight", "age"], test=_commas(tmp_path / "test.csv"))
    assert (loaded.name, loaded.input, loaded.classes) == ("own", (1, 1, 2), 2)
    assert loaded.class_names == ("blue", "red")
    assert loaded.features == ("weight", "age")
    assert (loaded.train_x.dtype, loaded.train_y.dtype) == (torch.float32, torch.int64)
    assert loaded.train_y.tolist() == [1, 0, 1, 0]
    assert loaded.groups is not None
    assert loaded.groups.tolist() == [1, 0, 1, 0]
    numbers = np.array([[2.5, 1], [-1000, 3], [4, 5], [5, 7]])
    expected = (numbers - numbers.mean(0)) / numbers.std(0)
    np.testing.assert_allclose(loaded.train_x.numpy().reshape(4, 2), expected, rtol=1e-6)
    back = loaded.test_x.numpy().reshape(1, 2) * loaded.spread + loaded.centre
    np.testing.assert_allclose(back, [[4, 3]], rtol=1e-5)
    assert loaded.test_y.tolist() == [0]
    assert torch.equal(loaded.normalise(loaded.train_x), loaded.train_x)


def _commas(path: Path) -> Path:
    path.write_text(path.read_text().replace(";", ","))
    return path


def test_other_columns_are_features_and_a_fraction_is_held_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("x;y;label\n" + "".join(f"{n};{n * n};{n % 3 * 5}\n" for n in range(30)))
    loaded = table.load(path, "label", delimiter=";", test_fraction=0.3, seed=1)
    assert f"{path}: 9 of 30 rows, 0.3 of each class (seed 1), are held out for the test" in capfd.readouterr().err
    assert loaded.features == ("x", "y")
    assert loaded.class_names == ("0", "5", "10")  # sorted as numbers
    assert torch.bincount(loaded.train_y).tolist() == [7, 7, 7]
    assert torch.bincount(loaded.test_y).tolist() == [3, 3, 3]
    assert loaded.groups is None
    x = torch.cat([loaded.train_x, loaded.test_x]).reshape(30, 2).double().numpy() * loaded.spread + loaded.centre
    labels = torch.cat([loaded.train_y, loaded.test_y]).tolist()
    rows = sorted(zip(np.rint(x[:, 0]).astype(int).tolist(), labels, strict=True))
    assert rows == [(n, n % 3) for n in range(30)]
    assert torch.equal(loaded.test_x, table.load(path, "label", delimiter=";", test_fraction=0.3, seed=1).test_x)


def test_a_large_mean_and_a_constant_column_are_handled(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("time,constant,label\n" + "".join(f"{1.7e9 + n},0.1,{n % 2}\n" for n in range(40)))
    loaded = table.load(path, "label", test=path)
    expected = (np.arange(40) - 19.5) / np.arange(40).std()
    np.testing.assert_allclose(loaded.train_x[:, 0, 0, 0], expected, rtol=1e-6)
    assert loaded.train_x[:, 0, 0, 1].abs().max() < 1e-6
    assert loaded.spread[1] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.csv is empty; expected a first line"),
        ("\n1,2\n", "own.csv is empty; expected a first line"),
        ("x,label\n", "own.csv has no row below its first line"),
        ("x,class\n1,a\n", "own.csv has no column 'label'; known: x, class"),
        ("x,labels\n1,a\n", "own.csv has no column 'label'; did you mean 'labels'?"),
        ("x,x,label\n1,1,a\n", "own.csv has two columns 'x'"),
        ("label\na\n", "own.csv has no feature column besides 'label'; its columns: label"),
        ("x,label\n1,a\n\n1 m,b\n", "own.csv, line 4, column 'x': expected a number, found '1 m'"),
        ("y,x,label\n1,2,a\n1,,b\n", "own.csv, line 3, column 'x': expected a number, found ''"),
        ("x,label\n1,a\nnan,b\n", "own.csv, line 3, column 'x': expected a number, found 'nan'"),
        ("x,label\n1,a\n-inf,b\n", "own.csv, line 3, column 'x': expected a number, found '-inf'"),
        ("x,label\n1,a\n2\n", "own.csv, line 3: expected 2 values, found 1"),
        ("x,label\n1,a\n2, \n", "own.csv, line 3, column 'label': the cell is empty"),
        ("x,label\n1,a\n2,a\n", "own.csv, column 'label': 'a' is the only class; at least two are needed"),
        ("y,x,label\n" + "1,1e300,a\n1,-1e300,b\n" * 3, "own.csv, column 'x': the numbers are too large"),
    ],
)
def test_a_mistake_in_a_table_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(FedA2LError) as error:
        table.load(tmp_path / "own.csv", "label")
    assert message in str(error.value)


def test_node_and_feature_columns_must_exist(path: Path) -> None:
    with pytest.raises(FedA2LError, match="has no column 'sites'; did you mean 'site'"):
        table.load(path, "colour", node="sites", features=["age"])
    with pytest.raises(FedA2LError, match="has no column 'ages'; did you mean 'age'"):
        table.load(path, "colour", features=["ages"])
    path.write_text(PLAIN.replace("5,a", "5,"))
    with pytest.raises(FedA2LError, match="line 6, column 'site': the cell is empty"):
        table.load(path, "colour", node="site")
    path.write_text(PLAIN.replace("7,blue,5,a", "7,blue,5,c"))
    with pytest.raises(FedA2LError, match=r"node '[abc]' has no training sample"):
        table.load(path, "colour", node="site", test_fraction=0.5)


def test_a_class_that_only_the_test_file_has_is_reported(path: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("age,colour,weight,site\n1,red,1,a\n2,green,1,a\n")
    with pytest.raises(
        FedA2LError, match=r"test.csv, line 3, column 'colour': .*own.csv has no training row of the class 'green'"
    ):
        table.load(path, "colour", node="site", test=tmp_path / "test.csv")
    (tmp_path / "test.csv").write_text("age,colour\n1,red\n")
    with pytest.raises(FedA2LError, match=r"test.csv has no column 'weight'"):
        table.load(path, "colour", node="site", test=tmp_path / "test.csv")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FedA2LError, match=r"absent.csv cannot be read: No such file"):
        table.load(tmp_path / "absent.csv", "label")
    (tmp_path / "own.csv").write_bytes(b"x,label\n1,a\n\xff,b\n")
    with pytest.raises(FedA2LError, match=r"own.csv cannot be read: 'utf-8' codec"):
        table.load(tmp_path / "own.csv", "label")
    (tmp_path / "own.csv").write_text('x,label\n1,a\n2,"b\n3,a\n')
    with pytest.raises(FedA2LError, match=r"own.csv cannot be read: .* is a quotation mark missing\?"):
        table.load(tmp_path / "own.csv", "label")


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_nodes_learn_from_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """A run trains on a table as on images, with different rows per node. Models that need images are rejected."""
    path = tmp_path / "own.csv"
    numbers = np.random.default_rng(0).normal(size=(400, 3)) + 1000
    rows = [f"{a},{b},{c},{'more' if a > b else 'less'},{n % 4}" for n, (a, b, c) in enumerate(numbers)]
    path.write_text("\n".join(["a,b,c,label,node", *rows]))
    entry = catalog.Entry("own", "a table", model, lambda _: table.load(path, "label", node="node"))
    monkeypatch.setitem(catalog.CATALOG, "own", entry)
    spec = {
        "rounds": 20,
        "data": {"name": "own", "nodes": 4, "partition": "natural", "train_fraction": 1.0},
        "rates": {"name": "constant", "base": 0.1},
    }
    if model == "cnn":
        with pytest.raises(FedA2LError, match="needs images of at least 16x16 pixels, got 1x3"):
            feda2l.run(spec, out=tmp_path / "run", progress=False)
        return
    run = feda2l.run(spec, out=tmp_path / "run", progress=False)
    assert run.summary["accuracy"]["final"] > 0.9
    assert list(run.summary["class_accuracy"]) == ["less", "more"]


def test_a_test_file_with_too_large_numbers_is_reported(path: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("age,colour,weight,site\n1e300,red,1,a\n")
    with pytest.raises(FedA2LError, match="column 'age': the numbers are too large"):
        table.load(path, "colour", node="site", test=tmp_path / "test.csv")
