"""The layout of a node's parameters in one flat row."""

import pytest
import torch
from torch import nn

from feda2l.layers import find_layers
from feda2l.models import build
from feda2l.round.layout import ALIGNMENT, Layout, Segment


class Mixed(nn.Module):
    """A bare vector, a scalar, a convolution, a frozen and a tied linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(3))
        self.scale = nn.Parameter(torch.randn(()))
        self.conv = nn.Conv2d(3, 5, (2, 7))
        self.body = nn.Linear(70, 2)
        self.body.weight.requires_grad_(False)
        self.head = nn.Linear(3, 3, bias=False)
        self.copy = nn.Linear(3, 3)
        self.copy.weight = self.head.weight


def test_tensors_are_in_model_order_and_aligned_to_64_elements():
    layout = Layout.of(Mixed())
    assert ALIGNMENT == 64
    assert [(slot.name, slot.shape, slot.start, slot.size, slot.stop) for slot in layout.slots] == [
        ("shift", (3,), 0, 3, 64),
        ("scale", (), 64, 1, 128),
        ("conv.weight", (5, 3, 2, 7), 128, 210, 384),  # 210 elements fill 4 x 64
        ("conv.bias", (5,), 384, 5, 448),
        ("body.bias", (2,), 448, 2, 512),  # the frozen weight has no slot
        ("head.weight", (3, 3), 512, 9, 576),  # tied to copy.weight, stored once
        ("copy.bias", (3,), 576, 3, 640),
    ]
    assert layout.width == 640
    assert layout.parameters == 3 + 1 + 210 + 5 + 2 + 9 + 3


def test_a_tensor_that_fills_its_columns_has_no_padding():
    layout = Layout.of(nn.Linear(64, 2, bias=False))
    assert (layout.slots[0].size, layout.width) == (128, 128)


@pytest.mark.parametrize("rows", [(), (1,), (4,)])
def test_a_row_filled_through_views_gives_the_state_back(rows):
    model = Mixed()
    layout = Layout.of(model)
    matrix = torch.zeros(*rows, layout.width)
    parameters = dict(model.named_parameters())
    for slot, view in zip(layout.slots, layout.views(matrix), strict=True):
        assert view.shape == (*rows, *slot.shape)
        view.copy_(parameters[slot.name].detach())
    for slot in layout.slots:
        assert torch.equal(slot.view(matrix), parameters[slot.name].detach().expand((*rows, *slot.shape)))


def test_views_write_to_the_row_and_not_to_the_padding():
    layout = Layout.of(Mixed())
    row = torch.zeros(layout.width)
    for view in layout.views(row):
        view.fill_(1)
    assert row.count_nonzero() == layout.parameters
    for slot in layout.slots:
        assert row[slot.start : slot.start + slot.size].eq(1).all()
        assert row[slot.start + slot.size : slot.stop].eq(0).all()
    row[0] = 7
    assert layout.slots[0].view(row)[0] == 7


def test_kernels_are_stored_channels_last():
    layout = Layout.of(build("cnn"))
    kernel = next(slot for slot in layout.slots if slot.name == "conv2.weight")
    row = torch.arange(float(layout.width))
    view = kernel.view(row)
    assert view.shape == (64, 32, 5, 5)
    assert view.is_contiguous(memory_format=torch.channels_last)
    # element [o, i, y, x] is at ((o * 5 + y) * 5 + x) * 32 + i
    assert view[3, 7, 1, 4] == kernel.start + ((3 * 5 + 1) * 5 + 4) * 32 + 7
    assert kernel.view(torch.zeros(2, layout.width))[1].is_contiguous(memory_format=torch.channels_last)


def test_linear_weights_are_stored_row_by_row():
    layout = Layout.of(nn.Linear(3, 2))
    assert layout.slots[0].view(torch.arange(float(layout.width))).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_segments_join_adjacent_slots_and_count_no_padding():
    layout = Layout.of(Mixed())
    assert layout.segments(("conv.weight", "conv.bias")) == [Segment(128, 448, 215)]
    assert layout.segments(("conv.weight",)) == [Segment(128, 384, 210)]
    apart = layout.segments(("copy.bias", "shift", "head.weight"))  # sorted by column
    assert apart == [Segment(0, 64, 3), Segment(512, 640, 12)]
    everything = layout.segments(tuple(slot.name for slot in layout.slots))
    assert everything == [Segment(0, 640, layout.parameters)]


@pytest.mark.parametrize("granularity", ["module", "tensor", "block", "model"])
def test_every_slot_belongs_to_the_layer_that_names_it(granularity):
    model = Mixed()
    layers, layout = find_layers(model, granularity), Layout.of(model)
    for slot, number in zip(layout.slots, layout.layer_of_slots(layers), strict=True):
        assert slot.name in layers[number].tensors


def test_an_empty_parameter_has_a_slot_and_belongs_to_no_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model.empty = nn.Parameter(torch.empty(0, 3))
    layout, layers = Layout.of(model), find_layers(model)
    assert [layer.name for layer in layers] == ["0", "1"]
    assert [slot.size for slot in layout.slots] == [0, 6, 2, 4, 2]
    assert layout.layer_of_slots(layers)[1:] == [0, 0, 1, 1]
