"""Computes fingerprints of rows and weights, which the trainer takes of its tables and a server of what it staged.

A digest shows that a file is unchanged since it was written; a fingerprint shows that what was written is what the
trainer has. It is a sum over rows, so parts of a table can be computed anywhere and added modulo 2^64. A row's term is
a multilinear hash (Lemire and Kaser, "Strongly universal string hashing is fast", 2014) of its bits, keyed by its id
and then mixed by a bijection: any change within one word (4 bytes) of one row certainly changes the term, and any other
change does except with a probability of about 1 in 2^64. It guards against mistakes, not against an attacker, who could
write the manifest too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import ParityError
from storage.parallel import Pace, load_threads, map_in_order, map_paced

if TYPE_CHECKING:
    import torch

MASK = 2**64 - 1
_REMOVED_SALT = np.uint64(0x13198A2E03707344)
_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_VALUES = 1 << 18
_PARALLEL_BYTES = 16 << 20


def rows_fingerprint(ids: np.ndarray, rows: np.ndarray) -> int:
    """Returns the fingerprint of rows, in any order; 0 for none.

    ids: (n,) int64. rows: (n, row_bytes) uint8 as they are stored, or (n, dim) float32, which are stored as they are.
    """
    from storage._table import rows_fingerprint as native

    stored = np.ascontiguousarray(rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False))
    words = stored.shape[1] * stored.itemsize // 4
    encoded = stored.reshape(-1).view(np.uint8).reshape(len(stored), 4 * words)
    return native(np.ascontiguousarray(ids, np.int64), encoded, _keys(words))


def removed_fingerprint(ids: np.ndarray) -> int:
    """Returns the fingerprint of ids that a delta removes, in any order; 0 for none. ids: (m,) int64."""
    total = 0
    for start in range(0, len(ids), _CHUNK_VALUES):
        total += _summed(_mixed(_unsigned(ids[start : start + _CHUNK_VALUES]) ^ _REMOVED_SALT))
    return total & MASK


def table_fingerprint(ids: np.ndarray, rows: np.ndarray, removed: np.ndarray) -> int:
    """Returns a table's fingerprint in a delta's manifest: changed rows, as for `rows_fingerprint`, and removed ids."""
    return (rows_fingerprint(ids, rows) + removed_fingerprint(removed)) & MASK


def weights_fingerprint(weights: Mapping[str, np.ndarray | torch.Tensor], pace: Pace | None = None) -> int:
    """Returns the fingerprint of dense weights: names, shapes and bits, in any order. bfloat16 may come as uint16.

    pace: as for `map_paced`.
    """

    def term(entry: tuple[str, np.ndarray | torch.Tensor]) -> int:
        name, value = entry
        digest = hashlib.sha256(f"{name}:{list(value.shape)}:".encode())
        digest.update(np.ascontiguousarray(_bits(value)).reshape(-1).view(np.uint8).data)
        return int.from_bytes(digest.digest()[:8], "little")

    # The digest of a large weight is computed without the GIL.
    if pace is not None:
        return sum(map_paced(term, weights.items(), pace)) & MASK
    threads = load_threads() if sum(value.nbytes for value in weights.values()) >= _PARALLEL_BYTES else 1
    return sum(map_in_order(term, weights.items(), threads)) & MASK


def agreed_fingerprint(what: str, written: int, trained: int | None) -> str:
    """Returns the fingerprint of what is about to be written, as a manifest holds it.

    written: computed from the arrays of the writer. trained: what the trainer computed from its own tables or module,
    None when it computed nothing. Raises ParityError, naming `what`, when the two differ.
    """
    if trained is not None and fingerprint_hex(trained) != fingerprint_hex(written):
        raise ParityError(
            f"{what}: what is to be written is not what the trainer has: the fingerprint is "
            f"{fingerprint_hex(written)}, the trainer's own is {fingerprint_hex(trained)}; nothing is published"
        )
    return fingerprint_hex(written)


def fingerprint_hex(value: int) -> str:
    """Formats a fingerprint as 16 hex digits, as in manifests."""
    return f"{value & MASK:016x}"


def _bits(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    import torch

    tensor = value.detach().cpu().contiguous()
    bits: np.ndarray = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return bits


@lru_cache(maxsize=64)
def _keys(words: int) -> np.ndarray:
    # Odd, so that a change of one word alone can never cancel.
    keys = _mixed(np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN_RATIO) | np.uint64(1)
    keys.setflags(write=False)
    return keys


def _unsigned(ids: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(ids, np.int64).view(np.uint64)


def _summed(values: np.ndarray) -> int:
    return int(np.add.reduce(_mixed(values), dtype=np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    # The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection on 64 bits.
    values = values + _GOLDEN_RATIO
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
