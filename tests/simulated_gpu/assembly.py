"""Unpacks a batch as cuda/assemble.cuh does: the slow and obvious reference, checked at every step.

Staging begins with words of int64: the stamp, the rows of the batch, the number of its users (0 where every section
has a row for each row of the batch), the offset of the rows' users (int32 each), then the offset of each input's
section. A section is its rows, one after the other.

A row of the table is for one input: where its tensor begins in the target, bytes of a row, log2 of the bytes that are
moved at once, 1 for the user's side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.simulated_gpu.mistakes import AssemblyError

HEADER_WORDS = 4
_LARGEST_UNIT = 4  # 16 bytes


@dataclass(frozen=True)
class Memory:
    """The bytes of a buffer. address: of the first byte, for checks of alignment."""

    what: str
    data: np.ndarray
    address: int

    def take(self, begin: int, size: int, why: str, unit: int = 1) -> np.ndarray:
        """Returns `size` bytes that are moved `unit` at once."""
        if begin < 0 or begin + size > self.data.size:
            raise AssemblyError(f"{why}: bytes {begin} to {begin + size} of {self.what}, which has {self.data.size}")
        if size and ((self.address + begin) % unit or size % unit):
            raise AssemblyError(f"{why}: bytes {begin} to {begin + size} of {self.what} are no multiples of {unit}")
        return self.data[begin : begin + size]


def assemble(staging: Memory, table: np.ndarray, target: Memory, stamp: np.ndarray, rows: int, widest: int) -> None:
    """Writes `rows` rows of every input, and the stamp. Raises AssemblyError."""
    words = HEADER_WORDS + len(table)
    header = staging.take(0, 8 * words, "the header", 8).view(np.int64)
    batch, users, users_at = (int(word) for word in header[1:HEADER_WORDS])
    if batch < 0 or users < 0:
        raise AssemblyError(f"the header says {batch} rows of {users} users")
    # A graph for fewer rows takes the first ones: a run before a capture may find any batch there.
    filled = min(batch, rows)
    user_of = np.arange(filled)
    if users:
        user_of = staging.take(users_at, 4 * filled, "the users of rows", 4).view(np.int32).astype(np.int64)
        if filled and (user_of.min() < 0 or user_of.max() >= users):
            raise AssemblyError(f"the users of rows are {user_of.min()} to {user_of.max()}; there are {users}")
    written: list[tuple[int, int, int]] = []
    for number, (target_at, row_bytes, unit, side) in enumerate(table.tolist()):
        why = f"input {number}"
        if row_bytes < 0 or row_bytes > widest or not 0 <= unit <= _LARGEST_UNIT or side not in (0, 1):
            raise AssemblyError(
                f"{why}: rows of {row_bytes} bytes (the longest has {widest}), log2 of the unit {unit}, side {side}"
            )
        by_user = side == 1 and users > 0
        source_rows = users if by_user else filled
        source = staging.take(int(header[HEADER_WORDS + number]), source_rows * row_bytes, f"{why}: section", 1 << unit)
        source = source.reshape(source_rows, row_bytes)
        to = target.take(target_at, rows * row_bytes, f"{why}: tensor", 1 << unit).reshape(rows, row_bytes)
        to[:filled] = source[user_of] if by_user else source
        to[filled:] = 0
        written.append((target_at, target_at + rows * row_bytes, number))
    written = sorted(each for each in written if each[0] < each[1])
    for one, other in zip(written, written[1:], strict=False):
        if one[1] > other[0]:
            raise AssemblyError(f"the tensors of inputs {one[2]} and {other[2]} overlap")
    stamp[:] = header[:1].view(np.uint8)
