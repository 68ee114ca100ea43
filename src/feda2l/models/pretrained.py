"""Fine-tuning: load pretrained weights into a model, and freeze layers."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from feda2l.errors import FedA2LError


def load_start(model: nn.Module, path: str, *, fresh: Sequence[str] = (), sha256: str | None = None) -> str:
    """Load a safetensors state_dict into the model, in place. Return the sha256 of the file.

    Args:
        model: The model that gets the weights.
        path: A safetensors file with all tensors of the model except those of the `fresh` layers.
        fresh: Patterns of layers that keep their random initial values.
        sha256: The expected hash of the file; None accepts any file.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise FedA2LError(
            f'model.initial_weights = "{path}" cannot be read: {error.strerror}', see="pretrained"
        ) from error
    actual = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, actual):
        raise FedA2LError(
            f'model.initial_weights = "{path}" has sha256 {actual}, expected model.initial_weights_sha256 = "{sha256}"',
            see="pretrained",
        )
    try:
        given = load(content)
    except SafetensorError as error:
        raise FedA2LError(
            f'model.initial_weights = "{path}" is not a safetensors file ({error}); write one with '
            "safetensors.torch.save_file(model.state_dict(), path)",
            see="pretrained",
        ) from error
    expected = model.state_dict()
    drawn = _matching(expected, fresh, "model.reinitialize")
    required = [name for name in expected if name not in drawn]
    if problems := list(_misfits(expected, given, required)):
        raise FedA2LError(
            f'model.initial_weights = "{path}" does not fit this {type(model).__name__}: it {"; ".join(problems)}; '
            "list layers that should be initialised randomly in model.reinitialize",
            see="pretrained",
        )
    model.load_state_dict({name: given[name] for name in required}, strict=False)
    return actual


def _misfits(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], required: Iterable[str]) -> Iterator[str]:
    """Describe how the tensors of a file differ from those of a model."""
    unlike = [
        f"{name} (is {list(given[name].shape)}, should be {list(expected[name].shape)})"
        for name in required
        if name in given and given[name].shape != expected[name].shape
    ]
    for kind, names in (
        ("lacks", [name for name in required if name not in given]),
        ("has wrong shapes for", unlike),
        ("has the unknown tensors", [name for name in given if name not in expected]),
    ):
        if names:
            more = f" and {len(names) - 3} more" * (len(names) > 3)
            yield f"{kind} {', '.join(names[:3])}{more}"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters of matching layers: they are not trained, not exchanged, and not counted as layers."""
    parameters = dict(model.named_parameters())
    for name in _matching(parameters, patterns, "model.freeze"):
        parameters[name].requires_grad_(False)


def _matching(tensors: Iterable[str], patterns: Sequence[str], key: str) -> set[str]:
    """Return the tensors for which a pattern matches their name or the name of a module that contains them."""
    names = list(tensors)
    matching: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if any(fnmatchcase(part, pattern) for part in _wholes(name))}
        if not matched:
            modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise FedA2LError(
                f"{key}: no layer is named {pattern!r}; the layers are {', '.join(modules)}", see="pretrained"
            )
        matching |= matched
    return matching


def _wholes(name: str) -> list[str]:
    """Return a tensor's name and the names of all modules that contain it."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
