"""Defines the bounds of the SSD tier, and sets up RocksDB for point lookups of random bytes in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rocksdict

from storage.errors import ConfigError

IO_KINDS = ("auto", "uring", "threads")
DIRECT_KINDS = ("auto", "on", "off")
# Files of changes that may lie side by side before they are compacted.
_CHANGE_FILES = 32


@dataclass(frozen=True)
class SsdOptions:
    """The bounds of the SSD tier. Sizes are in bytes."""

    #: The block cache of RocksDB, which holds changes and markers.
    block_cache_bytes: int = 64 << 20
    #: A write buffer of RocksDB.
    write_buffer_bytes: int = 16 << 20
    #: The most bytes of one write batch to RocksDB.
    write_batch_bytes: int = 4 << 20
    #: The bits for each key in the Bloom filters of RocksDB.
    bloom_bits_per_key: int = 10
    #: The files that RocksDB keeps open.
    open_files: int = 512
    #: The bytes a second of RocksDB's compactions, and of the tier's compactions together with what they read.
    write_rate_bytes: int = 128 << 20
    #: The bits for each id in the Bloom filters of the page files.
    page_bloom_bits: int = 10
    #: "uring", "threads", or "auto": io_uring where the kernel allows it.
    io: str = "auto"
    #: Whether rows are read past the page cache: "on", "off", or "auto": when the page files are larger than a quarter
    #: of the machine's memory.
    direct: str = "auto"
    #: The pages of one call that are in flight at once.
    io_depth: int = 64
    #: The calls that read at the same time; a further call waits, within its deadline.
    io_calls: int = 16
    #: The threads that read when io is "threads".
    io_threads: int = 32
    #: Changes of a table are compacted into a new page file when they exceed these bytes and compaction_share.
    compaction_bytes: int = 64 << 20
    #: A share of the bytes of the table's page file.
    compaction_share: float = 0.125
    #: The bytes that all files of the store may take; None: those that the disk has, less reserve_bytes.
    disk_bytes: int | None = None
    #: The bytes of the disk that are left free.
    reserve_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name, value, known in (("io", self.io, IO_KINDS), ("direct", self.direct, DIRECT_KINDS)):
            if value not in known:
                raise ConfigError(f"ssd.{name} is {value!r}, expected one of {', '.join(known)}", field=f"ssd.{name}")
        for name in ("write_rate_bytes", "io_depth", "io_calls", "io_threads", "compaction_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ssd.{name} is {getattr(self, name)}, expected 1 or more", field=f"ssd.{name}")
        if self.disk_bytes is not None and self.disk_bytes < 0:
            raise ConfigError(f"ssd.disk_bytes is {self.disk_bytes}, expected 0 or more", field="ssd.disk_bytes")


def rocks_options(limits: SsdOptions, *, direct: bool = False) -> Any:
    """Returns RocksDB's options: rows are not compressed, and a filter answers for absent ids without a read.

    direct: compactions bypass the page cache, which the file system must support.
    """
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(limits.bloom_bits_per_key, False)
    table.set_block_cache(rocksdict.Cache(limits.block_cache_bytes))
    # Filters and indexes count against the bound of the block cache too.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_block_size(4096)
    table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
    table.set_checksum_type(rocksdict.ChecksumType.xxh3())

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_bottommost_compression_type(rocksdict.DBCompressionType.none())
    options.set_write_buffer_size(limits.write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * limits.write_buffer_bytes)
    options.set_max_open_files(limits.open_files)
    options.set_max_background_jobs(2)
    # A merge adds one to three files, and a compaction turns them into a page file before they are many. Until then it
    # costs less to check each of their filters than to rewrite them repeatedly. RocksDB's compactions run at a lower
    # priority than requests.
    options.set_level_zero_file_num_compaction_trigger(_CHANGE_FILES)
    options.set_level_zero_slowdown_writes_trigger(2 * _CHANGE_FILES)
    options.set_level_zero_stop_writes_trigger(3 * _CHANGE_FILES)
    environment = rocksdict.Env()
    environment.lower_thread_pool_cpu_priority()
    options.set_env(environment)
    # Compactions share the disk with requests that wait for it. Refilled every 100 ms; fairness is RocksDB's default.
    options.set_ratelimiter(limits.write_rate_bytes, 100_000, 10)
    options.set_bytes_per_sync(1 << 20)
    options.set_use_direct_io_for_flush_and_compaction(direct)
    options.set_paranoid_checks(True)
    # A torn tail of the log comes from a crash and is cut off; any other damage in it is an error.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    return options


def ingest_options() -> Any:
    """Returns the options of an ingestion that moves files instead of copying them."""
    options = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    return options


def synced() -> Any:
    """Returns the options of a write that is on the disk when it returns."""
    options = rocksdict.WriteOptions()
    options.sync = True
    return options
