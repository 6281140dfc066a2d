"""Exports and deltas of TorchEasyRec: archives of tables with their keys, and Parquet files of changed rows.

Layout as of August 2026. In `sparse_dynamic_embedding-RR-of-WW.npz` a table F has the arrays F.keys, F.values and
F.scores, and F.default_value where ids without a row have one; in `sparse_embeddings-RR-of-WW.npz` F holds rows that
are numbered. `sparse_embeddings-RR-of-WW.json` describes the tables of both. Deltas have the columns global_step,
table_fqn, key_id, embedding and source. Rows of uint8 are quantised (QUint8RowwiseF16): D values, then scale and offset
as float16.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.checkpoint.strict_json import parse_json
from storage.errors import InvalidInput, NotFound
from storage.importing.arrays import Array
from storage.importing.files import file_size, files_below
from storage.importing.kinds.base import Kind
from storage.importing.kinds.numpy_files import NpzFile
from storage.importing.kinds.parquet import batches, columns_of, integers, list_values, opened
from storage.importing.named_tensors import Numbers
from storage.importing.options import ImportOptions
from storage.importing.source import (
    Block,
    FileTable,
    as_ids,
    as_rows,
    check_dim,
    default_vector,
    pieces,
    rows_at_once,
    table_name,
)

# Archives, and the descriptions of both kinds, which are called like the first.
_OF_RANK = re.compile(
    r"(?P<kind>sparse_embeddings|sparse_dynamic_embedding)-(?P<rank>[0-9]+)-of-(?P<size>[0-9]+)\.(?P<suffix>npz|json)"
)
_KEYED = "sparse_dynamic_embedding"
_COLUMNS = {"global_step": "global_step", "table": "table_fqn", "id": "key_id", "row": "embedding", "source": "source"}
_SCALE_BYTES = 4
_MAX_JSON_BYTES = 16 << 20
# Before every delta.
_EXPORTED = -1
# Blocks of rows whose dim is not known yet are as large as those of this one.
_WIDE = 256


@dataclass(frozen=True)
class _Part:
    """Rows of a table in an archive. first: number of the first row, where rows are numbered."""

    file: str
    ids: Array
    rows: Array
    first: int = 0


class _Found:
    """Collects the rows of one table."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.deltas: dict[Path, int] = {}
        self.width = 0
        self.quantised = False
        self.default: np.ndarray | None = None
        self.scores = False
        #: The folder of its archives, where its rows are numbered.
        self.numbered_in: Path | None = None

    def take_width(self, fqn: str, file: str, width: int, quantised: bool) -> None:
        """Checks that all rows of a table are alike. Raises InvalidInput."""
        dim = width - _SCALE_BYTES if quantised else width
        check_dim(dim, what=f"table {fqn!r}, {file}")
        known = self.width - _SCALE_BYTES if self.quantised else self.width
        if self.width and dim != known:
            raise InvalidInput(
                f"table {fqn!r}: the rows in {file} have {dim} values, those before {known}", field="dim"
            )
        if not self.width:
            self.width, self.quantised = width, quantised

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self.width - _SCALE_BYTES if self.quantised else self.width


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of exports and deltas, at any depth of folders; deltas are laid over the export."""
    found: dict[str, _Found] = defaultdict(_Found)
    archives = [each for path in paths for each in files_below(path, "*.npz") if _OF_RANK.fullmatch(each.name)]
    # One that two paths lead to would have its numbered rows twice.
    archives = sorted({os.path.realpath(each): each for each in archives}.values(), key=_rank)
    deltas = [each for path in paths for each in files_below(path, "*.parquet")]
    if not archives and not deltas:
        raise NotFound(f"{paths[0]}: no archive sparse_...-RR-of-WW.npz and no Parquet file of a delta in it")
    _check_ranks(archives)
    for archive in archives:
        _look_into_archive(archive, found)
    for delta in deltas:
        try:
            _look_into_delta(delta, found)
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{delta}: a table_fqn or source is no text, it is damaged: {error}") from None
    names = {fqn: table_name(fqn.rpartition(".")[2]) for fqn in found}
    for fqn, name in names.items():
        if list(names.values()).count(name) > 1:
            names[fqn] = table_name(fqn)
    return [_table(names[fqn], fqn, entry, options) for fqn, entry in found.items()]


def _rank(archive: Path) -> tuple[Path, str, int]:
    """Returns what archives are sorted by: of more than 100 ranks, names are not in the order of numbers."""
    match = _OF_RANK.fullmatch(archive.name)
    assert match is not None
    return archive.parent, match["kind"], int(match["rank"])


def _check_ranks(archives: Sequence[Path]) -> None:
    """Raises InvalidInput for an export of which the files of a rank are missing."""
    for folder in sorted({archive.parent for archive in archives}):
        mine = [archive.name for archive in archives if archive.parent == folder]
        ranks: dict[str, set[int]] = defaultdict(set)
        sizes: set[int] = set()
        for name in (*mine, *(each.name for each in folder.glob("*.json"))):
            if match := _OF_RANK.fullmatch(name):
                ranks[f"{match['kind']}-RR-of-{match['size']}.{match['suffix']}"].add(int(match["rank"]))
                sizes.add(int(match["size"]))
        if len(sizes) > 1:
            raise InvalidInput(
                f"{folder}: holds files of {' and of '.join(map(str, sorted(sizes)))} ranks, expected one"
            )
        missing = {family: sorted(set(range(max(sizes))) - there) for family, there in ranks.items()}
        for family, lost in missing.items():
            if lost and not (family.startswith(_KEYED) and any(each.endswith(".json") for each in missing)):
                raise InvalidInput(f"{folder}: of {family} the ranks {lost} are missing")
        _check_keyed(folder, mine)


def _check_keyed(folder: Path, archives: Sequence[str]) -> None:
    """Raises InvalidInput where a rank describes tables with keys, and its archive of them is not there.

    A rank without such tables writes no archive of them, so where all ranks are described, only that says whether one
    is missing. archives: the names of those in the folder that are read.
    """
    for described in sorted(folder.glob("sparse_embeddings-*-of-*.json")):
        archive = (folder / described.name.replace("sparse_embeddings", _KEYED)).with_suffix(".npz")
        if file_size(described) > _MAX_JSON_BYTES:
            raise InvalidInput(f"{described}: {file_size(described):,} bytes are too many for a description")
        content = parse_json(described.read_bytes(), what=str(described), max_bytes=_MAX_JSON_BYTES)
        entries = content.items() if isinstance(content, dict) else ()
        keyed = [name for name, entry in entries if isinstance(entry, dict) and entry.get("is_dynamic")]
        if keyed and archive.name not in archives:
            raise InvalidInput(
                f"{archive}: it is missing, or not among the paths; {described.name} describes tables in it: "
                f"{', '.join(keyed)}"
            )


def _look_into_archive(archive: Path, found: dict[str, _Found]) -> None:
    file = NpzFile(archive)
    names = file.names()
    for name in names:
        keyed, _, end = name.rpartition(".")
        other = {"keys": "values", "values": "keys"}.get(end)
        if other and f"{keyed}.{other}" not in names:
            raise InvalidInput(f"{archive}: there is an array {name!r}, and no {keyed}.{other} beside it")
    for name in names:
        keyed = name.removesuffix(".keys")
        if name.endswith(".keys"):
            ids, rows = file.array(name), file.array(f"{keyed}.values")
            entry = found[keyed]
            if ids.rows != rows.rows:
                raise InvalidInput(f"table {keyed!r}: {archive} has {ids.rows:,} keys and {rows.rows:,} values")
            entry.parts.append(_Part(str(archive), ids, rows))
            entry.scores = entry.scores or f"{keyed}.scores" in names
            if f"{keyed}.default_value" in names:
                default = file.array(f"{keyed}.default_value")
                check_dim(default.rows, what=f"{archive}, array {keyed}.default_value")
                entry.default = default.read(slice(0, default.rows)).reshape(1, -1)
        elif name.startswith(".") or any(name.endswith(end) for end in (".values", ".scores", ".default_value")):
            continue
        else:
            keyed, rows = name, file.array(name)
            entry = found[name]
            if entry.numbered_in not in (None, archive.parent):
                raise InvalidInput(
                    f"table {name!r}: it is in {entry.numbered_in} and in {archive.parent}, and its rows are numbered; "
                    "import one of them"
                )
            entry.numbered_in = archive.parent
            first = sum(part.rows.rows for part in entry.parts)
            entry.parts.append(_Part(str(archive), Numbers(rows.rows), rows, first))
        found[keyed].take_width(keyed, str(archive), rows.width, rows.kind == "u")


def _look_into_delta(delta: Path, found: dict[str, _Found]) -> None:
    with opened(delta) as parquet:
        columns_of(parquet, delta, _COLUMNS)
        row_type = parquet.schema_arrow.field("embedding").type
        if not pa.types.is_list(row_type):
            raise InvalidInput(f"{delta}: embedding is {row_type}, expected lists of numbers", field="row")
        quantised = pa.types.is_uint8(row_type.value_type)
        for batch in batches(parquet, delta, rows_at_once(_WIDE), ["table_fqn", "embedding", "source"]):
            for source in set(batch.column(2).unique().to_pylist()):
                if not _is_removal(source) and source != "model_delta_tracker":
                    raise InvalidInput(
                        f"{delta}: rows of source {source!r}; known are model_delta_tracker, and removals by evict...",
                        field="source",
                    )
            tables = batch.column(0).to_pylist()
            if None in tables:
                raise InvalidInput(f"{delta}: a row has no table_fqn")
            lengths = batch.column(1).value_lengths().to_pylist()
            for fqn in set(tables):
                entry = found[fqn]
                mine = [length for table, length in zip(tables, lengths, strict=True) if table == fqn]
                entry.deltas[delta] = entry.deltas.get(delta, 0) + len(mine)
                if width := max((length or 0 for length in mine), default=0):
                    entry.take_width(fqn, str(delta), width, quantised)


def _is_removal(source: str | None) -> bool:
    return source is not None and "evict" in source.lower()


def _table(name: str, fqn: str, found: _Found, options: ImportOptions) -> FileTable:
    dim = options.dim(name) or found.dim
    if not dim:
        raise InvalidInput(
            f"table {fqn!r}: the files hold no row of it; --dim says how many values one has", field="dim"
        )

    def blocks() -> Iterator[Block]:
        for part in found.parts:
            what = f"table {fqn!r}, {part.file}"
            for piece in pieces(part.ids.rows, dim):
                ids = as_ids(part.ids.read(piece), what=what) + part.first
                rows = as_rows(_plain(part.rows.read(piece), dim, what), dim, what=what)
                steps = np.full(len(ids), _EXPORTED, np.int64) if found.deltas else None
                yield Block(ids, rows, part.file, steps=steps)
        for delta in found.deltas:
            yield from _delta_blocks(delta, fqn, dim)

    def ids() -> Iterator[np.ndarray]:
        for part in found.parts:
            for piece in pieces(part.ids.rows, dim):
                yield as_ids(part.ids.read(piece), what=part.file) + part.first
        for delta in found.deltas:
            with opened(delta) as parquet:
                for batch in batches(parquet, delta, 1 << 18, ["table_fqn", "key_id"]):
                    mine = pc.equal(batch.column(0), fqn)
                    yield as_ids(integers(batch.column(1).filter(mine), what=str(delta)), what=str(delta))

    absent = options.absent(name)
    if found.default is not None and options.default(name) is None:
        what = f"table {fqn!r}"
        absent = default_vector(_plain(found.default, dim, what)[0], what=what)
    rows = sum(part.ids.rows for part in found.parts) + sum(found.deltas.values())
    left_out = ("scores: times or steps, and no use counts",) if found.scores else ()
    says_absent = found.default is not None or options.default(name) is not None
    return FileTable(name, dim, blocks, ids, rows, bool(found.deltas), absent, says_absent, left_out)


def _delta_blocks(delta: Path, fqn: str, dim: int) -> Iterator[Block]:
    with opened(delta) as parquet:
        for batch in batches(parquet, delta, rows_at_once(dim), list(_COLUMNS.values())):
            mine = batch.filter(pc.equal(batch.column(1), fqn))
            if not mine.num_rows:
                continue
            what = f"table {fqn!r}, {delta}"
            ids = as_ids(integers(mine.column(2), what=what), what=what)
            removed = np.array([_is_removal(source) for source in mine.column(4).to_pylist()], np.bool_)
            rows = np.zeros((len(ids), dim), np.float32)
            if not removed.all():
                kept = mine.column(3).filter(pa.array(~removed))
                quantised = pa.types.is_uint8(kept.type.value_type)
                width = dim + _SCALE_BYTES if quantised else dim
                values = list_values(kept, width, ids[~removed], what=what)
                rows[~removed] = as_rows(_plain(values, dim, what), dim, what=what)
            steps = as_ids(integers(mine.column(0), what=what), what=f"{what}, global_step")
            yield Block(ids, rows, str(delta), steps=steps, removed=removed)


def _plain(values: np.ndarray, dim: int, what: str) -> np.ndarray:
    """Returns rows (n, dim) of rows that may be quantised."""
    if values.dtype != np.uint8:
        return values
    if values.shape[1] != dim + _SCALE_BYTES:
        raise InvalidInput(f"{what}: quantised rows of {values.shape[1]} bytes, expected {dim + _SCALE_BYTES}")
    scales = np.ascontiguousarray(values[:, dim:]).view("<f2").astype(np.float32)
    plain: np.ndarray = values[:, :dim].astype(np.float32) * scales[:, :1] + scales[:, 1:]
    return plain


KIND = Kind(
    "torcheasyrec",
    "Exports and deltas of TorchEasyRec: .npz and Parquet.",
    """Publish tables that TorchEasyRec exported, with its deltas laid over them.

    A PATH is a folder with archives sparse_embeddings-RR-of-WW.npz and sparse_dynamic_embedding-RR-of-WW.npz, or a file
    or folder of delta Parquet. Of rows of one id, that of the latest global_step is taken. Rows of INT8 are read.
    Tables of dynamicemb in a checkpoint are the kind dynamicemb, those of its model the kind dcp.
    """,
    """\b
Examples:
  emberline import torcheasyrec export/sparse --check
  emberline import torcheasyrec export/sparse deltas/ --repository build/models --name shop""",
    open_files,
    (),
)
