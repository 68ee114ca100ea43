"""Fine-tuning: pretrained weights as the start of a model, and layers that keep theirs."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from feda2l.errors import FedA2LError


def load_start(model: nn.Module, path: str, *, fresh: Sequence[str] = (), sha256: str | None = None) -> str:
    """Read a state_dict into the model, all of it but the `fresh` layers, in place; returns the file's sha256."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise FedA2LError(f'model.start = "{path}" cannot be read: {error.strerror}', see="pretrained") from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, found):
        raise FedA2LError(
            f'model.start = "{path}" has sha256 {found}, not model.start_sha256 = "{sha256}"', see="pretrained"
        )
    try:
        given = load(content)
    except SafetensorError as error:
        raise FedA2LError(
            f'model.start = "{path}" is no safetensors file ({error}); write one with '
            "safetensors.torch.save_file(model.state_dict(), path)",
            see="pretrained",
        ) from error
    own = model.state_dict()
    drawn = _matching(own, fresh, "model.fresh")
    wanted = [name for name in own if name not in drawn]
    if problems := list(_misfits(own, given, wanted)):
        raise FedA2LError(
            f'model.start = "{path}" is of another {type(model).__name__}: it {"; ".join(problems)}; '
            "name layers that are to be drawn anew in model.fresh",
            see="pretrained",
        )
    model.load_state_dict({name: given[name] for name in wanted}, strict=False)
    return found


def _misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor], wanted: Iterable[str]) -> Iterator[str]:
    """How a file's tensors differ from a model's."""
    unlike = [
        f"{name} (is {list(given[name].shape)}, should be {list(own[name].shape)})"
        for name in wanted
        if name in given and given[name].shape != own[name].shape
    ]
    for kind, names in (
        ("lacks", [name for name in wanted if name not in given]),
        ("does not fit in", unlike),
        ("has the foreign", [name for name in given if name not in own]),
    ):
        if names:
            more = f" and {len(names) - 3} more" * (len(names) > 3)
            yield f"{kind} {', '.join(names[:3])}{more}"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters of these layers keep their values: they are no layer, do not train and do not travel."""
    parameters = dict(model.named_parameters())
    for name in _matching(parameters, patterns, "model.freeze"):
        parameters[name].requires_grad_(False)


def _matching(tensors: Iterable[str], patterns: Sequence[str], key: str) -> set[str]:
    """The tensors whose name, or the name of a module that holds them, one of the patterns matches."""
    names = list(tensors)
    matching: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if any(fnmatchcase(part, pattern) for part in _wholes(name))}
        if not matched:
            modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise FedA2LError(f"{key}: no layer is named {pattern!r}; there are {', '.join(modules)}", see="pretrained")
        matching |= matched
    return matching


def _wholes(name: str) -> list[str]:
    """A tensor's name and those of all modules that hold it."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
