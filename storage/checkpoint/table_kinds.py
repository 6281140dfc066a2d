"""The kinds of embedding tables, as a manifest names them.

A kind is carried out when the model is built: its features get transforms that make ids of rows, and the dense graph
combines what several tables give. A server therefore looks up every table alike. The kind says how a table was made,
and a reader refuses one that it does not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from storage.checkpoint.signed import Part

Combine = Literal["add", "mult", "concat"]
Buckets = Annotated[int, Field(ge=1, lt=2**63)]
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]


class DynamicKind(Part):
    """Rows by id: they come with the ids that training sees."""

    type: Literal["dynamic"] = "dynamic"

    def __str__(self) -> str:
        return self.type


class StaticKind(Part):
    """The rows of the ids 0 to rows - 1."""

    type: Literal["static"] = "static"
    rows: int = Field(ge=1, lt=2**48)

    def __str__(self) -> str:
        return f"static, {self.rows:,} rows"


class HashedKind(Part):
    """A row for each bucket that ids are hashed into."""

    type: Literal["hashed"] = "hashed"
    buckets: Buckets

    def __str__(self) -> str:
        return f"hashed, {self.buckets:,} buckets"


class QuotientRemainderKind(Part):
    """One of the two tables of `table`: by the quotient of an id by `buckets`, or by its remainder.

    quotient_buckets: the buckets that quotients are hashed into; None takes them as they are.
    """

    type: Literal["quotient_remainder"] = "quotient_remainder"
    table: TableName
    part: Literal["quotient", "remainder"]
    buckets: Buckets
    quotient_buckets: Buckets | None = None
    combine: Combine

    def __str__(self) -> str:
        return f"{self.part} by {self.buckets:,} of {self.table}, {self.combine}"


class MultiHashKind(Part):
    """One of the tables of `table`, each by a hash of its own into `buckets`. part: its place, from 0."""

    type: Literal["multi_hash"] = "multi_hash"
    table: TableName
    part: int = Field(ge=0, lt=64)
    hashes: int = Field(ge=2, le=64)
    buckets: Buckets
    combine: Combine

    def __str__(self) -> str:
        return f"hash {self.part + 1} of {self.hashes} of {self.table}, {self.buckets:,} buckets, {self.combine}"


class ClassesKind(Part):
    """Wide rows of the hot ids of `table`, or narrow ones that all its ids share, projected to the width of the hot."""

    type: Literal["classes"] = "classes"
    table: TableName
    part: Literal["hot", "cold"]
    hot_dim: int = Field(ge=1, le=4096)
    cold_dim: int = Field(ge=1, le=4096)
    buckets: Buckets

    def __str__(self) -> str:
        return f"{self.part} rows of {self.table}, {self.hot_dim} + {self.cold_dim} values, {self.buckets:,} buckets"


TableKind = Annotated[
    DynamicKind | StaticKind | HashedKind | QuotientRemainderKind | MultiHashKind | ClassesKind,
    Field(discriminator="type"),
]
DYNAMIC = DynamicKind()
