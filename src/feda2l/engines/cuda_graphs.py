"""The general GPU engine: each node's training step is captured once as a CUDA graph and replayed on a stream."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from feda2l.engines.cuda_engine import WARM_UP, CudaEngine, next_samples
from feda2l.engines.engine import TrainJob
from feda2l.round.local_step import LocalStep
from feda2l.round.train import gradients_of, in_memory_order, objective

STREAMS = 16


@dataclass
class _Node:
    """The model object of a row, whose tensors are views of the row, and its captured step."""

    model: nn.Module
    parameters: list[nn.Parameter]
    stream: torch.cuda.Stream
    addresses: Tensor  # addresses of the gradients, for the update kernel
    graph: torch.cuda.CUDAGraph = field(default_factory=torch.cuda.CUDAGraph)
    batch: tuple[Tensor, ...] = ()  # kept alive for the graph
    local: LocalStep | None = None  # the algorithm's part of the step
    perturbed_model: tuple[nn.Module, list[nn.Parameter]] | None = None  # a model at the ascent point (SAM)
    offset: Tensor | None = None  # what the algorithm adds to the outputs
    draws: torch.Generator = field(default_factory=lambda: torch.Generator("cuda"))  # dropout generator of the node


class CudaGraphs(CudaEngine):
    """Engine for any model. Shards may have unequal sizes: each row's graph is replayed once per step of that row."""

    name = "cuda_graphs"

    def start(self, processes: int | None = None) -> None:
        self.make_room(len(self.population.base))
        self.nodes: dict[int, _Node] = {}
        self.streams = [torch.cuda.Stream(self.device) for _ in range(STREAMS)]
        # graphs on the same stream run one after the other, so they can share memory
        self.pools = [torch.cuda.graph_pool_handle() for _ in self.streams]

    def close(self) -> None:
        super().close()
        self.nodes.clear()

    def forget(self) -> None:
        self.nodes.clear()

    def train(self, jobs: Sequence[TrainJob]) -> list[float]:
        with self.numerics():
            plans = self.prepare(jobs)
            self.compute_base_outputs(jobs)
            rows = torch.tensor([job.row for job in jobs], device=self.device)
            self.population.trained[rows] = self.population.base[rows]
            if self.half is not None:
                self.half[rows] = self.population.base[rows].to(torch.bfloat16)
            for job in jobs:
                if job.row not in self.nodes:
                    self.nodes[job.row] = self._capture(job)
            for job in jobs:
                self.nodes[job.row].draws.manual_seed(self.layer_seed(job))
            present = torch.cuda.current_stream(self.device)
            for stream in self.streams:
                stream.wait_stream(present)
            for step in range(max(map(len, plans))):
                for job, plan in zip(jobs, plans, strict=True):
                    if step < len(plan):
                        self._step(job, plan[step])
            for stream in self.streams:
                present.wait_stream(stream)
            totals = self.total.tolist()
        return [totals[job.row] / len(plan) for job, plan in zip(jobs, plans, strict=True)]

    def _capture(self, job: TrainJob) -> _Node:
        """Build a row's model on its views, warm it up and capture its step. The values of the row do not change."""
        population, row = self.population, job.row
        model = copy.deepcopy(self.model).to(self.device).train()
        parameters = self.point(model, population.trained[row], row, None if self.half is None else self.half[row])
        stream = self.streams[row % len(self.streams)]
        node = _Node(model, parameters, stream, torch.zeros(len(parameters), dtype=torch.int64, device=self.device))
        node.batch = self.empty_batch(job, 1)
        self._localise(node, job)
        state = [population.trained[row], population.steps[row], self.counter[row], self.total[row]]
        state += [matrix[row] for matrix in (*population.optimizer_state.values(), *population.buffers.values())]
        state += [] if self.half is None else [self.half[row]]
        before = [tensor.clone() for tensor in state]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._drawing(node):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._learn(node, job, *node.batch)
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(node.graph, pool=self.pools[row % len(self.streams)], stream=stream):
                gradients = self._learn(node, job, *node.batch)
        node.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in gradients]))
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        return node

    def _localise(self, node: _Node, job: TrainJob) -> None:
        """Add the algorithm's part to the step of a row."""
        population, row, algorithm = self.population, job.row, self.training(job).algorithm
        offset = self.members[job.run].logit_offset(job.node)
        node.offset = None if offset is None else offset.to(self.device)
        if algorithm.trains_plainly:
            return
        algorithm_state = {name: matrix[row] for name, matrix in population.algorithm_state.items()}
        views = population.layout.views
        node.local = LocalStep(algorithm, population.trained[row], population.base[row], algorithm_state, views)
        if node.local.perturbed is not None:
            # separate running statistics, so that each batch updates those of the node only once
            perturbed_model = copy.deepcopy(self.model).to(self.device).train()
            buffers = {name: values.clone() for name, values in population.buffers.items()}
            node.perturbed_model = (
                perturbed_model,
                self.point(perturbed_model, node.local.perturbed, row, buffers=buffers),
            )

    def _step(self, job: TrainJob, batch: Tensor | None) -> None:
        node = self.nodes[job.row]
        with torch.cuda.stream(node.stream):
            if batch is None:
                node.graph.replay()
                return
            # a smaller last batch is rare and short, so it runs without capture; the graph keeps its addresses
            samples, chosen = self.training(job).samples, batch.to(self.device)
            loose = replace(node, addresses=torch.empty_like(node.addresses))
            self.population.steps[job.row] += 1
            with self._drawing(node):
                self._learn(loose, job, self.inputs_of(samples, chosen), samples.targets(chosen), chosen)

    @contextmanager
    def _drawing(self, node: _Node) -> Iterator[None]:
        """Context in which the GPU's default generator, used by dropout, is the generator of this node."""
        default = torch.cuda.default_generators[self.device.index or 0]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(node.draws)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)

    def _learn(
        self, node: _Node, job: TrainJob, inputs: Tensor, targets: Tensor, chosen: Tensor | None = None
    ) -> list[Tensor]:
        """Take a batch, run forward and backward, and update one row. Return the gradients that the update reads."""
        rows = slice(job.row, job.row + 1)
        population, training, base_outputs = self.population, self.training(job), None
        if training.algorithm.uses_base_outputs:
            assert self.base_outputs is not None
            samples = next_samples(*self.now(rows), training.batch_size)[0] if chosen is None else chosen
            base_outputs = self.base_outputs[self.runs_with_base_outputs.index(job.run)][samples]
        if chosen is None:
            inputs, targets = self.take(rows, job, (inputs, targets))

        def gradients_at(model: nn.Module, parameters: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
            value = objective(training, self.outputs(model(inputs)), targets, base_outputs, node.offset)
            return value.detach(), gradients_of(value, parameters)

        loss, gradients = gradients_at(node.model, node.parameters)
        modified = node.local is not None and node.local.modifies_gradient
        if node.local is not None:
            gradients = node.local.modified_gradients(
                gradients, lambda: gradients_at(*node.perturbed_model)[1] if node.perturbed_model else ()
            )
        ordered = [in_memory_order(g, p) for g, p in zip(gradients, node.parameters, strict=True)]
        if not torch.cuda.is_current_stream_capturing():
            node.addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in ordered]))
        optimizer_state = [matrix[rows] for matrix in population.optimizer_state.values()]
        half = None if self.half is None else self.half[rows]
        values, addresses = population.trained[rows], node.addresses
        self.update(rows, job, values, optimizer_state, half, addresses, loss.view(1), full=modified)
        return ordered
