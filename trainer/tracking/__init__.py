"""Tracking: the figures of a run go to TensorBoard or MLflow while it trains."""

from __future__ import annotations

from trainer.tracking.track import Track, tracked

__all__ = ["Track", "tracked"]
