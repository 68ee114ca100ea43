"""Reads TOML files and `--set` overrides, and names the file or the override of each mistake."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from feda2l.errors import FedA2LError, located
from feda2l.names import nearest
from feda2l.old_names import SPEC_KEYS
from feda2l.plain_values import PlainDict, PlainMapping


@dataclasses.dataclass(frozen=True)
class TomlSource:
    """Where a spec comes from: a file, and the override of each key that has one.

    Comparisons ignore both fields: specs from different files may be equal.
    """

    name: str = dataclasses.field(default="spec", compare=False)
    sets: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def of(self, key: str) -> str:
        """The override that set a key, its section or a key inside it; otherwise the file."""
        inside = (text for path, text in self.sets.items() if f"{path}.".startswith(f"{key}."))
        above = (text for path, text in self.sets.items() if key.startswith(f"{path}."))
        return next(inside, next(above, self.name))

    def before(self, message: str) -> str:
        """The message after the source of the first key in it, or of the path in it, that an override set."""
        keys = re.findall(r"[a-z_]+\.[a-z_]+", message)
        named = (self.sets[key] for key in keys if key in self.sets)
        given = (text for key, text in self.sets.items() if key in PATHS and _path_in(text) in message)
        return located(message, file=next(named, next(given, self.name)))


# the keys whose value is a path: an error about the file names the path, not the key
PATHS = ("data.path", "topology.file", "network.file", "model.initial_weights", "faults")


def _path_in(override: str) -> str:
    _, value = parse_set(override.removeprefix("--set "))
    return str(Path(str(value)).expanduser())


def read_toml(path: str | Path) -> PlainDict:
    """Read a TOML file as plain values."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FedA2LError("there is no such file", file=path, see="spec") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FedA2LError(f"cannot be read: {error}", file=path, see="spec") from error
    except tomllib.TOMLDecodeError as error:
        raise FedA2LError(f"is not valid TOML: {error}", file=path, see="spec") from error


def parse_set(text: str) -> tuple[str, Any]:
    """Parse `key=value` of the command line. The value is TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise FedA2LError("write it as key=value, for example --set rates.base=0.03", file=f"--set {text}", see="spec")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def with_sets(values: PlainMapping, sets: Sequence[str]) -> tuple[PlainDict, dict[str, str]]:
    """The values with the overrides applied, and the override of each overridden key."""
    merged: PlainDict = {key: dict(v) if isinstance(v, Mapping) else v for key, v in values.items()}
    origins = {}
    for text in sets:
        key, value = parse_set(text)
        *path, last = key.split(".")
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise FedA2LError(f"{part} is not a section", file=f"--set {text}", see="spec")
        table[last] = value
        origins[key] = f"--set {text}"
    return merged, origins


def explain(
    error: ValidationError, source: TomlSource, root: type[BaseModel], section: str = "", known: Sequence[str] = ()
) -> list[str]:
    """One line per mistake: the file or override, the key, what is wrong and what would be right."""
    lines = []
    for problem in error.errors(include_url=False):
        path = [section] * bool(section) + [str(part) for part in problem["loc"]]
        key = ".".join(path)
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            names = known or list(_fields(root, path[:-1]))
            hint = f"it is now called {SPEC_KEYS[key]}" if key in SPEC_KEYS else nearest(path[-1], names)
            text = f"unknown {'key' if len(path) > 1 else 'key or section'}; {hint}"
            lines.append(located(text, file=source.of(key), key=key))
        else:
            text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
            lines.append(located(text, file=source.of(key), key=key, value=problem["input"]))
    return lines


def _fields(root: type[BaseModel], path: list[str]) -> PlainMapping:
    """The keys of the table at `path` below a model."""
    model: Any = root
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            return {}
        # an optional section has the type `Section | None`
        model = next((kind for kind in get_args(field.annotation) if kind is not type(None)), field.annotation)
        if not hasattr(model, "model_fields"):
            return {}
    fields: PlainMapping = model.model_fields
    return fields
