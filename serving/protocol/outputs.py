"""Handles the outputs that a request asks for, and their form, in the same way for every transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.protocol.classification import classify, wanted_classes
from serving.protocol.regions import Regions, region_part
from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import RequestedOutput


def requested_output(
    signature: ModelSignature, place: int, parameters: Mapping[str, Any], regions: Regions, *, binary: bool
) -> RequestedOutput:
    """Describes the output at position `place` as its parameters ask for it. Raises InvalidInput."""
    output = signature.output_at(place)
    classes = wanted_classes(output.name, output.dtype, parameters)
    part = region_part(f"output {output.name!r}", parameters)
    if part is not None:
        regions.check(part)
    return RequestedOutput(place, binary, classes, part)


def output_values(
    signature: ModelSignature, wanted: RequestedOutput, outputs: Sequence[np.ndarray]
) -> tuple[str, str, np.ndarray]:
    """Returns name, dtype and values of a requested output: the output itself, or its largest classes.

    Raises InvalidInput.
    """
    output, values = signature.output_at(wanted.index), outputs[wanted.index]
    if not wanted.classes:
        return output.name, output.dtype, values
    has_batch = signature.max_batch_size > 0
    return output.name, "BYTES", classify(values, wanted.classes, output.labels, has_batch=has_batch)
