"""Load the dataset that a spec names: a built-in one, a user's folder or file, or the result of a user's function."""

import os
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from feda2l.data import CATALOG, find
from feda2l.data.catalog import is_series
from feda2l.data.catalog import load as load_ours
from feda2l.data.samples import Dataset, Samples
from feda2l.errors import FedA2LError
from feda2l.imports import import_object
from feda2l.round.population import CPU
from feda2l.spec.sections import DataSpec


@dataclass(frozen=True)
class Loaded:
    """A dataset whose samples are on the training device. Packed runs share one copy."""

    dataset: Dataset
    train: Samples
    test: Samples
    device: torch.device = CPU

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device = CPU) -> "Loaded":
        return cls(dataset, dataset.train.to(device), dataset.test.to(device), device)


def load_data(data: DataSpec, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load the dataset of a spec. `folder` holds the downloaded archives."""
    lengths, stride = (data.input_length, data.horizon), data.stride
    if is_series(data.name):
        return load_ours(data.name, folder, lengths=lengths, train_fraction=data.train_fraction, stride=stride)
    if data.name in CATALOG:
        return load_ours(data.name, folder)
    if ":" in data.name:
        return _load_plugin(data)
    path = Path(_given(data, "path"))
    if data.name == "folder":
        from feda2l.data import folder as pictures

        return pictures.load(path, test_fraction=data.test_fraction, seed=data.partition_seed)
    columns = None if data.feature_columns is None else list(data.feature_columns)
    if data.target_column is not None:
        from feda2l.data import table

        share, seed = data.test_fraction, data.partition_seed
        return table.load(
            path, data.target_column, node=data.node_column, features=columns, test_fraction=share, seed=seed
        )
    from feda2l.data import series_file

    read = partial(series_file.load, path, node=data.node_column, variates=columns)
    return read(lengths=lengths, train_fraction=data.train_fraction, stride=stride)


def data_key(data: DataSpec) -> Hashable:
    """Return a key that is equal for specs that load the same data."""
    shared = (
        "path",
        "target_column",
        "node_column",
        "feature_columns",
        "input_length",
        "horizon",
        "stride",
        "test_fraction",
    )
    values: list[object] = [getattr(data, key) for key in shared]
    values.append(data.partition_seed if data.name in ("folder", "csv") else None)
    values.append(data.train_fraction if data.forecasts else None)
    return data.name, *values


def default_model(data: DataSpec, dataset: Dataset) -> str:
    """Return the default model for a dataset, used if the spec names none."""
    if data.name in CATALOG:
        return find(data.name).model
    if dataset.classes is None:
        return "timer"
    return "cnn" if len(dataset.input) == 3 and min(dataset.input[1:]) >= 16 else "mlp"


def _load_plugin(data: DataSpec) -> Dataset:
    make = import_object(data.name, "data.name")
    try:
        dataset = make()
    except FedA2LError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise FedA2LError(
            f"data.name = {data.name!r} failed: {type(error).__name__}: {error}", see="own-data"
        ) from error
    where = f"data.name = {data.name!r}"
    _has_all(dataset, Dataset, f"{where} returned a {type(dataset).__name__}")
    checked: Dataset = dataset
    for part in ("train", "test"):
        samples: Samples = getattr(checked, part)
        _has_all(samples, Samples, f"{where}: {part} is a {type(samples).__name__}")
        try:
            wrong = _wrong(checked, samples)
        except Exception as error:
            raise FedA2LError(
                f"{where}: reading samples of {part} failed: {type(error).__name__}: {error}", see="own-data"
            ) from error
        if wrong:
            raise FedA2LError(f"{where}: {part} {wrong}", see="own-data")
    for name, count in (("groups", len(checked.train)), ("test_groups", len(checked.test))):
        groups = getattr(checked, name)
        if groups is not None and not (isinstance(groups, Tensor) and groups.shape == (count,)):
            raise FedA2LError(
                f"{where}: {name} must be None or a tensor with one node per sample ({count} samples)", see="own-data"
            )
    named = 0 if checked.groups is None else int(checked.groups.max()) + 1
    kind, named = ("groups", named) if checked.classes is None else ("classes", checked.classes)
    if len(checked.class_names) != named:
        raise FedA2LError(f"{where}: {named} {kind} have {len(checked.class_names)} class_names", see="own-data")
    return checked


def _has_all(value: object, protocol: type, what: str) -> None:
    """Raise an error that names the attributes of a protocol that an object lacks."""
    members = [name for name in vars(protocol) if name == "__len__" or not name.startswith("_")]
    if lacking := [name for name in members if not hasattr(value, name)]:
        says = f"feda2l.data.samples.{protocol.__name__}"
        raise FedA2LError(f"{what} without {', '.join(sorted(lacking))}; {says} lists what it needs", see="own-data")


def _wrong(dataset: Dataset, samples: Samples) -> str | None:
    """Describe what is wrong with the first samples or the labels; None if everything is correct."""
    if not len(samples):
        return "has no samples"
    some = torch.arange(min(2, len(samples)))
    x, y = samples.inputs(some), samples.targets(some)
    if x.dtype != torch.float32 or x.shape != (len(some), *dataset.input):
        return (
            f"returns inputs of shape {list(x.shape)} and {x.dtype} for {len(some)} samples, expected shape "
            f"{[len(some), *dataset.input]} and torch.float32"
        )
    if dataset.classes is None:
        right = y.dtype == torch.float32 and y.shape[:1] == some.shape
        return None if right else f"returns targets of shape {list(y.shape)} and {y.dtype}, expected float32 [n, ...]"
    if y.dtype != torch.int64 or y.shape != some.shape:
        return f"returns targets of shape {list(y.shape)} and {y.dtype} for {len(some)} samples, expected int64 [n]"
    every = samples.targets(torch.arange(len(samples)))
    low, high = int(every.min()), int(every.max())
    expected = f"has classes {low}..{high}, expected 0..{dataset.classes - 1}"
    return None if low >= 0 and high < dataset.classes else expected


def _given(data: DataSpec, key: str) -> str:
    value = getattr(data, key)
    if value is None:
        raise FedA2LError(f'data.{key} is missing: data.name = "{data.name}" needs it', see="own-data")
    return str(value)
