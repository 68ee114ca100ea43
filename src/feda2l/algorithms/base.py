"""What an algorithm is: the part of a round that differs from FedAvg, as parameters and hooks of one node."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A base algorithm: its parameters are its fields, and they are the keys of `[algorithm]` in a spec.

    The round itself (train, exchange, aggregate) is FedAvg's; an algorithm that changes nothing is FedAvg.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    summary: ClassVar[str]
    citation: ClassVar[str]
