"""The data set that a spec names: one of ours, a user's folder or file, or what a user's function returns."""

import os
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from feda2l.data import CATALOG, find
from feda2l.data.catalog import SERIES
from feda2l.data.download import data_folder
from feda2l.data.samples import Dataset, Samples
from feda2l.errors import FedA2LError
from feda2l.experiment.spec import DataSpec
from feda2l.imports import import_object
from feda2l.simulate.population import CPU


@dataclass(frozen=True)
class Loaded:
    """A data set with its samples on the device that trains, wrapped once, so that packed runs share them."""

    dataset: Dataset
    train: Samples
    test: Samples
    device: torch.device = CPU

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device = CPU) -> "Loaded":
        return cls(dataset, dataset.train.to(device), dataset.test.to(device), device)


def load_data(data: DataSpec, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set of a spec; `folder` is where those with an archive lie."""
    lengths, stride = (data.input_length, data.horizon), data.stride
    if data.name in SERIES:
        load = SERIES[data.name]
        return load(data_folder(folder), lengths=lengths, train_fraction=data.train_fraction, stride=stride)
    if data.name in CATALOG:
        from feda2l.data import load as load_pictures

        return load_pictures(data.name, folder)
    if ":" in data.name:
        return _users_own(data)
    path = Path(_given(data, "path"))
    if data.name == "folder":
        from feda2l.data import folder as pictures

        return pictures.load(path, test_share=data.test_share, seed=data.partition_seed)
    columns = None if data.columns is None else list(data.columns)
    if data.target is not None:
        from feda2l.data import table

        share, seed = data.test_share, data.partition_seed
        return table.load(path, data.target, node=data.node, features=columns, test_share=share, seed=seed)
    from feda2l.data import series_file

    read = partial(series_file.load, path, node=data.node, variates=columns)
    return read(lengths=lengths, train_fraction=data.train_fraction, stride=stride)


def data_key(data: DataSpec) -> Hashable:
    """Specs with equal keys load the same data."""
    shared = ("path", "target", "node", "columns", "input_length", "horizon", "stride", "test_share")
    own: list[Any] = [getattr(data, key) for key in shared]
    own.append(data.partition_seed if data.name in ("folder", "csv") else None)
    own.append(data.train_fraction if data.forecasts else None)
    return data.name, *own


def default_model(data: DataSpec, dataset: Dataset) -> str:
    """The model that a data set is tried with unless the spec names one."""
    if data.name in CATALOG:
        return find(data.name).model
    return "timer" if dataset.classes is None else "cnn" if len(dataset.input) == 3 and dataset.input[1] > 1 else "mlp"


def _users_own(data: DataSpec) -> Dataset:
    make = import_object(data.name, "data.name")
    try:
        dataset = make()
    except FedA2LError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise FedA2LError(f"data.name = {data.name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(dataset, Dataset):
        wanted = [name for name in Dataset.__protocol_attrs__ if not hasattr(dataset, name)]  # type: ignore[attr-defined]
        raise FedA2LError(
            f"data.name = {data.name!r} gave a {type(dataset).__name__} without {', '.join(sorted(wanted))}; "
            "feda2l.data.samples.Dataset says what a data set has"
        )
    return dataset


def _given(data: DataSpec, key: str) -> str:
    value = getattr(data, key)
    if value is None:
        raise FedA2LError(f'data.{key} is missing: data.name = "{data.name}" needs it')
    return str(value)
