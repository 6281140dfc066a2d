"""Finds the dense weights of a delta, whether it has all of them or a difference to those of an earlier snapshot.

They are put together beside the weights that are served, which stay as they are. A difference is one to the snapshot
that is served when the delta is taken, or to the version itself, and the server has both. After a restart the deltas
that are kept in the store make them anew, from the last full copy on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from serving.updates.keep import kept_folder
from serving.updates.mount import LoadedVersion, StagedSnapshot
from storage.checkpoint import PublishedDelta, open_delta
from storage.checkpoint.delta_manifest import MAX_DEPTH
from storage.errors import LineageError

if TYPE_CHECKING:
    import torch

Weights = Mapping[str, "torch.Tensor"]


def weights_to_serve(
    delta: PublishedDelta, loaded: LoadedVersion, current: StagedSnapshot
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Returns the weights of a delta of `current`, and the snapshots whose kept deltas they need after a restart.

    They are put together while requests leave a core free. Their fingerprint is compared when the snapshot is judged.
    Raises LineageError for a difference to other weights.
    """
    against = delta.dense_against
    if not against:
        return delta.weights(), ()
    if against == loaded.published.snapshot:
        return delta.weights(loaded.graph.weights(), check=False, pace=loaded.model.give_way), ()
    if against == current.id:
        weights = delta.weights(current.snapshot.graph.weights(), check=False, pace=loaded.model.give_way)
        return weights, (*current.dense_needs, current.id)
    raise LineageError(
        f"{delta.path}: its dense weights are a difference to those of {against}, which is neither served nor its "
        "version; publish one with all weights"
    )


def kept_weights(
    delta: PublishedDelta, store: Path, version: str, weights: Weights, known: Mapping[str, Weights]
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Returns what `weights_to_serve` did, out of the deltas that a store keeps.

    version, weights: the snapshot of its version, and the weights of that. known: weights of snapshots that were put
    together before. Raises NotFound when a delta on the way is not kept, ParityError for weights that nobody published.
    """
    chain = [delta]
    while (against := chain[-1].dense_against) not in ("", version):
        if len(chain) > MAX_DEPTH:
            raise LineageError(f"{delta.path}: no full copy of the weights within {MAX_DEPTH} differences")
        chain.append(open_delta(kept_folder(store, against), verify=False))
    needs = tuple(each.snapshot for each in reversed(chain[1:]))
    nearest = next((place for place, each in enumerate(chain) if each.snapshot in known), len(chain))
    before: Weights | None = weights if chain[-1].dense_against else None
    if nearest < len(chain):
        before = known[chain[nearest].snapshot]
    for each in reversed(chain[:nearest]):
        before = each.weights(before)
    return dict(before or {}), needs
