"""Packs the inputs of a batch into one pinned buffer: one copy moves exactly the bytes that are used.

On the device a kernel unpacks them into tensors at fixed addresses, which a CUDA graph needs (cuda/assemble.cuh): rows
past the batch become zeros, and one row of a user becomes a row for each of their items.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from storage.checkpoint.graph import TORCH_DTYPES
from storage.checkpoint.manifest import GraphInput, GraphOutput
from storage.features.dtypes import NUMPY_DTYPES

# Words of the header before the offsets of the sections: stamp, batch, users, offset of the rows' users.
_HEADER_WORDS = 4
_SECTION_ALIGN = 16
_TENSOR_ALIGN = 256
# Bytes before the outputs: the stamp of the batch, then how many ids of unpooled and of pooled features a GPU did not
# have.
HEAD_BYTES = 32
COUNTS_AT, COUNTS_END = 8, 24


@dataclass(frozen=True)
class Section:
    """One input of the graph."""

    name: str
    dtype: str
    row_shape: tuple[int, ...]
    row_bytes: int
    is_user: bool
    #: Offset of its tensor on the device, for as many rows as there may be.
    offset: int


@dataclass(frozen=True)
class PackedInputs:
    """A batch in a packed buffer."""

    #: One array an input, to be written to.
    views: list[np.ndarray]
    #: The header, its stamp 0.
    header: np.ndarray
    #: The user of each row, to be written to; None where all inputs have a row for each.
    user_of_row: np.ndarray | None
    #: Number of bytes used.
    size: int


def aligned(size: int, to: int) -> int:
    """Rounds `size` up to a multiple."""
    return -(-size // to) * to


class InputLayout:
    """Layout of a graph's inputs, packed and unpacked. Shared by all sessions of a model; thread-safe.

    packed_bytes, target_bytes: sizes for a batch of max_rows rows.
    """

    def __init__(self, inputs: Sequence[GraphInput], user_places: Set[int], max_rows: int) -> None:
        """Computes the layout. user_places: numbers of the inputs that are the user's side."""
        self.max_rows = max_rows
        self.sections: list[Section] = []
        offset = 0
        for number, entry in enumerate(inputs):
            row_shape = tuple(entry.shape[1:])
            row_bytes = prod(row_shape) * np.dtype(NUMPY_DTYPES[entry.dtype]).itemsize
            section = Section(entry.name, entry.dtype, row_shape, row_bytes, number in user_places, offset)
            self.sections.append(section)
            offset += aligned(row_bytes * max_rows, _TENSOR_ALIGN)
        self.target_bytes = max(offset, _TENSOR_ALIGN)
        self._measure()

    def only(self, places: Sequence[int]) -> InputLayout:
        """Returns a layout of some of the inputs, by number, to the same tensors; nothing touches the others."""
        part = copy.copy(self)
        part.sections = [self.sections[place] for place in places]
        part._measure()
        return part

    def table(self) -> np.ndarray:
        """Returns (inputs, 4) int64, as the kernel takes it."""
        rows = [
            (section.offset, section.row_bytes, _unit(section.row_bytes), int(section.is_user))
            for section in self.sections
        ]
        return np.array(rows, np.int64).reshape(-1, 4)

    def tensors(self, target: torch.Tensor, rows: int) -> list[torch.Tensor]:
        """Returns the graph's inputs on the device, with this many rows."""
        return [
            target[section.offset : section.offset + rows * section.row_bytes]
            .view(TORCH_DTYPES[section.dtype])
            .view(rows, *section.row_shape)
            for section in self.sections
        ]

    def packed(self, buffer: np.ndarray, rows: int, users: int) -> PackedInputs:
        """Returns the views of a batch of this many rows (at most max_rows) and users (or 0) in a buffer of
        packed_bytes.
        """
        assert max(rows, users) <= self.max_rows, f"{rows} rows of {users} users, and room for {self.max_rows}"
        offsets, size = self._place(rows, users)
        views = [
            np.ndarray(
                (users if users and section.is_user else rows, *section.row_shape),
                NUMPY_DTYPES[section.dtype],
                buffer,
                offset,
            )
            for section, offset in zip(self.sections, offsets[1:], strict=True)
        ]
        user_of_row = buffer[offsets[0] : offsets[0] + 4 * rows].view(np.int32) if users else None
        return PackedInputs(views, np.array([0, rows, users, *offsets], np.int64), user_of_row, size)

    def _measure(self) -> None:
        self.widest = max((section.row_bytes for section in self.sections), default=1)
        self._header_bytes = aligned((_HEADER_WORDS + len(self.sections)) * 8, _SECTION_ALIGN)
        self.packed_bytes = self._place(self.max_rows, self.max_rows)[1]

    def _place(self, rows: int, users: int) -> tuple[list[int], int]:
        """Returns the offsets of the users of rows and of every section; and the end."""
        at = self._header_bytes
        offsets = [at]
        if users:
            at = aligned(at + 4 * rows, _SECTION_ALIGN)
        for section in self.sections:
            offsets.append(at)
            at = aligned(at + section.row_bytes * (users if users and section.is_user else rows), _SECTION_ALIGN)
        return offsets, at


class OutputLayout:
    """Layout of a batch's outputs: the head, with the stamp of the batch, then one output after the other."""

    def __init__(self, outputs: Sequence[GraphOutput]) -> None:
        self._dtypes = [entry.dtype for entry in outputs]
        self._shapes = [tuple(entry.shape[1:]) for entry in outputs]
        self._row_bytes = [
            prod(shape) * np.dtype(NUMPY_DTYPES[dtype]).itemsize
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]

    def bytes_for(self, rows: int) -> int:
        """Returns the bytes of a batch, head included."""
        return HEAD_BYTES + sum(aligned(size * rows, _SECTION_ALIGN) for size in self._row_bytes)

    def tensors(self, buffer: torch.Tensor, rows: int) -> list[torch.Tensor]:
        """Returns the outputs of a batch in a buffer, on the device or off it."""
        found = []
        at = HEAD_BYTES
        for dtype, shape, size in zip(self._dtypes, self._shapes, self._row_bytes, strict=True):
            part = buffer[at : at + rows * size].view(TORCH_DTYPES[dtype])
            found.append(part.view(rows, *shape))
            at += aligned(size * rows, _SECTION_ALIGN)
        return found


def _unit(row_bytes: int) -> int:
    """Returns log2 of the bytes that can be moved at once: the largest power of two that divides the row, at most 16.

    Sections and tensors begin at multiples of 16, so that every row begins at a multiple of it.
    """
    return min(4, (row_bytes & -row_bytes).bit_length() - 1) if row_bytes else 0
