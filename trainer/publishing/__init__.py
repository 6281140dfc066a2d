"""From a trained module to a published version: cut at the embedding layers, export the rest, prove that both agree."""

from __future__ import annotations

from trainer.publishing.publish import publish

__all__ = ["publish"]
