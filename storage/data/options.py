"""Says how data is read: the format of files whose name does not tell it, the layout of text, and what damage means."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from storage.errors import ConfigError
from storage.features.strict_model import StrictModel, did_you_mean

FormatName = Literal["parquet", "csv", "tsv", "orc", "arrow", "libsvm"]

_LIST = re.compile(r"list<(.+)>")
# Names that Arrow does not know beside its own.
_ALIASES = {"text": "string", "bytes": "binary", "integer": "int64", "float64": "double", "boolean": "bool"}
_KNOWN_TYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool", "string"),
    *("binary", "date32", "timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]", "list<int64>"),
)


class DataOptions(StrictModel):
    """Says how files are read. The entries from `delimiter` to `block_rows` are for text: CSV, TSV and libsvm."""

    #: Of files whose extension does not tell it. Those of Parquet, ORC and Arrow are otherwise known by their first
    #: bytes.
    format: FormatName | None = None
    #: Between two fields of a line; None for a comma, in TSV a tab.
    delimiter: str | None = None
    #: Whether the first line has the names of the columns; None for yes, unless `columns` has them.
    header: bool | None = None
    #: The names of the columns where no line has them; in libsvm those of the indexes 1, 2, 3 and so on.
    columns: tuple[str, ...] | None = None
    #: Encloses fields that hold the delimiter; None for none.
    quote: str | None = '"'
    #: Whether quoted fields may hold line ends.
    newlines_in_values: bool = False
    #: Between the values of a list in one field.
    list_delimiter: str = "|"
    #: Fields that are null when they are not in quotes.
    null_values: tuple[str, ...] = ("",)
    #: Arrow types of columns of text, which otherwise follow from the inputs that they feed.
    types: dict[str, str] = Field(default_factory=dict)
    #: Rows of text that are read at once and shuffled together, as those of a row group of Parquet.
    block_rows: Annotated[int, Field(ge=1, le=1 << 24)] = 65_536
    #: Threads that read blocks of rows ahead of training; the order of the rows is the same for any number.
    read_threads: Annotated[int, Field(ge=1, le=64)] = 1
    #: Threads that decode the columns of a block of Parquet or Arrow, for all blocks together.
    column_threads: Annotated[int, Field(ge=1, le=256)] = 1
    #: What a file that cannot be read means: an error, or that it is left out and named.
    on_damaged: Literal["fail", "skip"] = "fail"
    #: Values of columns that some files, or all of them, do not have.
    missing_columns: dict[str, Any] = Field(default_factory=dict)

    @field_validator("delimiter", "quote")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
            raise ValueError("expected one ASCII character that ends no line")
        return value

    @field_validator("list_delimiter")
    @classmethod
    def _some_text(cls, value: str) -> str:
        if not value:
            raise ValueError("expected one character or more between the values of a list")
        return value

    @field_validator("columns")
    @classmethod
    def _distinct(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = sorted({name for name in value or () if (value or ()).count(name) > 1})
        if twice:
            raise ValueError(f"the name {twice[0]!r} is given twice; expected a name for each column")
        return value

    @field_validator("types")
    @classmethod
    def _arrow_types(cls, value: dict[str, str]) -> dict[str, str]:
        for column, name in value.items():
            try:
                arrow_type(name)
            except ConfigError as error:
                raise ValueError(f"column {column!r}: {error}") from None
        return value

    @model_validator(mode="after")
    def _go_together(self) -> DataOptions:
        if self.header and self.columns is not None and self.format != "libsvm":
            raise ValueError(
                "header: true takes the names from the first line; leave `columns` out, or set header: false"
            )
        if self.header is False and self.columns is None:
            raise ValueError("header: false needs `columns`, the names of the columns in their order")
        if self.quote is not None and self.quote == (self.delimiter or ("\t" if self.format == "tsv" else ",")):
            raise ValueError(
                f"quote: {self.quote!r} is the delimiter too; expected another character, or null for none"
            )
        return self

    def types_of(self, hints: dict[str, Any]) -> dict[str, Any]:
        """Returns the Arrow types of text columns: those of `types`, and otherwise of `hints`."""
        return {**hints, **{name: arrow_type(kind) for name, kind in self.types.items()}}


def arrow_type(name: str) -> Any:
    """Returns the Arrow type of a name such as int64, timestamp[ms] or list<string>. Raises ConfigError."""
    text = name.strip()
    found = _LIST.fullmatch(text)
    if found:
        return pa.list_(arrow_type(found[1]))
    try:
        if text.startswith("timestamp["):
            return pa.timestamp(text.removeprefix("timestamp[").removesuffix("]"))
        return pa.type_for_alias(_ALIASES.get(text, text))
    except (ValueError, TypeError):
        raise ConfigError(f"{name!r} is no type{did_you_mean(text, _KNOWN_TYPES)}", field="data.types") from None
