"""Tables of every kind for modules of one's own: their layers take ids as they are.

What makes ids of rows of them, a hash or a division, is the feature engine's, and is published as transforms of the
layer's feature; so a server does what training did.
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from storage.checkpoint.table_kinds import Combine
from trainer.config_errors import parse_config
from trainer.embedding.combining import CombinedTable
from trainer.embedding.memory import RowMemory
from trainer.embedding.table import EmbeddingTable, SparseRule
from trainer.ranks import Ranks
from trainer.table_config import (
    ClassesTableConfig,
    HashedTableConfig,
    MultiHashTableConfig,
    QuotientRemainderTableConfig,
    StaticTableConfig,
    TableConfig,
    TablePart,
)


class TableOptions(TypedDict, total=False):
    """Options of EmbeddingTable that tables of every kind take."""

    optimizer: SparseRule
    seed: int
    initial_accumulator: float
    memory: RowMemory | None
    ranks: Ranks | None


def static_table(name: str, dim: int, rows: int, **options: Unpack[TableOptions]) -> EmbeddingTable:
    """Returns a table with the rows of the ids 0 to rows - 1; any other id reads as zeros. Raises ConfigError."""
    config = parse_config(StaticTableConfig, {"name": name, "dim": dim, "rows": rows}, source=name)
    return table_of(config.parts()[0], **options)


def hashed_table(name: str, dim: int, buckets: int, **options: Unpack[TableOptions]) -> EmbeddingTable:
    """Returns a table whose layers hash ids into `buckets` rows. Raises ConfigError."""
    config = parse_config(HashedTableConfig, {"name": name, "dim": dim, "buckets": buckets}, source=name)
    return table_of(config.parts()[0], **options)


def quotient_remainder_table(
    name: str,
    dim: int,
    buckets: int,
    *,
    quotient_buckets: int | None = None,
    combine: Combine = "add",
    **options: Unpack[TableOptions],
) -> CombinedTable:
    """Returns two tables, by the quotient and by the remainder of an id by `buckets`; no two ids share both rows.

    quotient_buckets: hashes quotients into so many buckets. Raises ConfigError, naming the option.
    """
    given = {"buckets": buckets, "quotient_buckets": quotient_buckets, "combine": combine}
    return _combined(QuotientRemainderTableConfig, {"name": name, "dim": dim, **given}, options)


def multi_hash_table(
    name: str,
    dim: int,
    buckets: int,
    *,
    hashes: int = 2,
    combine: Combine = "add",
    **options: Unpack[TableOptions],
) -> CombinedTable:
    """Returns `hashes` tables of `buckets` rows, each with a hash of its own. Raises ConfigError, naming the option."""
    given = {"buckets": buckets, "hashes": hashes, "combine": combine}
    return _combined(MultiHashTableConfig, {"name": name, "dim": dim, **given}, options)


def classes_table(
    name: str, hot_dim: int, cold_dim: int, buckets: int, *, admit_after: int, **options: Unpack[TableOptions]
) -> CombinedTable:
    """Returns wide rows of the ids seen `admit_after` times, and narrow ones by bucket for all. Raises ConfigError.

    A layer gives the wide row, zero without one, plus the narrow one projected by a weight of the layer.
    """
    given = {"dims": {"hot": hot_dim, "cold": cold_dim}, "buckets": buckets, "admit_after": admit_after}
    return _combined(ClassesTableConfig, {"name": name, **given}, options)


def table_of(part: TablePart, *, transforms: bool = True, **options: Unpack[TableOptions]) -> EmbeddingTable:
    """Returns the empty table of a part.

    transforms: whether layers are given ids as they are, and not the ids of rows that a feature engine made of them.
    """
    rows = part.rows
    living = rows if isinstance(rows, TableConfig) else None
    return EmbeddingTable(
        rows.name,
        rows.dim,
        rows=rows.init.initializer,
        absent=rows.absent.initializer,
        admit_after=1 if living is None else living.admit_after,
        admission=None if living is None else living.bloom,
        eviction=None if living is None or living.eviction is None else living.eviction.eviction,
        static_rows=rows.rows if isinstance(rows, StaticTableConfig) else 0,
        transforms=part.transforms if transforms else (),
        kind=part.kind,
        **options,
    )


def _combined(
    kind: type[QuotientRemainderTableConfig] | type[MultiHashTableConfig] | type[ClassesTableConfig],
    given: dict[str, Any],
    options: TableOptions,
) -> CombinedTable:
    config = parse_config(kind, given, source=given["name"])
    parts = [table_of(part, **options) for part in config.parts()]
    return CombinedTable(config.name, config.width, config.combination, parts)
