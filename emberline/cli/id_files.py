"""Files of ids or raw values that a command takes: one a line, or a column of CSV, Parquet and other files."""

from __future__ import annotations

from pathlib import Path

from storage.data import DataRows, Wanted, format_by_name
from storage.data.files import TEXT_FORMATS
from storage.errors import InvalidInput
from storage.features.dtypes import parse_integer
from storage.features.strict_model import did_you_mean

# From here on, floats of 64 bits round whole numbers.
_EXACT = 2.0**53


def read_values(path: Path, column: str | None = None) -> list[str]:
    """Returns the values of a file as text, each once, in their order.

    column: the one that holds them; not needed where a file has one column, and for text with a value a line. Raises
    InvalidInput for a file without values, or a column that is not there.
    """
    if format_by_name(path.name) is None:
        if column is not None:
            raise InvalidInput(
                f"--column {column}: {path.name} is read as text with a value a line; a file of columns has a name "
                "such as ids.csv or ids.parquet",
                field="column",
            )
        texts = [line.strip() for line in _lines(path)]
    else:
        texts = _column(path, column)
    values = list(dict.fromkeys(text for text in texts if text))
    if not values:
        raise InvalidInput(f"{path}: there are no values in it", field="ids")
    return values


def whole_numbers(path: Path, values: list[str]) -> list[int]:
    """Returns values as ids. Raises InvalidInput for one that is none."""
    found = []
    for line, text in enumerate(values, 1):
        number = parse_integer(text, "INT64")
        if number is None:
            raise InvalidInput(
                f"{path}: value {line}, {text[:60]!r}, is no id (int64); raw values are given with --input", field="ids"
            )
        found.append(number)
    return found


def _column(path: Path, column: str | None) -> list[str]:
    names = DataRows.open(path, None).schema.names
    if column is None and len(names) > 1:
        raise InvalidInput(f"{path} has the columns {', '.join(names)}; say which with --column", field="column")
    column = column or names[0]
    if column not in names:
        raise InvalidInput(f"--column {column}: {path} has no such column{did_you_mean(column, names)}", field="column")
    # In a file of text, the value 007 is not 7: only whoever looks it up knows whether it is a number.
    is_text = format_by_name(path.name) in TEXT_FORMATS
    wanted = Wanted((), texts={column: "column"}) if is_text else Wanted((), keep=(column,))
    values = DataRows.open(path, wanted).read().column(column).to_pylist()
    return ["" if value is None else _text(path, value) for value in values]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: byte {error.start} cannot be read", field="ids") from None


def _text(path: Path, value: object) -> str:
    if isinstance(value, float):
        if not value.is_integer() or abs(value) >= _EXACT:
            raise InvalidInput(
                f"{path}: {value!r} is no whole number that a column of floats holds exactly; write the column as "
                "integers or text",
                field="ids",
            )
        return str(int(value))
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
