"""Rewrites steps into fewer that give the same values. Each pass is a function of steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from storage.checkpoint.fused.steps import (
    Activate,
    Activation,
    Copy,
    Kind,
    Linear,
    Part,
    Step,
    Steps,
    moved,
    reads,
)


def rewritten(steps: Steps) -> Steps:
    """Applies all passes."""
    return without_unused(in_place(with_activations(steps)))


def with_activations(steps: Steps) -> Steps:
    """Lets a linear layer apply the activation that alone reads its result."""
    readers = Counter(part.value for step in steps.steps for part in reads(step))
    layers: dict[Part, int] = {}
    kept: list[Step | None] = []
    for step in steps.steps:
        if isinstance(step, Linear) and step.activation is Activation.NONE:
            layers[step.to] = len(kept)
        elif isinstance(step, Activate):
            place = layers.get(step.source)
            layer = None if place is None else kept[place]
            is_alone = readers[step.source.value] == 1 and _is_whole(steps, step.source, step.width)
            if place is not None and isinstance(layer, Linear) and is_alone:
                kept[place] = None
                kept.append(replace(layer, to=step.to, activation=step.activation))
                continue
        kept.append(step)
    return replace(steps, steps=tuple(step for step in kept if step is not None))


def in_place(steps: Steps) -> Steps:
    """Writes a value where it would be copied to, and leaves the copy out."""
    places: dict[int, Part] = {}
    kept: list[Step] = []
    for step in steps.steps:
        if isinstance(step, Copy) and step.source.value not in places:
            is_scratch = steps.values[step.source.value].kind is Kind.SCRATCH
            if is_scratch and _is_whole(steps, step.source, step.width):
                places[step.source.value] = step.to
                continue
        kept.append(step)

    def move(part: Part) -> Part:
        while (place := places.get(part.value)) is not None:
            part = Part(place.value, place.offset + part.offset)
        return part

    return replace(steps, steps=tuple(moved(step, move) for step in kept))


def without_unused(steps: Steps) -> Steps:
    """Leaves out scratch values that no step reads, and the steps that write only them."""
    kept = list(steps.steps)
    while True:
        read = {part.value for step in kept for part in reads(step)}
        used = [step for step in kept if step.to.value in read or steps.values[step.to.value].kind is Kind.OUTPUT]
        if len(used) == len(kept):
            break
        kept = used
    written = {step.to.value for step in kept}
    numbers: dict[int, int] = {}
    for number, value in enumerate(steps.values):
        if value.kind is not Kind.SCRATCH or number in written:
            numbers[number] = len(numbers)
    return replace(
        steps,
        values=tuple(steps.values[number] for number in numbers),
        steps=tuple(moved(step, lambda part: Part(numbers[part.value], part.offset)) for step in kept),
    )


def _is_whole(steps: Steps, part: Part, width: int) -> bool:
    return part.offset == 0 and steps.values[part.value].width == width
