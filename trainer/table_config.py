"""The tables of a configuration: their kinds, and the tables of rows that each of them is made of.

A kind is lowered when the model is built: a hashed table is a dynamic table whose features hash their ids, and a table
of several parts is as many such tables, whose rows the network combines. N ids, D dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from storage.checkpoint.table_kinds import (
    DYNAMIC,
    ClassesKind,
    Combine,
    HashedKind,
    MultiHashKind,
    QuotientRemainderKind,
    StaticKind,
    TableKind,
)
from storage.errors import ConfigError
from storage.features.strict_model import StrictModel, did_you_mean
from storage.features.transforms import FloorDivide, Hash, Modulo, Transform
from storage.initializers import Initializer, InitializerKind
from storage.specs import TableSpec
from trainer.admission import BloomAdmission
from trainer.row_rules import AdmissionConfig, CounterAdmissionConfig, EvictionConfig

Dim = Annotated[int, Field(ge=1, le=4096)]
Buckets = Annotated[int, Field(ge=1, lt=2**32)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
# How one row is made of those of several tables; residual: of a wide one, and a narrow one that is projected.
Combination = Combine | Literal["residual"]


class InitializerConfig(StrictModel):
    """Values of rows: see storage.initializers.Initializer."""

    type: InitializerKind = "uniform"
    scale: float = Field(default=0.05, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _zeros_have_no_scale(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("type") == "zeros":
            return {"scale": 0.0, **content}
        return content

    @model_validator(mode="after")
    def _possible(self) -> InitializerConfig:
        try:
            self.initializer  # noqa: B018  checks the scale
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def initializer(self) -> Initializer:
        """Returns what it describes."""
        return Initializer(self.type, self.scale)


ZEROS = InitializerConfig(type="zeros", scale=0.0)
# What the product of rows begins with: the other factor as it is.
_ONES = InitializerConfig(type="constant", scale=1.0)


class _AnyTable(StrictModel, ABC):
    """Options of tables of every kind."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = cls.model_fields
        for key in value if isinstance(value, Mapping) else ():
            if key in known:
                continue
            kind, others = known["kind"].default, [name for name, each in kinds().items() if key in each.model_fields]
            if others:
                raise ValueError(f"unknown key {key!r} of the kind {kind}; it is an option of: {', '.join(others)}")
            raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), known)}")
        return value

    @model_validator(mode="after")
    def _storable(self) -> _AnyTable:
        for part in self.parts():
            TableSpec(part.rows.name, part.rows.dim)
        return self

    @property
    @abstractmethod
    def width(self) -> int:
        """D of the rows that the network gets."""

    @property
    def combination(self) -> Combination:
        """The way in which the rows of several parts become one."""
        return "add"

    @abstractmethod
    def parts(self) -> tuple[TablePart, ...]:
        """Returns the tables of rows that it is made of."""


class _LivingRows(_AnyTable):
    """Rows that come with their ids, and may go again."""

    #: First values of a row.
    init: InitializerConfig = InitializerConfig()
    #: Occurrences until an id gets a row.
    admit_after: int = Field(default=1, ge=1, lt=2**31)
    #: How ids without a row are counted.
    admission: AdmissionConfig = CounterAdmissionConfig()
    #: When rows that were not used for long, or are small, go; None never.
    eviction: EvictionConfig | None = None
    #: A row not touched for this many publishes is erased at the next one; 0 never.
    expire_after_publishes: int = Field(default=0, ge=0, le=512)

    @model_validator(mode="after")
    def _countable(self) -> _LivingRows:
        try:
            if self.bloom is not None:
                self.bloom.check(self.admit_after)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def bloom(self) -> BloomAdmission | None:
        """The filter that counts ids without a row; None: they are counted exactly."""
        return None if isinstance(self.admission, CounterAdmissionConfig) else self.admission.bloom


class TableConfig(_LivingRows):
    """A row for each id that training saw often enough."""

    kind: Literal["dynamic"] = "dynamic"
    #: Number of float32 values of a row.
    dim: Dim
    #: What an id without a row reads as, in training and in serving.
    absent: InitializerConfig = ZEROS

    @property
    def width(self) -> int:
        return self.dim

    def parts(self) -> tuple[TablePart, ...]:
        return (TablePart(self, "", (), DYNAMIC),)


class StaticTableConfig(_AnyTable):
    """The rows of the ids 0 to rows - 1, all there from the start; any other id reads as `absent`."""

    kind: Literal["static"] = "static"
    dim: Dim
    rows: Buckets
    init: InitializerConfig = InitializerConfig()
    absent: InitializerConfig = ZEROS

    @property
    def width(self) -> int:
        return self.dim

    def parts(self) -> tuple[TablePart, ...]:
        return (TablePart(self, "", (), StaticKind(rows=self.rows)),)


class HashedTableConfig(_AnyTable):
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


class _Composite(_AnyTable):
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
        init = _ONES if self.combine == "mult" and place > 0 else self.init
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


class ClassesTableConfig(_LivingRows):
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
        life = {name: getattr(self, name) for name in _LivingRows.model_fields if name != "name"}
        hot = TableConfig(name=f"{self.name}-hot", dim=self.dims.hot, **life)
        cold = TableConfig(name=f"{self.name}-cold", dim=self.dims.cold, init=self.cold_init)
        hash_cold = _hash(self, cold.name)
        return TablePart(hot, ":hot", (), self._kind("hot")), TablePart(cold, ":cold", (hash_cold,), self._kind("cold"))

    def _kind(self, part: Literal["hot", "cold"]) -> ClassesKind:
        return ClassesKind(
            table=self.name, part=part, hot_dim=self.dims.hot, cold_dim=self.dims.cold, buckets=self.buckets
        )


@dataclass(frozen=True)
class TablePart:
    """A table of rows, and how features read it."""

    rows: TableConfig | StaticTableConfig
    #: What the names of its features end with.
    suffix: str
    #: What makes ids of rows of the ids of a feature.
    transforms: tuple[Transform, ...]
    kind: TableKind


_Kinds = (
    TableConfig
    | StaticTableConfig
    | HashedTableConfig
    | QuotientRemainderTableConfig
    | MultiHashTableConfig
    | ClassesTableConfig
)


def kinds() -> dict[str, type[_AnyTable]]:
    """Returns the configuration of each kind by its name."""
    return {each.model_fields["kind"].default: each for each in get_args(_Kinds)}


def _kind_of(content: Any) -> Any:
    return content.get("kind", "dynamic") if isinstance(content, Mapping) else getattr(content, "kind", None)


def _hash(table: HashedTableConfig | MultiHashTableConfig | ClassesTableConfig, salt: str) -> Hash:
    return Hash(seed=table.seed, salt=salt, buckets=table.buckets)


#: A table of any kind; `kind` is dynamic unless it is given.
AnyTableConfig = Annotated[
    Annotated[TableConfig, Tag("dynamic")]
    | Annotated[StaticTableConfig, Tag("static")]
    | Annotated[HashedTableConfig, Tag("hashed")]
    | Annotated[QuotientRemainderTableConfig, Tag("quotient_remainder")]
    | Annotated[MultiHashTableConfig, Tag("multi_hash")]
    | Annotated[ClassesTableConfig, Tag("classes")],
    Discriminator(_kind_of),
]
