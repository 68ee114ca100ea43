"""Write the public interface as text, one line for everything that a user's code, spec or command can depend on.

    python tools/public_api.py                       # show the differences from tests/api/public-api.txt
    python tools/public_api.py "what changed and why"  # accept the current interface and add it to CHANGELOG.md

Every interface has a fingerprint. The newest entry of CHANGELOG.md about the interface must have the current one, so
every change of a public signature needs an entry. Signatures are read from the source, so that every Python version
writes the same text.
"""

import ast
import dataclasses
import difflib
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from cyclopts import App
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
SNAPSHOT = ROOT / "tests" / "api" / "public-api.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
SECTION = "### Public interface"

# Extend this list when a module becomes public; docs/api-stability.md states the promise.
MODULES = (
    "feda2l",
    "feda2l.algorithms",
    "feda2l.data",
    "feda2l.data.folder",
    "feda2l.data.partition",
    "feda2l.data.samples",
    "feda2l.data.series_file",
    "feda2l.data.table",
    "feda2l.equations",
    "feda2l.errors",
    "feda2l.models",
    "feda2l.randomness",
    "feda2l.rates",
    "feda2l.report.significance",
    "feda2l.topology",
    "feda2l.trackers",
)
# Classes that functions return and users never create: their members are public, their module is not.
HANDED_OUT = (
    "feda2l.scheduler:LayerRate",
    "feda2l.studies.run_study:Outcome",
    "feda2l.spec.spec:Spec",
    "feda2l.spec.sections:AlgorithmSpec",
    "feda2l.spec.sections:RatesSpec",
)


def public_api() -> list[str]:
    """All lines of the interface, in order."""
    lines = [line for name in MODULES for line in _module(importlib.import_module(name))]
    for path in HANDED_OUT:
        module, _, name = path.partition(":")
        lines += _thing(f"(returned) {name}", getattr(importlib.import_module(module), name))
    from feda2l.cli.main import app
    from feda2l.peer.config import NodeConfig
    from feda2l.spec.spec import Spec
    from feda2l.studies.study import Study

    files = {"spec": Spec, "study": Study, "node": NodeConfig}
    lines += [line for name, kind in files.items() for line in _keys(name, kind)]
    return [*lines, *_commands("feda2l", app)]


