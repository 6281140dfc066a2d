"""The tables of a configuration: a table of any kind, and the kinds whose ids share rows.

A kind is lowered when the model is built: a hashed table is a dynamic table whose features hash their ids, and a table
of several parts is as many such tables, whose rows the network combines. D dim.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from storage.checkpoint.table_kinds import ClassesKind, Combine, HashedKind, MultiHashKind, QuotientRemainderKind
from storage.features.strict_model import StrictModel
from storage.features.transforms import FloorDivide, Hash, Modulo, Transform
from trainer.config_errors import tag_unless_given
from trainer.initializer_config import ONES, ZEROS, InitializerConfig
from trainer.row_tables import (
    AnyTable,
    Buckets,
    Combination,
    Dim,
    LivingRows,
    StaticTableConfig,
    TableConfig,
    TablePart,
)

__all__ = [
    "AnyTableConfig",
    "ClassesTableConfig",
    "HashedTableConfig",
    "MultiHashTableConfig",
    "QuotientRemainderTableConfig",
    "StaticTableConfig",
    "TableConfig",
    "TablePart",
]

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class HashedTableConfig(AnyTable):
    """A row for each bucket: ids of one bucket share it."""

    kind: Literal["hashed"] = "hashed"
    dim: Dim
    buckets: Buckets
    #: Another seed lets other ids collide.
    seed: Seed = 0
    init: InitializerConfig = InitializerConfig()
    #: What a bucket reads as until training sees an id of it.
    absent: InitializerConfig = ZEROS

    @property
    def width(self) -> int:
        return self.dim

    def parts(self) -> tuple[TablePart, ...]:
        rows = TableConfig(name=self.name, dim=self.dim, init=self.init, absent=self.absent)
        return (TablePart(rows, "", (_hash(self, self.name),), HashedKind(buckets=self.buckets)),)


class _Composite(AnyTable):
    """Each id has a row in every part, and the network their sum, product or concatenation.

    With mult the first part begins as `init` says and the others at 1, so that the product begins as `init` says.
    """

    #: Number of values of the row that the network gets; a part has as many, with concat its share.
    dim: Dim
    buckets: Buckets
    combine: Combine = "add"
    init: InitializerConfig = InitializerConfig()
    seed: Seed = 0

    @property
    def width(self) -> int:
        return self.dim

    @property
    def combination(self) -> Combination:
        return self.combine

    def _rows(self, part: str, place: int, count: int) -> TableConfig:
        if self.combine == "concat" and self.dim % count:
            raise ValueError(f"dim is {self.dim}, which concat cannot divide among {count} tables; make it a multiple")
        dim = self.dim // count if self.combine == "concat" else self.dim
        init = ONES if self.combine == "mult" and place > 0 else self.init
        return TableConfig(name=f"{self.name}-{part}", dim=dim, init=init)


class QuotientRemainderTableConfig(_Composite):
    """Two tables, by the quotient and by the remainder of an id by `buckets`: no two ids share both rows.

    quotient_buckets: hashes quotients into so many buckets, for ids whose range is wide. Source: Shi et al.,
    "Compositional embeddings using complementary partitions for memory-efficient recommendation systems", 2020.
    """

    kind: Literal["quotient_remainder"] = "quotient_remainder"
    quotient_buckets: Buckets | None = None

    def parts(self) -> tuple[TablePart, ...]:
        quotient: tuple[Transform, ...] = (FloorDivide(divisor=self.buckets),)
        if self.quotient_buckets is not None:
            quotient += (Hash(seed=self.seed, salt=self.name, buckets=self.quotient_buckets),)
        transforms: dict[Literal["quotient", "remainder"], tuple[Transform, ...]] = {
            "quotient": quotient,
            "remainder": (Modulo(divisor=self.buckets),),
        }
        return tuple(
            TablePart(
                self._rows(part, place, 2),
                f":{part}",
                steps,
                QuotientRemainderKind(
                    table=self.name,
                    part=part,
                    buckets=self.buckets,
                    quotient_buckets=self.quotient_buckets,
                    combine=self.combine,
                ),
            )
            for place, (part, steps) in enumerate(transforms.items())
        )


class MultiHashTableConfig(_Composite):
    """`hashes` tables of `buckets` rows, each with a hash of its own: ids that collide in one differ in another.

    Source: Tito Svenstrup et al., "Hash embeddings for efficient word representations", 2017, without weights.
    """

    kind: Literal["multi_hash"] = "multi_hash"
    hashes: int = Field(default=2, ge=2, le=64)

    def parts(self) -> tuple[TablePart, ...]:
        return tuple(
            TablePart(
                self._rows(str(place), place, self.hashes),
                f":{place}",
                (_hash(self, f"{self.name}-{place}"),),
                MultiHashKind(
                    table=self.name, part=place, hashes=self.hashes, buckets=self.buckets, combine=self.combine
                ),
            )
            for place in range(self.hashes)
        )


class ClassDims(StrictModel):
    """Number of values of a hot and of a cold row."""

    hot: Dim
    cold: Dim


class ClassesTableConfig(LivingRows):
    """Every id has a narrow row that it shares with its bucket; an id seen `admit_after` times a wide one besides.

    The network gets the wide row, zero without one, plus the narrow one projected by a dense weight.
    """

    kind: Literal["classes"] = "classes"
    dims: ClassDims
    #: Rows of the cold table.
    buckets: Buckets
    seed: Seed = 0
    #: First values of a hot row. With zeros an id keeps its score when it gets its row.
    init: InitializerConfig = ZEROS
    #: First values of a cold row.
    cold_init: InitializerConfig = InitializerConfig()

    @model_validator(mode="after")
    def _narrower(self) -> ClassesTableConfig:
        if self.dims.cold > self.dims.hot:
            raise ValueError(f"dims.cold is {self.dims.cold}, expected no more than dims.hot, {self.dims.hot}")
        return self

    @property
    def width(self) -> int:
        return self.dims.hot

    @property
    def combination(self) -> Combination:
        return "residual"

    def parts(self) -> tuple[TablePart, ...]:
        life = {name: getattr(self, name) for name in LivingRows.model_fields if name != "name"}
        hot = TableConfig(name=f"{self.name}-hot", dim=self.dims.hot, **life)
        cold = TableConfig(name=f"{self.name}-cold", dim=self.dims.cold, init=self.cold_init)
        hash_cold = _hash(self, cold.name)
        return TablePart(hot, ":hot", (), self._kind("hot")), TablePart(cold, ":cold", (hash_cold,), self._kind("cold"))

    def _kind(self, part: Literal["hot", "cold"]) -> ClassesKind:
        return ClassesKind(
            table=self.name, part=part, hot_dim=self.dims.hot, cold_dim=self.dims.cold, buckets=self.buckets
        )


def _hash(table: HashedTableConfig | MultiHashTableConfig | ClassesTableConfig, salt: str) -> Hash:
    return Hash(seed=table.seed, salt=salt, buckets=table.buckets)


#: A table of any kind; `kind` is dynamic unless it is given.
AnyTableConfig = Annotated[
    Annotated[
        TableConfig
        | StaticTableConfig
        | HashedTableConfig
        | QuotientRemainderTableConfig
        | MultiHashTableConfig
        | ClassesTableConfig,
        Field(discriminator="kind"),
    ],
    tag_unless_given("kind", "dynamic"),
]
