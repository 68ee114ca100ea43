"""Write a spec file to start from: every key once, with its value and its meaning, generated from `Spec`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

import tomli_w
from pydantic.fields import FieldInfo

from feda2l.errors import FedA2LError, RunFailed
from feda2l.spec.schema_base import NamedSection, Section, section_of
from feda2l.spec.spec import Spec

HEAD = """\
# A run of FedA2L. Run it:  feda2l run {file}
# A line that begins with # shows a default, or an example for a key that is not set; remove the # to set it.
# List all names:  feda2l list all
"""


def write_spec(file: Path, sets: Sequence[str] = ()) -> None:
    """Write the file; an existing file is not overwritten."""
    text = commented_spec(sets, str(file))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError as error:
        raise FedA2LError(f"{file}: already exists and is not overwritten; choose another name") from error
    except OSError as error:
        raise RunFailed(f"{file}: cannot be written: {error.strerror}", see="cannot-write") from error


def commented_spec(sets: Sequence[str] = (), file: str = "spec.toml") -> str:
    """Return the spec with these `key=value`. Given keys and every `name` are set; all other keys are commented out.

    A default that is written to the file counts as given. Algorithms and data sets have their own defaults, which apply
    only to keys that are not given.
    """
    spec = Spec.parse({}, "init", sets)
    lines = [HEAD.format(file=file), *_keys(spec)]
    for name, field in Spec.model_fields.items():
        if (kind := section_of(field)) is None:
            continue
        section, title = getattr(spec, name), f"[{name}]  # {(kind.__doc__ or '').splitlines()[0]}"
        if section is None:  # the section is off, so its keys are indented: they have no meaning without it
            lines += ["", f"# {title}", *(line.replace("# ", "#   ", 1) for line in _keys(kind()))]
            continue
        lines += ["", title, *_keys(section)]
        if isinstance(section, NamedSection):
            lines += [line for key, value in (section.model_extra or {}).items() for line in _parameters(key, value)]
            lines.append(f"#   and the parameters of this name: feda2l list {name.rstrip('s')}s")
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


def _parameters(key: str, value: object) -> Iterator[str]:
    """Yield a parameter, or the parameters of a part as dotted keys."""
    if not isinstance(value, dict):
        yield _line(key, value)
        return
    part = _line(key, 0).removesuffix(" = 0")  # quoted if necessary
    yield from (f"{part}.{_line(inner, item)}" for inner, item in value.items())


def _line(key: str, value: object) -> str:
    if isinstance(value, tuple | list):  # tomli_w would write one item per line
        return f"{key} = [{', '.join(_line('x', item).removeprefix('x = ') for item in value)}]"
    return tomli_w.dumps({key: value}).strip()


def _meaning(field: FieldInfo) -> str:
    """Return the allowed values and the description of a key."""
    choices = " | ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
    return ": ".join(filter(None, (choices, field.description)))
