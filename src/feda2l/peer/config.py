"""A node's own file: who it is, what it learns, whom it talks to, what it puts up with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from feda2l.errors import FedA2LError
from feda2l.spec.schema_base import Count, Positive, Section, option
from feda2l.spec.spec import Spec
from feda2l.toml_files import TomlSource, explain, read_toml, with_sets

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}$")]
Id = Annotated[int, Field(ge=0, strict=True)]


class SecurityConfig(Section):
    """Who vouches for whom: files in PEM."""

    ca: Path = Field(description="certificate of the authority that issued every node's")
    certificate: Path = Field(description="this node's, with its name as common name")
    key: Path = Field(description="the certificate's private key")


class NeighbourConfig(Section):
    """Another node that this one talks to."""

    name: Name = Field(description="common name of its certificate")
    id: Id = Field(description="its place in the network")
    address: Address = Field(description="host:port where it listens")
    direction: Literal["both", "in", "out"] = option("both", "in: only heard; out: it only hears us")


class DeadlineConfig(Section):
    """How long a round waits: median + factor x MAD of what neighbours usually take, within bounds."""

    factor: Positive = option(6.0, "k of median + k x MAD")
    least: Positive = option(5.0, "seconds; never waits less after its own message is out")
    most: Positive = option(600.0, "seconds; never waits longer, also for the first round")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise FedA2LError(f"deadline.least = {self.least:g} is more than deadline.most = {self.most:g}")
        return self


class LimitsConfig(Section):
    """What a neighbour may do before it is not believed."""

    samples: Count = option(1_000_000, "most samples a neighbour may claim: they are its weight")
    norm: Positive = option(10.0, "a model may be so many times as large as ours")
    strikes: Count = option(3, "bad messages until a neighbour is quarantined")
    quarantine_rounds: Count = option(20, "rounds in which it is not asked then")


class MonitorConfig(Section):
    """Where metrics and health are served."""

    address: Address | None = option(None, "host:port of /metrics and /health; none: not served")


class LogConfig(Section):
    """How much log is kept."""

    megabytes: Positive = option(10.0, "of one file")
    files: Count = option(5, "files that are kept, the current one among them")


class NodeConfig(Section):
    """One process, one node. Paths are relative to the file."""

    name: Name = Field(description="common name of its certificate")
    id: Id = Field(description="its place in the network: order of sums, random draws, its share of the spec's data")
    spec: Path = Field(description="what is learned: the same file at every node")
    state: Path = option(Path("state"), "folder: checkpoint, records, log")
    listen: Address = Field(description="host:port where neighbours reach it")
    run: Name | None = option(None, "what neighbours must agree on; a new one for a new run; default: the spec's name")
    wire: Literal["fp32", "bf16"] = option("fp32", "how parameters travel; the same at every node")
    nodes: Count | None = option(None, "how many nodes there may be; default data.nodes of the spec")
    data: dict[str, Any] | None = option(
        None, "data of its own in place of its share of the spec's; keys as in a spec's [data]"
    )
    checkpoint_rounds: Count = option(1, "rounds between checkpoints")
    security: SecurityConfig | None = option(None, "certificates; required unless --insecure")
    neighbours: tuple[NeighbourConfig, ...] = option((), "whom it talks to")
    deadline: DeadlineConfig = Field(default_factory=DeadlineConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    faults: Path | None = option(None, "a fault plan, for tests: what goes wrong, by node and round")

    @field_validator("neighbours")
    @classmethod
    def _distinct(cls, neighbours: tuple[NeighbourConfig, ...]) -> tuple[NeighbourConfig, ...]:
        for key in ("name", "id"):
            values = [getattr(neighbour, key) for neighbour in neighbours]
            if twice := [value for value in values if values.count(value) > 1]:
                raise FedA2LError(f"neighbours: {key} = {twice[0]!r} is given twice", see="node-file")
        return neighbours

    @model_validator(mode="after")
    def _not_itself(self) -> Self:
        for neighbour in self.neighbours:
            for key in ("name", "id"):
                if getattr(neighbour, key) == getattr(self, key):
                    raise FedA2LError(f"neighbours: {key} = {getattr(self, key)!r} is this node's own", see="node-file")
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any], folder: Path, source: str, *, insecure: bool = False) -> "NodeConfig":
        """A config from plain values; every mistake in it is named at once."""
        origin = TomlSource(source)
        try:
            config = cls.model_validate(values)
        except ValidationError as error:
            raise FedA2LError("\n".join(explain(error, origin, cls)), see="node-file") from error
        except FedA2LError as error:
            raise FedA2LError(f"{source}: {error}", see="node-file") from error
        if config.security is None and not insecure:
            raise FedA2LError(
                f"{source}: there is no [security] (ca, certificate, key); make certificates with `feda2l certs`, or "
                "say --insecure to talk in plaintext to whoever answers",
                see="certificates",
            )
        return config._below(folder)

    @classmethod
    def load(cls, path: Path, *, insecure: bool = False) -> "NodeConfig":
        """A config from a TOML file."""
        return cls.parse(read_toml(path), path.resolve().parent, str(path), insecure=insecure)

    def learns(self) -> Spec:
        """What the node learns: the spec, with the node's own data where it has some."""
        if self.data is None:
            return Spec.load(self.spec)
        values, _ = with_sets(read_toml(self.spec), ())
        # what it has is its own: there is nobody else to deal it to
        values["data"] = {"partition": "iid", **self.data, "nodes": 1}
        return Spec.parse(values, str(self.spec))

    @property
    def receives(self) -> tuple[NeighbourConfig, ...]:
        return tuple(neighbour for neighbour in self.neighbours if neighbour.direction != "out")

    @property
    def receivers(self) -> tuple[NeighbourConfig, ...]:
        return tuple(neighbour for neighbour in self.neighbours if neighbour.direction != "in")

    def _below(self, folder: Path) -> "NodeConfig":
        """The same config with its paths below a folder."""
        security = self.security and self.security.model_copy(
            update={key: folder / path for key, path in self.security}
        )
        paths = {"spec": folder / self.spec, "state": folder / self.state, "security": security}
        if self.faults is not None:
            paths["faults"] = folder / self.faults
        return self.model_copy(update=paths)
