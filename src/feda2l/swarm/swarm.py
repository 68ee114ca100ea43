"""`feda2l swarm`: run the nodes of a spec as processes on this machine, apply a fault plan, and collect the results."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from feda2l.errors import FedA2LError, RunFailed
from feda2l.faults.plan import Fault, FaultPlan
from feda2l.peer.check import refuse_network
from feda2l.records.run_folder import RunFolder
from feda2l.runs.assemble import Assembled, assemble
from feda2l.runs.datasets import Loaded, load_data
from feda2l.runs.device import find_device
from feda2l.runs.resume import check_same_faults, check_same_run, continued, finished, saved_spec
from feda2l.runs.run import Run
from feda2l.spec.spec import Spec
from feda2l.swarm.collect import collect
from feda2l.swarm.join_records import node_facts
from feda2l.swarm.progress_table import SwarmView
from feda2l.swarm.swarm_folder import SwarmFolder, unused_folder
from feda2l.swarm.swarm_process import NodeProcess
from feda2l.topology import Topology

TICK = 0.1  # seconds between two checks of the nodes
LEAST = 30.0  # the least seconds that a node has to finish its round after the signal to leave
ROUNDS = 3  # a slow node has the duration of so many rounds


@dataclass(frozen=True)
class SwarmOptions:
    """The options of a swarm that are not part of its spec."""

    insecure: bool = False
    wire: str = "fp32"
    data: Path | None = None
    resume: bool = False
    shown: bool = True
    keep: bool = False  # the private keys


def swarm(spec: Spec, out: Path | None = None, options: SwarmOptions | None = None) -> Run:
    """Run a spec on real nodes and collect their results in one run folder.

    RunFailed names the nodes that failed. The others continued, and the folder holds their results.
    """
    options = options or SwarmOptions()
    out = out or (Path("runs") / spec.name if options.resume else unused_folder(spec.name))
    folder, shared = RunFolder(out), RunFolder(out / "nodes")
    _demand_folder(folder, shared, resume=options.resume)
    saved = saved_spec(shared) if options.resume else None
    with spec.at_fault():
        loaded = Loaded.of(load_data(spec.data, options.data), find_device(spec.runtime))
        assembled = assemble(continued(spec, saved), loaded)
        _refuse_unfit(assembled)
    plan = assembled.faults or None  # an empty plan counts as no plan
    node_spec = assembled.spec.model_copy(update={"faults": None})  # a node gets the plan from its config
    if saved is not None:
        check_same_run(node_spec, saved, shared)
        check_same_faults(plan, shared)
        if finished(folder, assembled.spec):
            SwarmView(spec.name, 0, [], shown=options.shown).print_note(f"{out}: already finished, nothing to do")
            return Run(out)
    graph = assembled.live.plan.mixing.topology
    del loaded  # free the memory: every node loads the data itself, and `collect` loads them again
    nodes = SwarmFolder(shared.path, assembled.spec.data.nodes)
    with ExitStack() as stack:
        folder.open()
        stack.callback(folder.close)
        if not options.keep:
            stack.callback(nodes.forget_keys)
        nodes.prepare(node_spec, graph, plan, insecure=options.insecure, wire=options.wire)
        folder.summary.unlink(missing_ok=True)
        folder.write(folder.spec, assembled.spec.to_toml().encode())
        failed = Swarm(assembled.spec, nodes, plan, options).run()
        _collect(folder, nodes, assembled.spec, graph, plan, options)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(nodes.members)} nodes failed:\n" + "\n".join(failed), see="swarm")
    return Run(out)


def _collect(
    folder: RunFolder, nodes: SwarmFolder, spec: Spec, graph: Topology, plan: FaultPlan | None, options: SwarmOptions
) -> None:
    states = [member.state for member in nodes.members]
    facts = {"wire": options.wire, "secure": not options.insecure, "nodes": [node_facts(state) for state in states]}
    collect(folder, states, spec, graph, plan=plan, data=options.data, **facts)


class Swarm:
    """Starts the nodes, watches them and applies the fault plan."""

    def __init__(self, spec: Spec, folder: SwarmFolder, plan: FaultPlan | None, options: SwarmOptions) -> None:
        self.spec, self.folder, self.plan = spec, folder, plan or FaultPlan()
        options_of_node = ["--insecure"] * options.insecure
        if options.data is not None:
            options_of_node += ["--data", str(options.data.resolve())]
        self.nodes = [NodeProcess(member, options_of_node) for member in folder.members]
        self.view = SwarmView(f"{spec.name}: {len(self.nodes)} nodes", spec.rounds, self.nodes, shown=options.shown)
        self.failed: dict[str, str] = {}
        self.stop_signals = 0  # how many stop signals arrived

    def run(self) -> list[str]:
        """Run all nodes to their end and return the messages of the failed ones. No process is left in any case."""
        try:
            with self._interruptions(), self.view:
                for node in self.nodes:
                    node.start()
                self._watch()
        finally:
            for node in self.nodes:
                node.end()
        if not any(node.state == "done" for node in self.nodes):
            raise RunFailed("\n".join(["no node finished the run", *self.failed.values()]), see="swarm")
        return list(self.failed.values())

    def _watch(self) -> None:
        while any(node.running for node in self.nodes):
            time.sleep(TICK)
            if self.stop_signals:
                self._leave()
                raise KeyboardInterrupt
            for node in self.nodes:
                if (code := node.poll()) is not None:
                    self._ended(node, code)
            self._follow_plan()
            self.view.update()
            if self.failed and not any(node.done_now for node in self.nodes):
                # no node has completed a round, and the others would wait long for the failed node
                self._leave()
                raise RunFailed("\n".join(["the network did not start", *self.failed.values()]), see="swarm")

    def _ended(self, node: NodeProcess, code: int) -> None:
        """Handle the end of a process: finished, crashed as planned, or failed."""
        done = node.rounds_written()
        if code == 0:
            node.state = "done" if done >= self.spec.rounds else "left"
            return
        if code == -signal.SIGKILL and self.plan.crashes(node.id, done + 1):
            node.state = "crashed"
            self.view.print_note(f"{node} crashed in round {done + 1}, as planned")
            return
        node.state = "failed"
        why = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        self.failed[str(node)] = f"{node} failed after round {done} ({why}); its output is in {node.member.output}"
        self.view.print_note(f"{self.failed[str(node)]}\n{node.last_lines()}")

    def _follow_plan(self) -> None:
        """Restart or continue the nodes that the plan brings back, when the network has reached the planned round."""
        if not self.plan:
            return
        for node in self.nodes:
            others = self._others(node)
            if node.state == "crashed" and others:  # without others there is no network to return to
                self._restart(node)
            elif node.running and self._planned("hang", node):
                self._wake(node, [other for other in others if not other.stopped])

    def _others(self, node: NodeProcess) -> list[NodeProcess]:
        return [other for other in self.nodes if other is not node and other.running]

    def _restart(self, node: NodeProcess) -> None:
        """Start a crashed node when the others have completed the round before the planned one."""
        network = max(other.round for other in self.nodes if other is not node)
        crashed = node.rounds_written() + 1
        back = min((f.round for f in self._planned("restart", node) if f.round > crashed), default=None)
        if back is not None and network >= back - 1:
            self.folder.strike_out(node.member, back)
            self.view.print_note(f"{node} restarts; the others are at round {network}")
            node.start()

    def _wake(self, node: NodeProcess, others: Sequence[NodeProcess]) -> None:
        """Continue a hung node when all others have completed the rounds that it must miss, or when none is left."""
        if not node.stopped:
            return
        now, round = time.monotonic(), node.rounds_written() + 1
        hang = self.plan.hangs(node.id, round)
        if hang is None:
            return  # the plan did not stop it
        if node.hung_since is None:
            node.hung_since, node.state = now, "hung"
            self.view.print_note(f"{node} hangs in round {round}, as planned")
        if hang.seconds is None:
            over = all(other.round >= round - 1 + hang.rounds for other in others)
        else:
            over = now - node.hung_since >= hang.seconds or not others
        if over:
            node.hung_since, node.state = None, "running"
            node.signal(signal.SIGCONT)

    def _planned(self, kind: str, node: NodeProcess) -> Sequence[Fault]:
        return [fault for fault in self.plan.faults if fault.kind == kind and fault.node == node.id]

    def _leave(self) -> None:
        """Tell all nodes to leave after their round; a node that is late, or has not met the others, is killed."""
        before, started = self.stop_signals, time.monotonic()
        longest = max((node.pace or 0.0 for node in self.nodes), default=0.0)
        for node in self.nodes:
            node.poll()
            node.signal(signal.SIGTERM if node.met else signal.SIGKILL)
            node.signal(signal.SIGCONT)
        while any(node.running for node in self.nodes):
            time.sleep(TICK)
            for node in self.nodes:
                node.poll()
            self.view.update()
            if self.stop_signals > max(before, 1) or time.monotonic() - started > max(LEAST, ROUNDS * longest):
                return  # the remaining nodes are killed

    @contextmanager
    def _interruptions(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM lets the nodes finish their round; a second one does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, _: object) -> None:
            self.stop_signals += 1
            if self.stop_signals == 1:
                self.view.print_note("the nodes stop after this round; press Ctrl-C again to stop at once")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _demand_folder(folder: RunFolder, shared: RunFolder, *, resume: bool) -> None:
    if resume and not shared.started:
        raise FedA2LError(
            f"--out {folder.path}: is not the folder of a swarm (it has no {shared.spec}); choose another --out",
            see="folder-not-empty",
        )
    if not resume and folder.occupied:
        raise FedA2LError(
            f"--out {folder.path}: the folder is not empty; use --resume to continue its run, or choose another --out",
            see="folder-not-empty",
        )


def _refuse_unfit(assembled: Assembled) -> None:
    graph, spec = assembled.live.plan.mixing.topology, assembled.spec
    refuse_network(spec)
    where = f'topology.name = "{spec.topology.name}"'
    if spec.data.nodes < 2:
        raise FedA2LError(f"data.nodes = {spec.data.nodes}: a swarm needs at least 2 nodes")
    if len(graph.period) > 1:
        raise FedA2LError(
            f"{where} changes from round to round, but a real node keeps its neighbours; use a fixed graph, such as "
            '"exponential" or "ring"'
        )
    if not any(graph.period[0]):
        raise FedA2LError(f'{where} has no links; a swarm needs a graph with links, for example "ring"')
