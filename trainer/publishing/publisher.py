"""Publisher: versions and deltas of a module that goes on training.

A snapshot is published in two steps, so that what is published and what the trainer would resume from are one state:
prepare() closes the tables' changes and draws the snapshot; the caller saves a training checkpoint with `lineage`;
write() writes it. After a crash in between, the checkpoint's lineage has it pending and write() makes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from storage.features import Column, FeatureSpec
from trainer.publishing.lineage import Lineage, Pending
from trainer.publishing.policy import DeltaPolicy


class Publisher:
    """Publishes snapshots of `module` into repository/name. One thread; nothing trains inside a call.

    module, sample, name, spec, max_batch_size, golden_requests, tolerance, metadata: as for `publish`.
    policy: what "auto" makes, and what stays in the repository. lineage: of the checkpoint that is resumed.
    """

    def __init__(
        self,
        module: nn.Module,
        sample: object,
        repository: Path | str,
        *,
        name: str,
        spec: FeatureSpec | None = None,
        max_batch_size: int = 1024,
        golden_requests: int = 256,
        tolerance: float = 1e-6,
        metadata: Mapping[str, Any] | None = None,
        policy: DeltaPolicy | None = None,
        lineage: Lineage | None = None,
        progress: bool = False,
    ) -> None:
        raise NotImplementedError

    @property
    def lineage(self) -> Lineage:
        """What was published so far, and what is pending. Save it with the training state."""
        raise NotImplementedError

    def offer(self, columns: Mapping[str, Column]) -> None:
        """Takes raw rows that were just trained on (with a spec only), for golden requests that reach changed rows."""
        raise NotImplementedError

    def prepare(
        self,
        kind: Literal["auto", "version", "delta", "cumulative"] = "auto",
        *,
        from_snapshot: str | None = None,
        version: int | None = None,
        expire: bool = True,
    ) -> Pending:
        """Closes the changes so far and draws the next snapshot, which is then `lineage.pending`.

        from_snapshot: the snapshot, by id or VERSION.SEQUENCE, that the new one continues; default: the newest.
        version: the number of a version; default: the next free one. expire: erases rows by policy.expire_after first.
        Raises NotFound for a snapshot that nothing is known of, Unsupported for a delta of nn.Embedding layers.
        """
        raise NotImplementedError

    def write(self) -> Path:
        """Writes what is pending and returns its folder; again, it finds what lies there already.

        Raises ParityError when the module's scores are not those of the halves that are published.
        """
        raise NotImplementedError

    def publish(
        self,
        kind: Literal["auto", "version", "delta", "cumulative"] = "auto",
        *,
        from_snapshot: str | None = None,
        version: int | None = None,
    ) -> Path:
        """prepare() and write() in one, for a loop that keeps no training checkpoints."""
        self.prepare(kind, from_snapshot=from_snapshot, version=version)
        return self.write()
