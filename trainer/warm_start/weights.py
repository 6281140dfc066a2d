"""Takes over dense weights: by the features that their values belong to where the layouts are known, else by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainer.models.blocks import Blocks, Shape, WeightLayout
from trainer.start_report import Change, WeightStart
from trainer.warm_start.source import Array, Ids, Source


@dataclass(frozen=True)
class Taking:
    """The values that a weight takes of a weight of the source, as places on each axis; a scalar has no axis."""

    source: str
    #: By axis, places (n,) in the new weight and those (n,) in the source's.
    axes: tuple[tuple[Ids, Ids], ...]

    def is_whole(self, shape: Shape, source_shape: Shape) -> bool:
        """Returns whether every value of both weights is among them."""
        return self.covers(shape) and self.uses(source_shape)

    def covers(self, shape: Shape) -> bool:
        """Returns whether the new weight has no other values."""
        return all(len(now) == size for (now, _), size in zip(self.axes, shape, strict=True))

    def uses(self, source_shape: Shape) -> bool:
        """Returns whether the source's weight has no other values."""
        return all(len(np.unique(old)) == size for (_, old), size in zip(self.axes, source_shape, strict=True))

    def put(self, values: Array, into: Array) -> None:
        """Copies the values."""
        if not self.axes:
            into[...] = values
            return
        into[np.ix_(*(now for now, _ in self.axes))] = values[np.ix_(*(old for _, old in self.axes))]

    @property
    def values(self) -> int:
        """Number of values that are taken."""
        return int(np.prod([len(now) for now, _ in self.axes]))


def find_by_layout(
    source: Source, shapes: Mapping[str, Shape], layouts: Mapping[str, WeightLayout]
) -> dict[str, Taking]:
    """Returns what each weight takes of the source's weight with the same role. layouts: of the new weights."""
    by_role = {
        layout.role: name
        for name, layout in source.layouts.items()
        if name in source.weights and layout.fits(source.weights[name].shape)
    }
    found: dict[str, Taking] = {}
    for name, layout in layouts.items():
        before = by_role.get(layout.role)
        if before is None or name not in shapes:
            continue
        axes = tuple(_matched(now, old) for now, old in zip(layout.axes, source.layouts[before].axes, strict=True))
        if all(len(now) for now, _ in axes):
            found[name] = Taking(before, axes)
    return found


def find_by_name(
    source: Source, shapes: Mapping[str, Shape], names: Mapping[str, str], *, partial: bool
) -> dict[str, Taking]:
    """Returns what each weight takes of the source's weight of the same name and shape.

    names: the source's names. partial: of another shape, with as many dimensions, the leading block is taken.
    """
    found: dict[str, Taking] = {}
    for name, shape in shapes.items():
        before = source.weights.get(names[name])
        if before is None or (before.shape != shape and not (partial and len(before.shape) == len(shape))):
            continue
        kept = [np.arange(min(sizes)) for sizes in zip(shape, before.shape, strict=True)]
        found[name] = Taking(names[name], tuple((each, each) for each in kept))
    return found


def take_weights(
    source: Source,
    model: nn.Module,
    takings: Mapping[str, Taking],
    optimizer: torch.optim.Optimizer | None,
    *,
    dry_run: bool,
) -> list[WeightStart]:
    """Copies the values, with those of the dense optimizer where a weight is taken whole; a dry run changes nothing."""
    report: list[WeightStart] = []
    state = model.state_dict()
    moved: dict[str, Taking] = {}
    for name, tensor in state.items():
        shape, taking = tuple(tensor.shape), takings.get(name)
        if taking is None:
            report.append(WeightStart(name, "new", shape))
            continue
        values = source.weights[taking.source]
        if not dry_run:
            whole = np.array(tensor.cpu().float().numpy() if tensor.is_floating_point() else tensor.cpu().numpy())
            taking.put(values, whole)
            tensor.copy_(torch.from_numpy(whole))
        kept = taking.is_whole(shape, values.shape) and _has_values(source, taking.source, optimizer)
        if kept:
            moved[name] = taking
        change = _change(taking, shape, values.shape)
        report.append(WeightStart(name, change, shape, taking.values, taking.source, values.shape, kept))
    if not dry_run and optimizer is not None and moved:
        _take_optimizer(source, model, moved, optimizer)
    used = {taking.source for taking in takings.values()}
    gone = [name for name in source.weights if name not in used]
    return [*report, *(WeightStart(name, "gone", (), 0, name, source.weights[name].shape) for name in gone)]


def _has_values(source: Source, name: str, optimizer: torch.optim.Optimizer | None) -> bool:
    return optimizer is not None and type(optimizer).__name__ == source.dense_optimizer and name in source.dense_values


def _take_optimizer(
    source: Source, model: nn.Module, moved: Mapping[str, Taking], optimizer: torch.optim.Optimizer
) -> None:
    content = optimizer.state_dict()
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if name not in moved:
            continue
        entry: dict[str, Tensor] = {}
        for key, values in source.dense_values[moved[name].source].items():
            value = np.array(values)
            if value.shape == tuple(parameter.shape):
                value = np.empty_like(value)
                moved[name].put(values, value)
            entry[key] = torch.from_numpy(value)
        content["state"][index] = entry
    optimizer.load_state_dict(content)


def _matched(now: Blocks, before: Blocks) -> tuple[Ids, Ids]:
    """Returns the places of the values on one axis whose blocks have the same label, in the new weight and the old."""
    starts: dict[str, tuple[int, int]] = {}
    at = 0
    for label, width in before:
        starts.setdefault(label, (at, width))
        at += width
    here, there = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    at = 0
    for label, width in now:
        start, other = starts.get(label, (0, 0))
        kept = min(width, other)
        here.append(np.arange(at, at + kept))
        there.append(np.arange(start, start + kept))
        at += width
    return np.concatenate(here), np.concatenate(there)


def _change(taking: Taking, shape: Shape, source_shape: Shape) -> Change:
    match taking.covers(shape), taking.uses(source_shape):
        case True, True:
            return "taken"
        case True, False:
            return "cut"
        case False, True:
            return "widened"
        case _:
            return "reshaped"
