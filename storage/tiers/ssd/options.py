"""How the SSD tier is bounded, and how RocksDB is set up for it: point lookups of random bytes, bounded memory."""

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
    """Bounds of the SSD tier; sizes in bytes.

    block_cache_bytes, write_buffer_bytes, write_batch_bytes, bloom_bits_per_key, open_files: of RocksDB, which holds
    changes and markers. write_rate_bytes: a second, of its compactions and of compactions together with what they read.
    page_bloom_bits: per id, of the page files. io: "uring", "threads", or "auto": io_uring where the kernel allows it.
    direct: rows are read past the page cache, "on", "off", or "auto": when the page files are larger than a quarter of
    the machine's memory. io_depth: pages of one call in flight. io_calls: calls that read at the same time; one more
    waits, within its deadline. io_threads: of "threads". compaction_bytes, compaction_share: changes of a table past
    both, as bytes and as a share of its page file, are compacted into a new one. disk_bytes: what all files of the
    store may take; None: what the disk has, less reserve_bytes.
    """

    block_cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 16 << 20
    write_batch_bytes: int = 4 << 20
    bloom_bits_per_key: int = 10
    open_files: int = 512
    write_rate_bytes: int = 128 << 20
    page_bloom_bits: int = 10
    io: str = "auto"
    direct: str = "auto"
    io_depth: int = 64
    io_calls: int = 16
    io_threads: int = 32
    compaction_bytes: int = 64 << 20
    compaction_share: float = 0.125
    disk_bytes: int | None = None
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
    """RocksDB's options: embedding rows do not compress, and a filter answers for absent ids without a read.

    direct: compactions go past the page cache; only where the file system can.
    """
    table = rocksdict.BlockBasedOptions()
    table.set_bloom_filter(limits.bloom_bits_per_key, False)
    table.set_block_cache(rocksdict.Cache(limits.block_cache_bytes))
    # Filters and indexes count against the bound too.
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
    # A merge brings one to three files, and a compaction makes them a page file before they are many. Until then a look
    # at each of their filters costs less than to write them over and over. What is compacted anyway gives way to
    # requests.
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
    # A torn tail of the log is a crash and is cut off; anything else wrong in it is an error.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    return options


def ingest_options() -> Any:
    """Files are moved in, not copied."""
    options = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    return options


def synced() -> Any:
    """A write that is on the disk when it returns."""
    options = rocksdict.WriteOptions()
    options.sync = True
    return options
