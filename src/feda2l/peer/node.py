"""One node as one process: its rounds, its folder and its signals."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from feda2l.engines.engine import Engine
from feda2l.errors import FedA2LError, RunFailed
from feda2l.peer.check import refuse_unfit
from feda2l.peer.config import DeadlineConfig, NodeConfig
from feda2l.peer.connect import connect, credentials, reconnect
from feda2l.peer.exchange import OverNetwork
from feda2l.peer.fault_injector import PlannedFaults
from feda2l.peer.log import FILE, NodeLog
from feda2l.peer.messenger import Facts, Messenger
from feda2l.peer.monitor import Monitor, NeighbourState, NeighbourStatus, NodeStatus, Phase
from feda2l.peer.neighbours import Neighbour
from feda2l.peer.search import search
from feda2l.plain_values import PlainMapping
from feda2l.records.round_record import METRICS, RoundRecord, missed_round
from feda2l.records.round_timings import round_timings
from feda2l.records.run_folder import RunFolder
from feda2l.round.round import Completed
from feda2l.runs.assemble import Assembled, NodeInNetwork, assemble_at, populate
from feda2l.runs.datasets import Loaded, load_data
from feda2l.runs.device import find_device
from feda2l.runs.pack import begin_folder, why_non_finite
from feda2l.runs.resume import check_same_run, continued, finished, saved_spec
from feda2l.runs.summary import searched_rates, write_summary
from feda2l.simulate.checkpoint import restore, save_checkpoint
from feda2l.simulate.loop import RoundLoop, one_thread
from feda2l.wire.message import Head
from feda2l.wire.rejected_message import RejectedMessage
from feda2l.wire.transport import Transport

BACK = 4.0  # times the least deadline: how long a returning node looks for its neighbours
STARTING = 120.0  # seconds for loading, in addition to the wait for neighbours, before the node counts as unhealthy
LEAVING = 10.0  # seconds that a node stays so that its neighbours can fetch its last message


class PeerNode:
    """A node from its config to its last round; tests give a `transport` instead of the network."""

    def __init__(
        self,
        config: NodeConfig,
        log: NodeLog,
        *,
        data: Path | None = None,
        transport: Transport | None = None,
        reload: Callable[[], NodeConfig] | None = None,
    ) -> None:
        self.config, self.log, self.reload = config, log, reload
        self.folder = RunFolder(config.state)
        self.assembled, self.exchange = assemble_node(config, data, self.folder)
        self.live, self.plan = self.assembled.live, self.assembled.live.plan
        self.fault_injector = PlannedFaults.load(config.faults, config.id, self.plan.network) if config.faults else None
        self.transport = transport
        self.alone = 0  # rounds without a message from any neighbour
        self.absent: set[str] = set()  # neighbours that the log reported as away
        self.sent = 0  # bytes
        self.saved: float | None = None  # the time of the last checkpoint
        self.stopping = False
        self.reloading = False

    def run(self) -> None:
        """Run all remaining rounds. A non-finite model raises RunFailed; SIGTERM ends the run after the round."""
        if finished(self.folder, self.assembled.spec):
            self.log.info("already_finished", folder=str(self.folder.path))
            return
        with ExitStack() as stack:
            self.folder.open()
            stack.callback(self.folder.close)
            self.monitor = stack.enter_context(self._monitor())
            engine = populate([self.assembled])
            engine.start(0)
            engine.keep_memory()
            stack.callback(engine.close)
            self._begin(engine)
            self.messenger = self.connect()
            stack.callback(self.messenger.close)
            stack.enter_context(self._signals())
            self._status("starting")
            self._join(engine)
            loop = RoundLoop(engine, [self.live])
            self._loop(loop)
            self._end(loop)

    def _begin(self, engine: Engine) -> None:
        """Resume from the folder, or start a new one."""
        folder, live = self.folder, self.live
        if folder.checkpoint.exists():
            restore(live, folder.checkpoint)
            self.log.round = live.state.round
            self.log.info("resumed", after=live.state.round)
        begin_folder(self.assembled, folder, engine=engine.name, pack=1, node=self.config.id)
        self.exchange.make_template(live)

    def _monitor(self) -> Monitor:
        most = self.config.deadline.most
        return Monitor(self.config.monitor.address, self.config.name, start_limit=most + STARTING)

    def connect(self) -> Messenger:
        """Listen for the neighbours and connect to them."""
        config, plan = self.config, self.plan
        authority, identity = credentials(config)
        self.expires = identity.until.timestamp() if identity else None
        facts = Facts(
            run=self._run,
            name=config.name,
            model=self.exchange.template.fingerprint,
            samples=len(plan.member.shards[0]),
            steps=plan.steps[0],
            degree=len(config.receives),
            receivers=len(config.receivers),
        )
        transport = self.transport or connect(config, self._run)
        messenger = Messenger(
            transport,
            [Neighbour(neighbour, self._deadline(config), config.limits) for neighbour in config.receives],
            facts,
            identity=identity,
            authority=authority,
            rounds=plan.rounds,
            exchanges=plan.algorithm.gossip,
            listeners=self._listeners(config),
            history=2 if all(entry.direction == "both" for entry in config.neighbours) else plan.network + 1,
            fault_injector=self.fault_injector,
            rejected=self._rejected,
        )
        self.exchange.messenger = messenger
        self.log.info("listening", address=config.listen, neighbours=[n.name for n in config.neighbours])
        return messenger

    @property
    def _run(self) -> str:
        return self.config.run or self.assembled.spec.name

    def _listeners(self, config: NodeConfig) -> list[Neighbour]:
        """The nodes that only receive from this node."""
        deadline = self._deadline(config)
        return [Neighbour(entry, deadline, config.limits) for entry in config.receivers if entry.direction == "out"]

    def _deadline(self, config: NodeConfig) -> DeadlineConfig:
        """The deadline; a fault plan replaces it by a fixed one, so that only the plan decides what is late."""
        if self.fault_injector is None:
            return config.deadline
        fixed = self.fault_injector.plan.deadline
        return config.deadline.model_copy(update={"least": fixed, "most": max(fixed, config.deadline.most)})

    def _join(self, engine: Engine) -> None:
        """Meet the neighbours: all of them before round 1, only the present ones after a restart."""
        state, plan, exchange, deadline = self.live.state, self.plan, self.exchange, self._deadline(self.config)
        before = state.round
        searches = not before and plan.algorithm.rate_search is not None
        if searches:
            with one_thread():
                rate = search(engine, self.live, exchange, lambda: self._meet(deadline.most))
            self.log.info("searched", rate=rate)
        else:
            # a head without a payload announces this node and its round
            self.messenger.publish(before, plan.algorithm.gossip if before else 0, {}, exchange.template)
        heads = self._meet(BACK * deadline.least if before or searches else deadline.most)
        self.log.info("met", neighbours=[neighbour.name for neighbour in heads])
        if not before and not searches:
            steps = {exchange.id: plan.steps[0]} | {
                neighbour.id: max(1, head.steps) for neighbour, head in heads.items()
            }
            setting = replace(plan.setting, neighbour_steps=(tuple(steps[id] for id in sorted(steps)),))
            state.rates = exchange.start_rates(plan.rule, setting)
        with one_thread():
            rejoined = exchange.is_behind(self.live, heads, before) and exchange.take_over(self.live, heads)
        if rejoined:
            self.log.info("rejoined", at=state.round, own=before, received=list(exchange.senders))
            self.log.round = state.round

    def _meet(self, seconds: float) -> dict[Neighbour, Head]:
        """The newest heads of the neighbours; a neighbour that does not answer in time is away."""
        before = self.live.state.round

        def enough(heads: Mapping[Neighbour, Head]) -> bool:
            return self.stopping or self.exchange.is_behind(self.live, heads, before)

        heads = self.messenger.newest(seconds, enough, after=before)
        for neighbour in self.messenger.neighbours:
            neighbour.present = neighbour in heads
        self.exchange.listen(heads)
        return heads

    def _loop(self, loop: RoundLoop) -> None:
        live, config = self.live, self.config
        recorded = len(self.folder.read())
        rounds = loop.rounds()
        while not self.stopping:
            if self.reloading:
                self._reload()
            self.messenger.begin()
            completed = next(rounds, None)
            if completed is None:
                break
            (done,) = completed
            if done.record is None:
                raise RunFailed(why_non_finite(live))
            recorded = self._record(done, recorded)
            if live.state.round % config.checkpoint_rounds == 0 or self.stopping or not live.active:
                self._save()
            self._status("leaving" if self.stopping else "running", done.record)
        if recorded == live.state.round and live.state.round % config.checkpoint_rounds:
            self._save()  # the signal to leave came after this round had skipped its checkpoint

    def _record(self, done: Completed, recorded: int) -> int:
        """Record a round and the rounds that this node missed; return the last recorded round."""
        exchange, record, round = self.exchange, done.record, self.live.state.round
        assert record is not None
        self.alone += not exchange.senders
        self.sent += record["bytes_sent"]
        for missed in range(recorded + 1, round):
            self.folder.append(missed_round(missed), round_timings(missed, {}, pack=1))
        if round > recorded:
            record |= {"received": list(exchange.senders), "disagreement": None}  # unknown: it needs all models
            record["layers"].pop("disagreement")
            self.folder.append(record, round_timings(round, done.seconds, pack=1))
        self.log.round = round
        scores = {key: record[key] for key in METRICS if key in record}
        self.log.info(
            "rejoined" if exchange.jumped else "round",
            **{"loss": round_off(record["train_loss"])},
            **{key: round_off(value) for key, value in scores.items()},
            received=f"{len(exchange.senders)} of {len(self.messenger.neighbours)}",
            seconds=round_off(sum(done.seconds.values())),
        )
        self._log_presence()
        return max(recorded, round)

    def _log_presence(self) -> None:
        for neighbour in self.messenger.neighbours:
            if neighbour.present == (neighbour.name in self.absent):
                self.absent ^= {neighbour.name}
                if neighbour.present:
                    self.log.info("back", neighbour=neighbour.name, last_received=neighbour.received)
                else:
                    self.log.warning("away", neighbour=neighbour.name, last_received=neighbour.received)

    def _save(self) -> None:
        self.folder.sync()
        save_checkpoint(self.live, self.folder.checkpoint)
        self.saved = time.time()

    def _end(self, loop: RoundLoop) -> None:
        live, rounds = self.live, self.plan.rounds
        self._status("leaving")
        self.messenger.farewell(live.state.round, self.exchange.template, LEAVING, hurry=lambda: self.stopping)
        if live.active:
            self.log.info("left", after=live.state.round, rounds=rounds)
            return
        by_class = live.class_accuracy or loop.evaluate(live).get("class_accuracy")
        write_summary(self.assembled, self.folder, by_class, searched_rates(live))
        self.log.info("finished", rounds=rounds)
        self._status("done")

    def _reload(self) -> None:
        """Read neighbours, limits and certificates from the file again; other keys need a restart."""
        self.reloading = False
        assert self.reload is not None
        try:
            config = self.reload()
            authority, identity = credentials(config)
            fixed = {"neighbours", "limits", "deadline", "security"}
            if config.model_dump(exclude=fixed) != self.config.model_dump(exclude=fixed):
                self.log.warning("restart_needed", text="only neighbours, limits, deadline and security were reloaded")
            known = {neighbour.name: neighbour for neighbour in self.messenger.neighbours}
            neighbours = []
            for entry in config.receives:
                neighbour = known.get(entry.name) or Neighbour(entry, config.deadline, config.limits, present=False)
                neighbour.config, neighbour.limits = entry, config.limits
                neighbour.deadline = self._deadline(config)
                neighbours.append(neighbour)
        except FedA2LError as error:
            self.log.error("reload_failed", error=str(error), what_now="the node continues with the previous config")
            return
        self.config = self.config.model_copy(update={key: getattr(config, key) for key in fixed})
        self.exchange.norm_limit = config.limits.norm
        reconnect(self.messenger.transport, config)  # the links are down: if they cannot be restored, the node ends
        facts = self.messenger.facts._replace(degree=len(config.receives), receivers=len(config.receivers))
        self.messenger.meet(neighbours, self._listeners(config), facts, identity, authority)
        ids = {neighbour.id for neighbour in neighbours}
        self.exchange.mixing_facts = {id: known for id, known in self.exchange.mixing_facts.items() if id in ids}
        self.expires = identity.until.timestamp() if identity else None
        self.log.info("reloaded", neighbours=[neighbour.name for neighbour in neighbours])

    def _rejected(self, neighbour: Neighbour, refused: RejectedMessage, quarantined: bool) -> None:
        self.monitor.rejected(neighbour.name, refused.reason)
        self.log.warning("rejected", neighbour=neighbour.name, reason=refused.reason, detail=refused.detail)
        if quarantined:
            self.log.warning("quarantined", neighbour=neighbour.name, rounds=neighbour.limits.quarantine_rounds)

    def _status(self, phase: Phase, record: RoundRecord | None = None) -> None:
        state, messenger = self.live.state, self.messenger
        figures: PlainMapping = record or {}
        names = [layer.name for layer in self.plan.layers]
        waited_for = [*messenger.neighbours, *(messenger.listeners if phase == "leaving" else ())]
        self.monitor.update(
            NodeStatus(
                phase=phase,
                round=state.round,
                rounds=self.plan.rounds,
                deadline=max((neighbour.patience for neighbour in waited_for), default=0.0),
                **{key: figures.get(key) for key in ("train_loss", "accuracy", "test_loss", "mse", "mae")},
                rates=dict(zip(names, state.rates.rates[0].tolist(), strict=True)),
                multipliers=dict(zip(names, state.rates.multiplier[0].tolist(), strict=True)),
                bytes_sent=self.sent,
                bytes_received=messenger.received,
                neighbours=tuple(_seen(neighbour, state.round + 1) for neighbour in messenger.neighbours),
                rounds_alone=self.alone,
                checkpoint_time=self.saved,
                certificate_expires=self.expires,
                insecure=self.config.security is None,
                log_lines_lost=self.log.lost,
            )
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end the node after the round; a second one ends it at once. SIGHUP reloads the config."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, _: object) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            # do not log here: the main thread may hold the lock of the log
            self.stopping = True

        def again(number: int, _: object) -> None:
            self.reloading = self.reload is not None

        wanted = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def assemble_node(config: NodeConfig, data: Path | None, folder: RunFolder) -> tuple[Assembled, OverNetwork]:
    """The run of the node and its exchange; this finds every mistake in its spec and data."""
    spec = config.learns()
    saved = saved_spec(folder)
    with spec.at_fault():
        place = NodeInNetwork(config.id, config.nodes or spec.data.nodes, config.id if config.data is None else 0)
        if config.data is None and config.id >= spec.data.nodes:
            raise FedA2LError(
                f"id = {config.id}: the spec assigns data to nodes 0 to {spec.data.nodes - 1} (data.nodes = "
                f"{spec.data.nodes}); give this node its own [data]"
            )
        device = find_device(spec.runtime)
        loaded = Loaded.of(load_data(spec.data, data), device)
        exchange = OverNetwork(config.id, wire=config.wire, norm_limit=config.limits.norm)
        assembled = assemble_at(place, continued(spec, saved), loaded, exchange)
        refuse_unfit(assembled.spec, config)
    if saved is not None:
        check_same_run(assembled.spec, saved, folder)
    elif strange := _strange(folder.path):
        raise FedA2LError(
            f"state = {folder.path}: the folder holds {strange} but no spec.toml, so it is not the folder of a node; "
            "choose another"
        )
    return assembled, exchange


def _strange(folder: Path) -> str:
    """The name of a file in the folder that no node wrote; "" if there is none."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return next((p.name for p in entries if p.suffix != ".partial" and not p.name.startswith(FILE)), "")


def round_off(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _seen(neighbour: Neighbour, round: int) -> NeighbourStatus:
    state: NeighbourState = (
        "quarantined" if neighbour.quarantined(round) else "present" if neighbour.present else "away"
    )
    waited = neighbour.arrivals[-1] if neighbour.arrivals else 0.0
    return NeighbourStatus(neighbour.name, state, neighbour.received, waited)
