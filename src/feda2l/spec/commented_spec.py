"""A spec file to begin with: every key once, with its value and what it means, from the spec's own model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli_w
from pydantic.fields import FieldInfo

from feda2l.errors import FedA2LError, RunFailed
from feda2l.spec.schema_base import NamedSection, Section, section_of
from feda2l.spec.spec import Spec

HEAD = """\
# A run of FedA2L. Run it:  feda2l run {file}
# A line that begins with # shows a default, or an example of what is off; take the # away to set it.
# What there is by name:  feda2l list
"""


def write_spec(file: Path, sets: Sequence[str] = ()) -> None:
    """Write the file; one that is there stays as it is."""
    text = commented_spec(sets, str(file))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError as error:
        raise FedA2LError(f"{file}: is there already and is not overwritten; choose another name") from error
    except OSError as error:
        raise RunFailed(f"{file}: cannot be written: {error.strerror}", see="cannot-write") from error


def commented_spec(sets: Sequence[str] = (), file: str = "spec.toml") -> str:
    """The spec with these `key=value`. What was given and every `name` are set, the rest stands behind a #.

    A default that is written down is no longer a default: algorithms and data sets bring defaults of their own, and
    only for keys that were not given.
    """
    spec = Spec.parse({}, "init", sets)
    lines = [HEAD.format(file=file), *_keys(spec)]
    for name, field in Spec.model_fields.items():
        if (kind := section_of(field)) is None:
            continue
        section, title = getattr(spec, name), f"[{name}]  # {(kind.__doc__ or '').splitlines()[0]}"
        if section is None:  # off as a whole: its keys are set back, since they mean nothing without it
            lines += ["", f"# {title}", *(line.replace("# ", "#   ", 1) for line in _keys(kind()))]
            continue
        lines += ["", title, *_keys(section)]
        if isinstance(section, NamedSection):
            lines += [_line(key, value) for key, value in (section.model_extra or {}).items()]
            lines.append(f"#   and the parameters of the one named: feda2l list {name.rstrip('s')}s")
    return "\n".join(lines) + "\n"


def _keys(section: Section) -> Iterator[str]:
    top = isinstance(section, Spec)
    for key, field in type(section).model_fields.items():
        if section_of(field):
            continue
        value = getattr(section, key)
        is_set = key in section.model_fields_set or ((top or key == "name") and value is not None)
        shown = value if value is not None else (field.examples or [None])[0]
        yield f"{'' if is_set else '# '}{_line(key, shown)}  # {_meaning(field)}"


def _line(key: str, value: Any) -> str:
    if isinstance(value, tuple | list):  # tomli_w would take a line an item
        return f"{key} = [{', '.join(_line('x', item).removeprefix('x = ') for item in value)}]"
    return tomli_w.dumps({key: value}).strip()


def _meaning(field: FieldInfo) -> str:
    """Its description, after the values that it can have."""
    choices = " | ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
    return ": ".join(filter(None, (choices, field.description)))
