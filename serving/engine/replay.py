"""The golden replay: a version's own requests through the path that live requests take, before it may answer any."""

from __future__ import annotations

import numpy as np

from serving.engine.pipeline import Pipeline
from storage.checkpoint import Golden, GraphOutput
from storage.errors import ParityError


def replay_golden(pipeline: Pipeline, golden: Golden, outputs: tuple[GraphOutput, ...]) -> float:
    """The largest difference to the trainer's scores. Raises ParityError when one is over the version's tolerance."""
    scores = pipeline.score([pipeline.features(golden.columns, golden.batch)])
    worst = 0.0
    for entry, values in zip(outputs, scores.outputs, strict=True):
        expected = golden.outputs[entry.name]
        if values.shape != expected.shape:
            raise ParityError(f"golden requests: output {entry.name!r} is {values.shape}, expected {expected.shape}")
        difference = np.abs(values.astype(np.float64) - expected.astype(np.float64))
        largest = float(difference.max(initial=0.0))
        if not largest <= golden.tolerance:
            rows = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), difference.shape)
            raise ParityError(
                f"golden requests: output {entry.name!r} differs by {largest:.3g} in row {int(rows[0])}, at most "
                f"{golden.tolerance:.3g} is allowed; the version is not served"
            )
        worst = max(worst, largest)
    return worst
