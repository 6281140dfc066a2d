"""How RocksDB is set up for rows: point lookups of random bytes, bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rocksdict


@dataclass(frozen=True)
class SsdOptions:
    """Bounds of the SSD tier, all in bytes but the last two."""

    block_cache_bytes: int = 64 << 20
    write_buffer_bytes: int = 16 << 20
    write_batch_bytes: int = 4 << 20
    bloom_bits_per_key: int = 10
    open_files: int = 512


def rocks_options(limits: SsdOptions) -> Any:
    """RocksDB's options: embedding rows do not compress, and a filter answers for absent ids without a read."""
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
    options.set_max_open_files(limits.open_files)
    options.set_max_background_jobs(2)
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
