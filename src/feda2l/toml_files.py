"""Read TOML files and overrides, and report each mistake with its source and a correction."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from feda2l.errors import FedA2LError
from feda2l.names import nearest
from feda2l.old_names import SPEC_KEYS


@dataclasses.dataclass(frozen=True)
class TomlSource:
    """Where the values of a spec come from: a file, and the override of each key that has one.

    Comparisons ignore both fields: specs are equal wherever they were read from.
    """

    name: str = dataclasses.field(default="spec", compare=False)
    sets: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def of(self, key: str) -> str:
        """Return the override that set a key, a key inside it or its section; else the file."""
        inside = (text for own, text in self.sets.items() if f"{own}.".startswith(f"{key}."))
        above = (text for own, text in self.sets.items() if key.startswith(f"{own}."))
        return next(inside, next(above, self.name))

    def before(self, message: str) -> str:
        """Return the message, preceded by the source of the keys that it names."""
        keys = re.findall(r"[a-z_]+\.[a-z_]+", message)
        return f"{next((self.sets[key] for key in keys if key in self.sets), self.name)}: {message}"


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the values of a TOML file, or raise an error that names the file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FedA2LError(f"{path}: there is no such file", see="spec") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FedA2LError(f"{path}: cannot be read: {error}", see="spec") from error
    except tomllib.TOMLDecodeError as error:
        raise FedA2LError(f"{path}: is not valid TOML: {error}", see="spec") from error


def parse_set(text: str) -> tuple[str, Any]:
    """Parse `key=value` from the command line: a TOML value, or a bare word as a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise FedA2LError(f"--set {text}: write it as key=value, for example --set rates.base=0.03", see="spec")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def with_sets(values: Mapping[str, Any], sets: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values with the overrides applied, and the override that each key came from."""
    merged: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in values.items()}
    origins = {}
    for text in sets:
        key, value = parse_set(text)
        *path, last = key.split(".")
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise FedA2LError(f"--set {text}: {part} is not a section", see="spec")
        table[last] = value
        origins[key] = f"--set {text}"
    return merged, origins


def explain(
    error: ValidationError, source: TomlSource, root: type[BaseModel], section: str = "", known: Sequence[str] = ()
) -> list[str]:
    """Return one line per mistake: its source, the key, what is wrong and what would be right."""
    lines = []
    for problem in error.errors(include_url=False):
        path = [section] * bool(section) + [str(part) for part in problem["loc"]]
        key = ".".join(path)
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            names = known or list(_fields(root, path[:-1]))
            hint = f"it is now called {SPEC_KEYS[key]}" if key in SPEC_KEYS else nearest(path[-1], names)
            text = f"{key}: unknown {'key' if len(path) > 1 else 'key or section'}; {hint}"
        else:
            text = f"{key} = {problem['input']!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
        lines.append(f"{source.of(key)}: {text}")
    return lines


def _fields(root: type[BaseModel], path: list[str]) -> Mapping[str, Any]:
    """Return the keys that are allowed in the table at `path` below a model."""
    model: Any = root
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            return {}
        # an optional section has the type `Section | None`
        model = next((kind for kind in get_args(field.annotation) if kind is not type(None)), field.annotation)
        if not hasattr(model, "model_fields"):
            return {}
    fields: Mapping[str, Any] = model.model_fields
    return fields
