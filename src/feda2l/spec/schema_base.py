"""The base of the spec's tables: unknown keys are errors; a `name` brings the parameters of that object as keys."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from feda2l.errors import FedA2LError
from feda2l.imports import import_object
from feda2l.names import look_up

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]
T = TypeVar("T")


def option(default: object, description: str, *, example: object = None, **bounds: Any) -> Any:
    """Declare a key of a table: its default, its meaning, and an example value if the default is None."""
    return Field(default=default, description=description, examples=None if example is None else [example], **bounds)


class Section(BaseModel):
    """A table of the spec; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section type of a field of the spec, optional or not; None for a plain key."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


class NamedSection(Section):
    """A table whose other keys depend on its `name`: they are the fields of the dataclass of that name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    if TYPE_CHECKING:
        name: str  # each section declares it with its default and its meaning

    def parameters(self, section: str, table: Mapping[str, type[T]], base: type[T]) -> T:
        """Build the object of that name, from a table or a user's own by import path, with this table's keys."""
        kind = kind_of(self.name, section, table, base)
        return built(kind, section, self.model_extra or {}, [*type(self).model_fields, *parameters_of(kind)])


def kind_of(name: str, section: str, table: Mapping[str, type[T]], base: type[T]) -> type[T]:
    """Return the class of that name, from a table or a user's own by import path."""
    return _custom(name, section, base) if ":" in name else look_up(name, table, f"{section}.name")


def built(kind: Callable[..., T], section: str, values: Mapping[str, Any], known: list[str]) -> T:
    """Build an object from the keys of a table; an error suggests one of the `known` keys."""
    try:
        made: T = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise Nested(section, error, known) from error
    return made


def parameters_of(kind: type) -> list[str]:
    """Return the parameters of a rule or an algorithm: the fields of its dataclass."""
    return [field.name for field in dataclasses.fields(kind)]


class Nested(Exception):
    """Carries a ValidationError of a named section past pydantic."""

    def __init__(self, section: str, error: ValidationError, known: list[str]) -> None:
        super().__init__(str(error))
        self.section, self.error, self.known = section, error, known


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a dataclass; it is cached, because building it takes longer than using it."""
    return TypeAdapter(kind)


def _custom(path: str, section: str, base: type[T]) -> type[T]:
    """Import a user's own rule or algorithm."""
    kind = import_object(path, f"{section}.name")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        given = "a class" if isinstance(kind, type) else f"a {type(kind).__name__}"
        wanted = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
        raise FedA2LError(f'{section}.name = "{path}" is {given}, but not a subclass of {wanted}', see="own-code")
    if "__dataclass_fields__" not in vars(kind):
        raise FedA2LError(
            f'{section}.name = "{path}" is not decorated with @dataclass, so its parameters would be ignored; '
            "put @dataclass(frozen=True, kw_only=True) above it",
            see="own-code",
        )
    return kind
