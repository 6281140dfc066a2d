"""A layout follows what torch does to a tensor: selecting and arranging gives the same floats in the same order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.checkpoint.fused.layout import Layout, Stretch, concatenated


def floats(layout: Layout, values: list[torch.Tensor]) -> torch.Tensor:
    """Returns the floats that a layout names, in its shape."""
    parts = [values[each.value][each.start : each.start + each.length] for each in layout.stretches]
    return torch.cat(parts).reshape(layout.shape)


def start(shape: tuple[int, ...], value: int, values: list[torch.Tensor]) -> tuple[Layout, torch.Tensor]:
    size = torch.Size(shape).numel()
    values.append(torch.arange(float(size)) + 1000 * value)
    return Layout(shape, (Stretch(value, 0, size),)), values[value].reshape(shape)


@given(st.data())
def test_operators_on_layouts_are_those_on_tensors(data: st.DataObject) -> None:
    values: list[torch.Tensor] = []
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    layout, tensor = start(shape, 0, values)
    for _ in range(data.draw(st.integers(1, 4))):
        dim = data.draw(st.integers(0, len(layout.shape) - 1))
        match data.draw(st.sampled_from(["slice", "cat", "reshape", "expand"])):
            case "slice":
                first = data.draw(st.integers(0, layout.shape[dim] - 1))
                last = data.draw(st.integers(first + 1, layout.shape[dim]))
                layout, tensor = layout.sliced(dim, first, last), tensor.narrow(dim, first, last - first)
            case "cat":
                more, other = start(layout.shape, len(values), values)
                layout, tensor = concatenated([layout, more, layout], dim), torch.cat([tensor, other, tensor], dim)
            case "reshape":
                layout, tensor = layout.reshaped((layout.width,)), tensor.reshape(-1)
            case "expand":
                wide = (*layout.shape[:dim], 1, *layout.shape[dim:])
                sizes = (*layout.shape[:dim], 2, *layout.shape[dim:])
                layout, tensor = layout.reshaped(wide).expanded(sizes), tensor.reshape(wide).expand(sizes)
        if layout.width > 500:
            break
    assert torch.equal(floats(layout, values), tensor)


def test_neighbours_are_one_stretch() -> None:
    whole = Layout((6, 4), (Stretch(0, 0, 24),))
    parts = [whole.sliced(0, place, place + 1) for place in range(6)]
    assert concatenated(parts, 0) == whole
    assert len(concatenated([*parts[3:], *parts[:3]], 0).stretches) == 2
