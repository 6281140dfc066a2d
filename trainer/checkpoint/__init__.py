"""Training checkpoints: everything a resumed run needs to continue bit for bit, in safetensors and JSON only.

The layout is OUTPUT/checkpoints/commit-000000012/{state.json, dense.safetensors, tables/NAME.safetensors}. A commit
holds everything (a full commit) or what changed since another one, its parent (an increment). It appears by the rename
of a complete folder.
"""

from __future__ import annotations

from trainer.checkpoint.begun import begun_update, note_begun_update
from trainer.checkpoint.commits import Commit, checkpoints, read_commit, read_state
from trainer.checkpoint.load import commit_chain, load_checkpoint, read_dense, read_table
from trainer.checkpoint.log import CommitLog
from trainer.checkpoint.state import Position, TrainingState, UpdateState

__all__ = [
    "Commit",
    "CommitLog",
    "Position",
    "TrainingState",
    "UpdateState",
    "begun_update",
    "checkpoints",
    "commit_chain",
    "load_checkpoint",
    "note_begun_update",
    "read_commit",
    "read_dense",
    "read_state",
    "read_table",
]
