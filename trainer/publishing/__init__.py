"""Publishes a trained module as versions and deltas.

A module is cut at its embedding layers, the rest is exported, and both halves are shown to agree with the whole.
"""

from __future__ import annotations

from trainer.publishing.changes_publisher import Outcome
from trainer.publishing.lineage import Lineage, Pending, Published
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.publish import publish, publish_module
from trainer.publishing.publisher import Publisher, WantedKind

__all__ = [
    "DeltaPolicy",
    "Lineage",
    "Outcome",
    "Pending",
    "Published",
    "Publisher",
    "WantedKind",
    "publish",
    "publish_module",
]
