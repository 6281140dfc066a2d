"""Tables of rows: what tables of all kinds have in common, and the two kinds that are such a table themselves.

N ids, D dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from storage.checkpoint.table_kinds import DYNAMIC, Combine, StaticKind, TableKind
from storage.errors import ConfigError
from storage.features.strict_model import StrictModel, did_you_mean
from storage.features.transforms import Transform
from storage.specs import TableSpec
from trainer.admission import BloomAdmission
from trainer.initializer_config import ZEROS, InitializerConfig
from trainer.row_rules import AdmissionConfig, CounterAdmissionConfig, EvictionConfig

Dim = Annotated[int, Field(ge=1, le=4096)]
Buckets = Annotated[int, Field(ge=1, lt=2**32)]
# How one row is made of those of several tables; residual: of a wide one, and a narrow one that is projected.
Combination = Combine | Literal["residual"]
# The class of each kind by its name, in the order in which they are defined.
_KINDS: dict[str, type[AnyTable]] = {}


class AnyTable(StrictModel, ABC):
    """Options of tables of every kind."""

    name: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "kind" in cls.model_fields:
            _KINDS[cls.model_fields["kind"].default] = cls

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = cls.model_fields
        for key in value if isinstance(value, Mapping) else ():
            if key in known:
                continue
            kind, others = known["kind"].default, [name for name, each in _KINDS.items() if key in each.model_fields]
            if others:
                raise ValueError(f"unknown key {key!r} of the kind {kind}; it is an option of: {', '.join(others)}")
            raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), known)}")
        return value

    @model_validator(mode="after")
    def _storable(self) -> AnyTable:
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


class LivingRows(AnyTable):
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
    def _countable(self) -> LivingRows:
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


class TableConfig(LivingRows):
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


class StaticTableConfig(AnyTable):
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


@dataclass(frozen=True)
class TablePart:
    """A table of rows, and how features read it."""

    rows: TableConfig | StaticTableConfig
    #: What the names of its features end with.
    suffix: str
    #: What makes ids of rows of the ids of a feature.
    transforms: tuple[Transform, ...]
    kind: TableKind
