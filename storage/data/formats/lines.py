"""Cuts files of text into blocks of lines, and finds the lines of a block again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.data.compressed import HEAD_BYTES
from storage.data.files import DataFile
from storage.data.formats.base import Block
from storage.errors import InvalidInput

_CHUNK_BYTES = 16 << 20
_LONGEST_LINE = 64 << 20
_BOM = b"\xef\xbb\xbf"
_LF, _CR = 10, 13
# How files begin whose names should end in these extensions.
_CODECS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zst"}


@dataclass(frozen=True)
class Rows:
    """The rows of some text: those of its lines that are not empty."""

    #: Where each row begins, and where it ends, after its line end; (N,) int64.
    starts: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    #: Where the whole rows of the text end, empty lines included.
    end: int


def rows_of(data: Any, quote: str | None, *, last: bool) -> Rows:
    """Finds the rows of some text that begins at a line.

    quote: encloses line ends that end no row, None where every line end ends one. last: the text ends here, so that its
    last line need not have a line end.
    """
    text = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(text == _LF) + 1
    if quote is not None and len(ends):
        quotes = np.flatnonzero(text == ord(quote))
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    if last and len(text) and (not len(ends) or ends[-1] < len(text)):
        ends = np.append(ends, len(text))
    starts = np.concatenate([np.zeros(min(1, len(ends)), dtype=np.int64), ends[:-1]])
    # An empty line is a line end, or two of them as on Windows.
    lengths, first, final = ends - starts, text[starts], text[ends - 1]
    empty = (lengths == 1) & ((first == _LF) | (first == _CR)) | (lengths == 2) & (first == _CR) & (final == _LF)
    content = ~empty
    return Rows(starts[content], ends[content], int(ends[-1]) if len(ends) else 0)


def first_row(file: DataFile, quote: str | None) -> tuple[bytes, int, int]:
    """Returns the first row of a file, where it ends, and the number of the line after it."""
    count = HEAD_BYTES
    with file.place.open() as source:
        while True:
            data = bytes(source.read_at(count, 0))
            skipped = len(_BOM) if data.startswith(_BOM) else 0
            found = rows_of(data[skipped:], quote, last=len(data) < count)
            if len(found.starts) or len(data) < count or count > _CHUNK_BYTES:
                break
            count *= 8
    for mark, codec in _CODECS.items():
        if data.startswith(mark):
            name = file.place.name
            raise InvalidInput(f"is compressed, which its name does not say; call it {name}.{codec}", field="data")
    if not len(found.starts):
        raise InvalidInput(f"no line in the first {len(data)} bytes; expected text", field="data")
    start, end = skipped + int(found.starts[0]), skipped + int(found.ends[0])
    return data[start:end], end, data.count(b"\n", 0, end) + 1


def cut(file: DataFile, quote: str | None, block_rows: int, *, has_header: bool) -> tuple[Block, ...]:
    """Cuts a file into blocks of `block_rows` rows, without its header. Reads the whole file."""
    offset, line = 0, 1
    if has_header:
        _, offset, line = first_row(file, quote)
    blocks: list[Block] = []
    open_start, open_line, open_rows = offset, line, 0
    left = b""
    with file.place.open() as source:
        source.seek(offset)
        while True:
            chunk = source.read(_CHUNK_BYTES)
            data = left + chunk
            if not data:
                break
            if offset == 0 and data.startswith(_BOM):
                data, offset, open_start = data[len(_BOM) :], len(_BOM), len(_BOM)
            found = rows_of(data, quote, last=not chunk)
            counted = 0
            # The rows after which a block is full.
            for row in range(block_rows - open_rows - 1, len(found.ends), block_rows):
                end = int(found.ends[row])
                blocks.append(Block(block_rows, open_start, offset + end, open_line))
                line += data.count(b"\n", counted, end)
                counted, open_start, open_line = end, offset + end, line
            open_rows = (open_rows + len(found.ends)) % block_rows
            line += data.count(b"\n", counted, found.end)
            offset += found.end
            left = data[found.end :]
            if len(left) > _LONGEST_LINE:
                raise InvalidInput(
                    f"line {line} is longer than {_LONGEST_LINE >> 20} MiB; expected text with an end of each row"
                    + ("; is a quote not closed?" if quote else ""),
                    field="data",
                )
            if not chunk:
                break
    if open_rows:
        blocks.append(Block(open_rows, open_start, offset, open_line))
    return tuple(blocks)


def read_bytes(file: DataFile, block: Block) -> Any:
    """Reads the bytes of a block as a pyarrow Buffer. Raises InvalidInput when the file has become shorter."""
    with file.place.open() as source:
        data = source.read_at(block.end - block.start, block.start)
    if len(data) != block.end - block.start:
        raise InvalidInput("the file has become shorter while it was read; expected files that do not change")
    return data


def line_of(data: Any, quote: str | None, block: Block, row: int) -> int:
    """Returns the number of the line that a row of a block begins in."""
    start = int(rows_of(data, quote, last=True).starts[row])
    return block.line + bytes(data)[:start].count(b"\n")
