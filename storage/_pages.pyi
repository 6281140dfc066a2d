"""Page files: rows that lie on SSD, and their readers and writers."""

from collections.abc import Sequence

import numpy
import numpy.typing

ABSENT: int = 0

FOUND: int = 1

UNRESOLVED: int = 2

class CorruptPageError(Exception):
    pass

class PageFile:
    """
    A page file, open for reading: rows of one table, sorted by id, in pages that are checked one by one.

    It never changes. Any number of threads may read it, also when its name is gone from the folder.
    """

    @staticmethod
    def open(path: str, *, direct: bool = False) -> PageFile:
        """
        Opens a file; its directory and filters are read into memory.

        direct: rows are read past the page cache, where the file system does that. Raises CorruptPageError for a file
        that is not as it was written, OSError.
        """

    @property
    def path(self) -> str:
        """Path under which it was opened"""

    @property
    def table(self) -> int:
        """Number of the table"""

    @property
    def rows(self) -> int:
        """Number of rows"""

    @property
    def pages(self) -> int:
        """Number of pages"""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page"""

    @property
    def row_bytes(self) -> int:
        """Bytes of an encoded row"""

    @property
    def row_type(self) -> str:
        """Encoding of the rows, as the writer named it"""

    @property
    def first_id(self) -> int:
        """Lowest id; 0 without rows"""

    @property
    def last_id(self) -> int:
        """Highest id; 0 without rows"""

    @property
    def file_bytes(self) -> int:
        """Bytes on the disk"""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the directory and the filters take"""

    @property
    def direct(self) -> bool:
        """True if rows are read past the page cache"""

    def scan(
        self, first: int, limit: int
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]]:
        """
        Returns the rows from id `first` on, at most `limit`: ids (n,) int64 ascending, rows (n, row_bytes) uint8.

        Raises CorruptPageError, OSError.
        """

    def problems(self, first: int, count: int) -> list[str]:
        """
        Reads pages `first` to before `first + count` and returns a text for each page that is damaged.

        Raises OSError.
        """

class PageWriter:
    """
    Writes a page file; it appears under its name when `finish` has it on the disk. Not thread-safe.

    row_bytes: bytes of one encoded row. row_type: a word of at most 15 characters. bits_per_id: size of the Bloom
    filters. Raises ValueError for sizes that cannot be laid out, OSError.
    """

    def __init__(
        self, path: str, *, table: int, row_bytes: int, row_type: str = "fp32", bits_per_id: int = 10
    ) -> None: ...
    def append(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]) -> None:
        """
        Adds rows. ids: (n,) int64, strictly ascending over all calls. rows: (n, row_bytes) uint8.

        Raises ValueError for ids that are not ascending, OSError.
        """

    def append_sorting(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]) -> None:
        """
        Adds rows as `append` does, for ids in any order: they are sorted here, their rows are not moved before they are
        written.

        Takes 32 bytes of memory an id while it runs.
        """

    def finish(self) -> None:
        """
        Ends the file: it is on the disk, under its name, when this returns. Raises OSError.
        """

    @property
    def rows(self) -> int:
        """Rows so far"""

    @property
    def last_id(self) -> int:
        """The id of the last row; 0 before the first"""

    @property
    def bytes(self) -> int:
        """Bytes of pages so far"""

class ChangesMerge:
    """
    Copies a file into a writer with changes on top of it, in bounded steps.

    base: None when there are only changes.
    """

    def __init__(self, base: PageFile | None, writer: PageWriter) -> None: ...
    def offer(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        removed: numpy.typing.NDArray[numpy.uint8],
    ) -> None:
        """
        Offers the next changes, when all earlier ones are taken.

        ids: (n,) int64, ascending over all calls. removed: (n,) uint8, not 0 where the id has no row any more. rows:
        (n, row_bytes) uint8.
        """

    def advance(self, bytes: int) -> bool:
        """
        Works until all that was offered is taken (returns True), or about `bytes` bytes were written (returns False).
        """

    def finish(self, bytes: int) -> bool:
        """
        Works as `advance` does on what is left of the base; the writer is finished by its owner.
        """

class RunsMerge:
    """
    Copies sorted files into a writer as one, in bounded steps. An id in two of them is a ValueError.
    """

    def __init__(self, runs: Sequence[PageFile], writer: PageWriter) -> None: ...
    def advance(self, bytes: int) -> bool:
        """
        Works until all is written (returns True), or about `bytes` bytes were (returns False).

        Raises ValueError, OSError.
        """

class PageReader:
    """
    Reads rows of any number of page files. Thread-safe.

    io: "uring", "threads" or "auto": io_uring where the kernel allows it. depth: pages of one call in flight.
    page_queues: calls that read at the same time; one more waits. threads: number of threads of the fall-back. Raises
    OSError where "uring" is refused.
    """

    def __init__(self, *, io: str = "auto", depth: int = 64, page_queues: int = 16, threads: int = 32) -> None: ...
    def read(
        self,
        requests: list[
            tuple[
                PageFile | None,
                numpy.typing.NDArray[numpy.int64],
                numpy.typing.NDArray[numpy.uint8],
                numpy.typing.NDArray[numpy.uint8],
            ]
        ],
        timeout_s: float | None = None,
    ) -> None:
        """
        Answers ids of many tables; all their pages are in flight together, and the GIL is free meanwhile.

        requests: a list of (file or None, ids (n,) int64, rows (n, row_bytes) uint8, states (n,) uint8). Rows and
        states are written in place; a state is ABSENT, FOUND or UNRESOLVED. Rows that are not found are left as they
        are. timeout_s: ids that have not been read by then are unresolved; None waits. Nothing is written after the
        call. Raises CorruptPageError and OSError, which name file and page; results written before are then void.
        """

    def stats(self) -> dict[str, int]:
        """
        Returns counts since the start: pages read, coalesced reads, unresolved ids, ids absent without a read
        """

    def close(self) -> None:
        """
        Waits for the reads under way, then frees rings, memory and threads; later reads raise OSError.
        """

    @property
    def io(self) -> str:
        """The way of reading in use, uring or threads"""

class ChangeSet:
    """A set of ids that only grows. Thread-safe; `contains` takes no lock."""

    def __init__(self) -> None: ...
    def add(self, ids: numpy.typing.NDArray[numpy.int64]) -> None:
        """Adds ids (n,) int64."""

    def contains(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]:
        """Returns (n,) uint8, 1 where an id (n,) int64 was added"""

    def sorted(self) -> numpy.typing.NDArray[numpy.int64]:
        """Returns all ids, ascending"""

    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes"""

def crc32c(data: bytes, before: int = 0, *, table: bool = False) -> int:
    """
    Returns the CRC-32C of bytes, continuing from that of the bytes before them. table: without the processor's own
    instruction.
    """

def folder_reads_direct(folder: str) -> bool:
    """
    Returns whether files in a folder can be read past the page cache; tries it with a file of one sector.
    """
