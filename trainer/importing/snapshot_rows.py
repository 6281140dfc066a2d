"""The rows of a published snapshot by id, with the changes of a delta that is being made on top of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from storage.checkpoint import DeltaTable
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.row_streams import positions
from storage.checkpoint.row_tensors import encoded_rows
from storage.checkpoint.tensors import TensorFile
from storage.initializers import AbsentRows
from storage.rows import RowCodec
from trainer.publishing.embedding_layers import TableSource
from trainer.publishing.weight_rows import WeightRows


class SnapshotRows(WeightRows):
    """Reads single rows of a table. changes: what lies on top of the snapshot.

    The files are mapped. Those of a table that was compared with new rows were verified then; of others, what is read
    of them is not, and a server that has other rows refuses the golden scores.
    """

    def __init__(self, snapshot: AsOf, changes: DeltaTable) -> None:
        self.name, self.dim = changes.name, changes.dim
        self._changes = changes
        self._spec = snapshot.version.table(changes.name)
        self._codec = RowCodec(self._spec.row_type, self._spec.dim)
        # The newest first.
        self._deltas = [delta for delta in reversed(snapshot.deltas) if any(t.name == self.name for t in delta.tables)]
        entry = next(each for each in snapshot.version.manifest.tables if each.name == self.name)
        self._shards = [snapshot.version.path / shard for shard in entry.shards]

    @property
    def absent(self) -> AbsentRows:
        """The rows that ids without one read as."""
        return self._spec.absent

    def size(self) -> int:
        """Returns about how many rows there are; 0 only where there is none."""
        return self._spec.rows + sum(delta.table(self.name).rows for delta in self._deltas) + len(self._changes.ids)

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps ids (n,) int64 to rows (n, D) float32, zeros where there is none, and found (n,) bool."""
        rows, found = np.zeros((len(ids), self.dim), np.float32), np.zeros(len(ids), np.bool_)
        open_ = np.ones(len(ids), np.bool_)
        places = positions(self._changes.ids, ids)
        here = places >= 0
        rows[here], found[here] = self._changes.changed.codec.decode(self._changes.changed.encoded)[places[here]], True
        open_ &= ~here & ~np.isin(ids, self._changes.removed)
        for delta in self._deltas:
            if not open_.any():
                return rows, found
            for shard in delta.shards(self.name):
                self._take(shard.ids, shard.encoded, ids, rows, found, open_)
            open_ &= ~np.isin(ids, delta.removed(self.name))
        for path in self._shards if open_.any() else ():
            arrays = TensorFile.open(path).arrays
            places = positions(arrays["ids"], ids)
            wanted = np.flatnonzero((places >= 0) & open_)
            if len(wanted):
                values = np.ascontiguousarray(arrays["rows"][places[wanted]])
                encoded = encoded_rows(self._codec, values, len(wanted))
                assert encoded is not None
                rows[wanted], found[wanted], open_[wanted] = self._codec.decode(encoded), True, False
        return rows, found

    def _take(
        self,
        held: np.ndarray,
        encoded: np.ndarray,
        ids: np.ndarray,
        rows: np.ndarray,
        found: np.ndarray,
        open_: np.ndarray,
    ) -> None:
        """Takes what a shard of a delta holds of the ids that are open, in place."""
        places = positions(held, ids)
        here = np.flatnonzero((places >= 0) & open_)
        rows[here], found[here], open_[here] = self._codec.decode(encoded[places[here]]), True, False


@dataclass(frozen=True)
class SnapshotSource(TableSource):
    """A table whose rows are those of a snapshot with changes."""

    snapshot_rows: SnapshotRows | None = field(default=None)

    @property
    def absent(self) -> AbsentRows:
        """The rows that ids without one read as."""
        return self.live.absent

    @property
    def live(self) -> SnapshotRows:
        """The rows, to be read by id."""
        assert self.snapshot_rows is not None
        return self.snapshot_rows
