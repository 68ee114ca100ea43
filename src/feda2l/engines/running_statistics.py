"""Running statistics of BatchNorm for rows that train together."""

import torch
from torch import Tensor, nn

from feda2l.round.population import Population, averaged_buffers, is_batch_count

MOMENTUM = 0.1  # torch's default


class RunningStatistics:
    """Means and variances [places, columns] during a round. Between rounds they are stored in the population."""

    def __init__(self, model: nn.Module, population: Population, places: int) -> None:
        self.names, self.buffers = averaged_buffers(model), population.buffers
        self.counts = [name for name in self.buffers if is_batch_count(name)]
        self.widths = [self.buffers[name].shape[1] for name in self.names]
        self.values = population.base.new_zeros(places, sum(self.widths))

    def take(self, places: Tensor, rows: Tensor) -> None:
        """Copy the statistics of some rows from the population at the start of a round."""
        self.values[places] = torch.cat([self.buffers[name][rows] for name in self.names], dim=1)

    def learn(self, places: slice, seen: Tensor, active: Tensor) -> None:
        """Update running += 0.1 (seen - running) for the `active` rows [rows, 1]. Other rows do not change."""
        running = self.values[places]
        running.copy_(torch.where(active, running.lerp(seen, MOMENTUM), running))

    def give(self, places: Tensor, rows: Tensor, steps: Tensor) -> None:
        """Copy the statistics back at the end of a round. `steps` is the number of steps of each row."""
        for name, values in zip(self.names, self.values[places].split(self.widths, dim=1), strict=True):
            self.buffers[name][rows] = values
        for name in self.counts:
            self.buffers[name][rows] += steps
