"""Page files: the rows that lie on SSD, and how they are read."""

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

        direct: rows are read past the page cache, where the file system does that.
        Raises CorruptPageError for a file that is not what was written, OSError.
        """

    @property
    def path(self) -> str:
        """Where it was opened"""

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
        """How rows are encoded, as the writer named it"""

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
        """Whether rows are read past the page cache"""

    def scan(
        self, first: int, limit: int
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]]:
        """
        The rows from id `first` on, at most `limit`: ids (n,) int64 ascending, rows (n, row_bytes) uint8.

        Raises CorruptPageError, OSError.
        """

    def problems(self, first: int, count: int) -> list[str]:
        """
        Reads pages `first` to before `first + count` and says what is wrong, a text for each page that is not right.

        Raises OSError.
        """

class PageWriter:
    """
    Writes a page file, one thread at a time; it appears under its name when `finish` has it on the disk.

    row_bytes: of one encoded row. row_type: a word of at most 15 characters. bits_per_id: of the Bloom filters.
    Raises ValueError for what cannot be laid out, OSError.
    """

    def __init__(
        self, path: str, *, table: int, row_bytes: int, row_type: str = "fp32", bits_per_id: int = 10
    ) -> None: ...
    def append(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]) -> None:
        """
        Adds rows. ids: (n,) int64, strictly ascending over all calls. rows: (n, row_bytes) uint8.

        Raises ValueError for ids that are not, OSError.
        """

    def append_sorting(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]) -> None:
        """
        As append, for ids in any order: they are sorted here, their rows stay where they are until they are written.

        Takes 32 bytes of memory an id while it runs.
        """

    def finish(self) -> None:
        """
        Ends the file: on the disk, under its name, when this returns. Raises OSError.
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
        The next changes, when all before are taken.

        ids: (n,) int64, ascending over all calls. removed: (n,) uint8, not 0 where the id has no row any more.
        rows: (n, row_bytes) uint8.
        """

    def advance(self, bytes: int) -> bool:
        """
        Works until all that was offered is taken (True), or about so many bytes were written (False).
        """

    def finish(self, bytes: int) -> bool:
        """
        As advance, for what is left of the base; the writer is finished by its owner.
        """

class RunsMerge:
    """
    Copies sorted files into a writer as one, in bounded steps. An id in two of them is a ValueError.
    """

    def __init__(self, runs: Sequence[PageFile], writer: PageWriter) -> None: ...
    def advance(self, bytes: int) -> bool:
        """
        Works until all is written (True), or about so many bytes were (False). Raises ValueError, OSError.
        """

class PageReader:
    """
    Reads rows of any number of page files, from any number of threads.

    io: "uring", "threads" or "auto": io_uring where the kernel allows it. depth: pages of one call in flight.
    lanes: calls that read at the same time; one more waits. threads: of the fall-back.
    Raises OSError where "uring" is refused.
    """

    def __init__(self, *, io: str = "auto", depth: int = 64, lanes: int = 16, threads: int = 32) -> None: ...
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

        requests: a list of (file or None, ids (n,) int64, rows (n, row_bytes) uint8, states (n,) uint8).
        Rows and states are written in place; a state is ABSENT, FOUND or UNRESOLVED. Rows that are not found stay.
        timeout_s: what has not come by then is unresolved; None waits. Nothing is written after the call.
        Raises CorruptPageError and OSError, which name file and page; what was answered before counts for nothing.
        """

    def stats(self) -> dict[str, int]:
        """
        Counts since the start: pages read, coalesced reads, unresolved ids, ids absent without a read
        """

    def close(self) -> None:
        """
        Waits for the reads under way, then gives back rings, memory and threads; later reads raise OSError.
        """

    @property
    def io(self) -> str:
        """Which way is in use, uring or threads"""

class ChangeSet:
    """
    A set of ids that only grows. Any thread may ask and add; asking takes no lock.
    """

    def __init__(self) -> None: ...
    def add(self, ids: numpy.typing.NDArray[numpy.int64]) -> None:
        """Adds ids (n,) int64."""

    def contains(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]:
        """(n,) uint8, 1 where an id (n,) int64 was added"""

    def sorted(self) -> numpy.typing.NDArray[numpy.int64]:
        """All ids, ascending"""

    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes"""

def crc32c(data: bytes, before: int = 0, *, table: bool = False) -> int:
    """
    CRC-32C of bytes, on top of that of the bytes before them. table: without the processor's own instruction.
    """

def folder_reads_direct(folder: str) -> bool:
    """
    Whether files in a folder can be read past the page cache; tries it with a file of one sector.
    """
