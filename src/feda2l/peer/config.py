"""The TOML file of a node: its name, its spec, its neighbours, its deadlines and its limits."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from feda2l.errors import FedA2LError
from feda2l.plain_values import PlainDict, PlainMapping
from feda2l.spec.schema_base import Count, Positive, Section, option
from feda2l.spec.spec import Spec
from feda2l.toml_files import TomlSource, explain, read_toml, with_sets

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}$")]
Id = Annotated[int, Field(ge=0, strict=True)]


class SecurityConfig(Section):
    """The certificates of a node, as files in PEM."""

    ca: Path = Field(description="certificate of the authority that issued all node certificates")
    certificate: Path = Field(description="certificate of this node, with its name as common name")
    key: Path = Field(description="private key of the certificate")


class NeighbourConfig(Section):
    """A node with which this node exchanges messages."""

    name: Name = Field(description="common name of its certificate")
    id: Id = Field(description="its number in the network")
    address: Address = Field(description="host:port where it listens")
    direction: Literal["both", "in", "out"] = option(
        "both", "in: this node only receives from it; out: this node only sends to it"
    )


class DeadlineConfig(Section):
    """How long a node waits in a round: median + factor x MAD of the neighbours' usual times, within bounds."""

    factor: Positive = option(6.0, "k of median + k x MAD")
    least: Positive = option(5.0, "seconds; the shortest wait after this node sent its own message")
    most: Positive = option(600.0, "seconds; the longest wait, also in the first round")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise FedA2LError(
                f"deadline.least = {self.least:g} is larger than deadline.most = {self.most:g}; make it smaller"
            )
        return self


class LimitsConfig(Section):
    """The limits beyond which a node rejects a neighbour's messages."""

    samples: Count = option(1_000_000, "the most samples that a neighbour can claim; they determine its weight")
    norm: Positive = option(10.0, "the largest norm of a received model, relative to this node's model")
    strikes: Count = option(3, "rejected messages until a neighbour is quarantined")
    quarantine_rounds: Count = option(20, "rounds for which a quarantined neighbour is ignored")


class MonitorConfig(Section):
    """The address of metrics and health."""

    address: Address | None = option(None, "host:port of /metrics and /health; none: not served")


class LogConfig(Section):
    """The size of the log."""

    megabytes: Positive = option(10.0, "megabytes per file")
    files: Count = option(5, "number of files, including the current one")


class NodeConfig(Section):
    """The config of one node, which is one process. Paths are relative to the file."""

    name: Name = Field(description="common name of the node's certificate")
    id: Id = Field(description="number in the network: order of sums, random draws, and the share of the spec's data")
    spec: Path = Field(description="the spec; the same file at every node")
    state: Path = option(Path("state"), "folder of checkpoint, records and log")
    listen: Address = Field(description="host:port where neighbours reach the node")
    run: Name | None = option(None, "name of the run, the same at every node; default: the spec's name")
    wire: Literal["fp32", "bf16"] = option("fp32", "number format of sent parameters; the same at every node")
    nodes: Count | None = option(None, "the largest number of nodes; default data.nodes of the spec")
    data: PlainDict | None = option(
        None, "local data instead of a share of the spec's data; keys as in [data] of a spec"
    )
    checkpoint_rounds: Count = option(1, "rounds between checkpoints")
    security: SecurityConfig | None = option(None, "certificates; required unless --insecure")
    neighbours: tuple[NeighbourConfig, ...] = option((), "the nodes with which this node exchanges messages")
    deadline: DeadlineConfig = Field(default_factory=DeadlineConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    faults: Path | None = option(None, "a fault plan for tests: faults by node and round")

    @field_validator("neighbours")
    @classmethod
    def _distinct(cls, neighbours: tuple[NeighbourConfig, ...]) -> tuple[NeighbourConfig, ...]:
        for key in ("name", "id"):
            values = [getattr(neighbour, key) for neighbour in neighbours]
            if twice := [value for value in values if values.count(value) > 1]:
                raise FedA2LError(
                    f"neighbours: {key} = {twice[0]!r} is given twice; every neighbour needs its own", see="node-file"
                )
        return neighbours

    @model_validator(mode="after")
    def _not_itself(self) -> Self:
        for neighbour in self.neighbours:
            for key in ("name", "id"):
                if getattr(neighbour, key) == getattr(self, key):
                    raise FedA2LError(
                        f"neighbours: {key} = {getattr(self, key)!r} is the {key} of this node; list only other nodes",
                        see="node-file",
                    )
        return self

    @classmethod
    def parse(cls, values: PlainMapping, folder: Path, source: str, *, insecure: bool = False) -> "NodeConfig":
        """Build a config from plain values; an error names all mistakes at once."""
        origin = TomlSource(source)
        try:
            config = cls.model_validate(values)
        except ValidationError as error:
            raise FedA2LError("\n".join(explain(error, origin, cls)), see="node-file") from error
        except FedA2LError as error:
            raise FedA2LError(f"{source}: {error}", see="node-file") from error
        if config.security is None and not insecure:
            raise FedA2LError(
                f"{source}: [security] is missing (ca, certificate, key); make certificates with `feda2l certs`, or "
                "use --insecure for plaintext without any authentication",
                see="certificates",
            )
        return config._below(folder)

    @classmethod
    def load(cls, path: Path, *, insecure: bool = False) -> "NodeConfig":
        """Read a config from a TOML file."""
        return cls.parse(read_toml(path), path.resolve().parent, str(path), insecure=insecure)

    def learns(self) -> Spec:
        """The spec of the node, with the node's local data if the config has them."""
        if self.data is None:
            return Spec.load(self.spec)
        values, _ = with_sets(read_toml(self.spec), ())
        # all local data belong to this node: there is no other node to assign them to
        values["data"] = {"partition": "iid", **self.data, "nodes": 1}
        return Spec.parse(values, str(self.spec))

    @property
    def receives(self) -> tuple[NeighbourConfig, ...]:
        return tuple(neighbour for neighbour in self.neighbours if neighbour.direction != "out")

    @property
    def receivers(self) -> tuple[NeighbourConfig, ...]:
        return tuple(neighbour for neighbour in self.neighbours if neighbour.direction != "in")

    def _below(self, folder: Path) -> "NodeConfig":
        """The same config with all paths relative to a folder."""
        security = self.security and self.security.model_copy(
            update={key: folder / path for key, path in self.security}
        )
        paths = {"spec": folder / self.spec, "state": folder / self.state, "security": security}
        if self.faults is not None:
            paths["faults"] = folder / self.faults
        return self.model_copy(update=paths)
