"""
Measures what this machine can do at best, for benchmarks. The core is benchmarks/native/limits.
"""

from collections.abc import Sequence

import numpy
import numpy.typing

class IndexLimit:
    """
    The probe alone: unique ids (n,) in 64-byte lines of eight, four fifths full. 0 is no id here.
    """

    def __init__(self, ids: numpy.typing.NDArray[numpy.int64], isa: str = "") -> None: ...
    def size(self) -> int:
        """Ids that it holds."""

    def memory_bytes(self) -> int:
        """Bytes that the lines take."""

    @property
    def isa(self) -> str: ...
    def find(self, ids: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.uint32]) -> int:
        """
        ids (n,), places (n,) written: 2^32 - 1 where absent. Returns the number found.
        """

class RowLimit:
    """
    float32 rows by their number, without any index, on 2 MB pages. Row i holds the value i.
    """

    def __init__(self, rows: int, dim: int, isa: str = "") -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def gather(self, numbers: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32]) -> None:
        """
        numbers (n,), out (n, dim) written: copies. Raises IndexError for a number that is no row.
        """

    def pool(
        self,
        numbers: numpy.typing.NDArray[numpy.int64],
        offsets: numpy.typing.NDArray[numpy.int64],
        out: numpy.typing.NDArray[numpy.float32],
    ) -> None:
        """
        numbers (n,), offsets (bags + 1,), out (bags, dim) written: sums. Raises as gather, ValueError for bad offsets.
        """

class ByteLimit:
    """Bytes on 2 MB pages, to be read or copied from end to end."""

    def __init__(self, bytes: int) -> None: ...
    def memory_bytes(self) -> int:
        """Bytes that one read or one copy covers."""

    def read(self) -> int:
        """Reads all of them once; returns a sum."""

    def copy(self) -> None:
        """Copies all of them once."""

def has_io_uring() -> bool:
    """Returns whether this system lets a process use io_uring."""

def random_reads(
    path: str, *, block_bytes: int = 4096, depth: int = 32, count: int, seed: int = 0, engine: str = ""
) -> tuple[float, str]:
    """
    Reads `count` random blocks of a file with O_DIRECT, `depth` under way: reads a second, and by which engine.

    engine: io_uring, threads, or empty for the best that works. Raises OSError, ValueError.
    """

def open_load(
    port: int, requests: Sequence[bytes], *, rate: float, seconds: float, connections: int
) -> list[tuple[float, float, int]]:
    """
    Sends whole HTTP requests, in turn, at a fixed rate: for each when it was sent, in seconds from the start, its
    latency in ms, and its status.

    rate: a second; 0 for as many as the connections take, each one request at a time. Raises RuntimeError.
    """