def fingerprint(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def snapshot() -> list[str]:
    return SNAPSHOT.read_text().splitlines()


def announced(lines: list[str]) -> bool:
    """Does the first interface entry of the changelog have this fingerprint and a description?"""
    newest = re.search(r"^- `([0-9a-f]{12})` \S", CHANGELOG.read_text(), flags=re.MULTILINE)
    return newest is not None and newest[1] == fingerprint(lines)


def difference(lines: list[str]) -> list[str]:
    """The differences from the snapshot: lines with - were removed, lines with + are new."""
    changed = difflib.unified_diff(snapshot() if SNAPSHOT.exists() else [], lines, lineterm="", n=0)
    return [line for line in changed if line[0] in "+-" and line[:3] not in ("+++", "---")]


# --- Python ------------------------------------------------------------------------------------------------


def _module(module: ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if not inspect.ismodule(thing):  # a public module is listed by itself
            yield from _thing(f"{module.__name__}.{name}", thing)


def _thing(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        yield from _class(name, thing)
    elif inspect.isfunction(thing):
        yield f"{name}{_signature(_node(thing))}"
    elif isinstance(thing, Mapping):
        yield from (f"{name}[{key!r}]{_parameters(value)}" for key, value in thing.items())
    elif isinstance(thing, tuple | list):
        yield f"{name} = {', '.join(map(str, thing))}"
    elif isinstance(thing, int | float):
        yield f"{name} = {thing!r}"
    else:
        yield name  # __version__, a type


def _class(name: str, kind: type) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    yield f"class {name}({', '.join(bases)})"
    for node in _node(kind).body:
        match node:
            case ast.FunctionDef(name="__init__"):
                yield f"{name}{_signature(node)}"
                yield from (f"{name}.{attribute}" for attribute in _set_in(node))
            case ast.FunctionDef(name=method) if not method.startswith("_"):
                properties = [ast.unparse(way) for way in node.decorator_list]
                is_value = any("property" in way for way in properties)
                returns = f": {ast.unparse(node.returns)}" if node.returns else ""
                yield f"{name}.{method}{returns}" if is_value else f"{name}.{method}{_signature(node)}"
            case ast.AnnAssign() if issubclass(kind, BaseModel):
                pass  # the keys of a file are listed separately
            case ast.AnnAssign(target=ast.Name(id=field)) if not field.startswith("_"):
                yield f"{name}.{ast.unparse(node)}"
            case ast.Assign(targets=[ast.Name(id=field)], value=ast.Constant(value=int())) if not field.startswith("_"):
                yield f"{name}.{ast.unparse(node)}"


def _parameters(value: Any) -> str:
    """The parameters of a rule, an algorithm or a model in a registry."""
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        return f"({', '.join(f'{f.name}={f.default!r}' for f in dataclasses.fields(value) if f.init)})"
    return ""


def _signature(node: Any) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def _set_in(init: ast.FunctionDef) -> list[str]:
    """The public attributes that a constructor sets."""
    targets = [t for node in ast.walk(init) if isinstance(node, ast.Assign) for t in node.targets]
    flat = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
    names = [t.attr for t in flat if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"]
    return sorted({name for name in names if not name.startswith("_")})


def _node(thing: Any) -> Any:
    """The definition of a class or function; of overloads the last one, which is the implementation."""
    body: list[ast.stmt] = _source(thing.__module__).body
    for part in thing.__qualname__.split("."):
        found = [node for node in body if getattr(node, "name", None) == part][-1]
        body = getattr(found, "body", [])
    return found


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(Path(str(importlib.import_module(module).__file__)).read_text())


# --- specs, studies and commands ---------------------------------------------------------------------------


def _keys(name: str, kind: type[BaseModel]) -> Iterator[str]:
    """Every key with its type and default."""
    types = {node.target.id: ast.unparse(node.annotation) for node in _node(kind).body if _is_field(node)}
    inherited = dict.fromkeys(kind.model_fields, "")
    for key, text in (inherited | types).items():
        if key not in kind.model_fields:
            continue
        field = kind.model_fields[key]
        kinds = [inner for inner in (field.annotation, *get_args(field.annotation)) if inspect.isclass(inner)]
        if sections := [inner for inner in kinds if issubclass(inner, BaseModel)]:
            many = get_origin(field.annotation) in (list, tuple)
            yield from _keys(f"{name}.{key}{'[]' * many}", sections[0])
        elif field.default_factory:
            yield f"{name}.{key}: {text} = empty"
        else:
            yield f"{name}.{key}: {text} = {'required' if field.is_required() else _value(field.default)}"


def _is_field(node: Any) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _commands(name: str, app: App) -> Iterator[str]:
    for command in sorted(app):
        if command.startswith("-"):
            continue
        inner = app[command]
        if inner.default_command is None:
            yield from _commands(f"{name} {command}", inner)
            continue
        yield f"$ {name} {command}"
        for argument in inner.assemble_argument_collection():
            info = argument.field_info
            place = " or by place" if "POSITIONAL" in info.kind.name else ""
            several = info.kind is info.VAR_POSITIONAL
            default = "required" if argument.required else "any number" if several else _value(info.default)
            yield f"$ {name} {command} {' '.join(argument.names)}{place}{_choices(argument.hint)} = {default}"


def _value(default: Any) -> str:
    return str(default) if isinstance(default, Path) else repr(default)  # the repr of a path depends on the system


def _choices(hint: Any) -> str:
    """The allowed values of an option with a fixed set of values."""
    literals = [inner for inner in (hint, *get_args(hint)) if get_origin(inner) is Literal]
    return "".join(f": {' | '.join(map(str, get_args(inner)))}" for inner in literals)


# --- accepting a change ------------------------------------------------------------------------------------


def _announce(lines: list[str], words: str) -> None:
    """Add the entry at the top of the newest version in the changelog."""
    text = CHANGELOG.read_text()
    heading = re.search(r"^## .*\n\n", text, flags=re.MULTILINE)
    assert heading, "CHANGELOG.md has no version"
    before, newest = text[: heading.end()], text[heading.end() :]
    entries = newest.removeprefix(f"{SECTION}\n\n")
    if entries == newest:
        entries = f"\n{newest}"
    CHANGELOG.write_text(f"{before}{SECTION}\n\n- `{fingerprint(lines)}` {words}\n{entries}")


def main() -> None:
    lines = public_api()
    changed = difference(lines)
    if not changed and announced(lines):
        print(f"{len(lines)} lines, {fingerprint(lines)}: same as {SNAPSHOT.relative_to(ROOT)}")
        return
    print("\n".join(changed))
    if len(sys.argv) < 2 or not sys.argv[1].strip():
        sys.exit('the public interface changed; to accept it: python tools/public_api.py "what changed and why"')
    SNAPSHOT.parent.mkdir(parents=True, exist_ok=True)
    SNAPSHOT.write_text("\n".join(lines) + "\n")
    if not announced(lines):
        _announce(lines, sys.argv[1].strip())
    print(f"accepted, with an entry in {CHANGELOG.relative_to(ROOT)}: {fingerprint(lines)}")


if __name__ == "__main__":
    main()
