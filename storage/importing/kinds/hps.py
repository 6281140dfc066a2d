"""Models of HPS and HugeCTR: a folder a table with the files key and emb_vector, and a ps.json that describes them.

Layout as in HugeCTR 3.5 to 24.06: `key` holds int64, `emb_vector` float32 row by row, both little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.checkpoint.strict_json import parse_json
from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Part, table_of_parts
from storage.importing.files import RawArray, check_there, file_size
from storage.importing.kinds.base import Kind, named_paths, table_and_path
from storage.importing.options import ImportOptions, pick
from storage.importing.source import FileTable, default_vector, table_name

_KEYS, _ROWS, _SLOTS = "key", "emb_vector", "slot_id"
_MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True)
class _Described:
    """A table of a ps.json."""

    name: str
    folder: Path
    dim: int | None
    #: None where the ps.json has no list of them.
    default: float | None


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of a ps.json, of folders of tables, or of folders that hold such."""
    described: list[_Described] = []
    folders: list[Path] = []
    for path in paths:
        if path.suffix == ".json":
            described += _described(path, options.model)
        elif (path / _KEYS).exists() or table_and_path(path)[0]:
            folders.append(path)
        else:
            check_there(path)
            found = sorted(each.parent for each in path.glob(f"*/{_KEYS}"))
            if not found:
                raise NotFound(f"{path}: no table in it: a folder with the files {_KEYS} and {_ROWS}, or a ps.json")
            folders += found
    named = named_paths(folders, options) if folders else {}
    for folder in (each for places in named.values() for each in places):
        check_there(folder)
    described += [_Described(name, each, None, None) for name, places in named.items() for each in places]
    names = [table.name for table in described]
    for name in names:
        if names.count(name) > 1 and not options.table:
            raise InvalidInput(f"two tables are called {name!r}; import one of their models, or write TABLE=PATH")
    if options.table:
        return [_table(described, options)]
    return [_table([table], options) for table in described]


def _table(parts: Sequence[_Described], options: ImportOptions) -> FileTable:
    name, dim, left_out = parts[0].name, options.dim(parts[0].name) or parts[0].dim, []
    arrays: list[Part] = []
    for part in parts:
        keys = RawArray.of_file(part.folder / _KEYS, "int64")
        rows, size = part.folder / _ROWS, file_size(part.folder / _ROWS)
        width = dim or (size // (4 * keys.rows) if keys.rows else 0)
        if not width:
            raise InvalidInput(f"table {name!r}: {part.folder} holds no row; --dim says how many values one has")
        if size != keys.rows * width * 4:
            raise InvalidInput(
                f"table {name!r}: {rows} has {size:,} bytes, expected {keys.rows * width * 4:,}: {keys.rows:,} keys in "
                f"{part.folder / _KEYS} times {width} float32; one of the files is cut off, or the dim is another"
            )
        arrays.append(Part(str(part.folder), keys, RawArray.of_file(rows, "float32", width)))
        if (part.folder / _SLOTS).exists():
            left_out.append(f"{_SLOTS}: the slot that an id came from; ids of all slots share the table")
    default = parts[0].default
    absent = None if default is None else default_vector(default, what=f"table {name!r}")
    return table_of_parts(name, arrays, options, dim=dim, absent=absent, left_out=tuple(dict.fromkeys(left_out)))


def _described(path: Path, wanted: str) -> list[_Described]:
    """Returns the tables of one model of a ps.json."""
    size = file_size(path)
    if size > _MAX_JSON_BYTES:
        raise InvalidInput(f"{path}: {size:,} bytes are too many for a ps.json")
    content = parse_json(path.read_bytes(), what=str(path), max_bytes=_MAX_JSON_BYTES)
    models = content.get("models") if isinstance(content, dict) else None
    if not isinstance(models, list) or not all(isinstance(each, dict) for each in models) or not models:
        raise InvalidInput(f"{path}: is no ps.json: it has no list `models`")
    named = [str(each.get("model")) for each in models]
    if twice := sorted({each for each in named if named.count(each) > 1}):
        raise InvalidInput(f"{path}: two of `models` have the `model` {', '.join(twice)}, expected one", field="model")
    by_name = dict(zip(named, models, strict=True))
    if not wanted and len(by_name) > 1:
        raise InvalidInput(f"{path}: describes the models {', '.join(by_name)}; --model names one", field="model")
    name = pick(wanted, by_name, option="model", what=str(path)) if wanted else next(iter(by_name))
    model = by_name[name]
    files = _values(path, model, "sparse_files", str)
    names = _values(path, model, "embedding_table_names", str, [f"sparse_embedding{n + 1}" for n in range(len(files))])
    dims = _values(path, model, "embedding_vecsize_per_table", int, [None] * len(files), or_null=True)
    described = "default_value_for_each_table" in model
    defaults = _values(path, model, "default_value_for_each_table", float) if described else [None] * len(files)
    for field, values in (
        ("embedding_table_names", names),
        ("embedding_vecsize_per_table", dims),
        ("default_value_for_each_table", defaults),
    ):
        if len(values) != len(files):
            raise InvalidInput(
                f"{path}: model {name!r} has {len(files)} sparse_files and {len(values)} {field}", field=field
            )
    return [
        _Described(table_name(table), _find(path, file), dim, default)
        for table, file, dim, default in zip(names, files, dims, defaults, strict=True)
    ]


def _values(
    path: Path,
    model: dict[str, Any],
    field: str,
    kind: type,
    missing: list[Any] | None = None,
    *,
    or_null: bool = False,
) -> list[Any]:
    values = model.get(field, missing)
    right = isinstance(values, list) and all(
        or_null
        if value is None
        else isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
        for value in values
    )
    if not right:
        also = " or null" if or_null else ""
        raise InvalidInput(f"{path}: {field} is {values!r}, expected a list of {kind.__name__}{also}", field=field)
    assert isinstance(values, list)
    return values


def _find(path: Path, file: str) -> Path:
    """Returns the folder of a table; a ps.json was often written for paths of another machine."""
    given = Path(file)
    if given.is_dir():
        return given
    parts = given.parts
    # The longest end of the path that is there beside the ps.json.
    for start in range(1 if given.is_absolute() else 0, len(parts)):
        if (place := path.parent.joinpath(*parts[start:])).is_dir():
            return place
    raise NotFound(f"{path}: there is no folder {file}, and none like it beside the ps.json")


KIND = Kind(
    "hps",
    "Models of HPS and HugeCTR: key, emb_vector, ps.json.",
    """Publish tables of the Hierarchical Parameter Server of HugeCTR.

    A PATH is a ps.json, the folder of a table (with the files key and emb_vector), or a folder of such folders. The
    names, dims and default values of a ps.json are taken over. The dense part is ONNX, TensorRT or TensorFlow there:
    `emberline import onnx` reads the first, and --module takes any other as torch code.
    """,
    """\b
Examples:
  emberline import hps ps.json --check
  emberline import hps ps.json --model wdl --repository build/models --name wdl
  emberline import hps wide=wdl0_sparse_2000.model deep=wdl1_sparse_2000.model --repository build/models --name wdl""",
    open_files,
    ("table", "model"),
)
