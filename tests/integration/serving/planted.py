"""A model whose answers say where they come from: which generation each row and the weights were published in.

Every published snapshot has a generation, 1, 2, 3 and so on. A row is [1, generation that changed it, a number that is
the id's own]; the weight `generation` is that of the snapshot. The output `trace` is the weight, the user's row and the
sum of the items' rows, all small integers and fractions of 1024, so exact in float32: an answer that mixes two
snapshots equals the reference of none.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage import Golden, GraphInput, GraphOutput, TableData, write_version
from storage.checkpoint import open_delta
from storage.checkpoint.delta_writer import DeltaTable, EarlierWeights, write_delta
from storage.checkpoint.event_times import EventTimes
from storage.checkpoint.manifest import WEIGHTS, Manifest
from storage.checkpoint.tensors import TensorFile
from storage.features import Column, FeatureSpec, column_from_rows

DIM = 3
NAME = "planted"
EDGE_IDS = (-1, 0, 2**63 - 1, -(2**63))
SPEC: dict[str, Any] = {
    "inputs": [
        {"name": "user", "dtype": "INT64", "side": "user"},
        {"name": "items", "dtype": "INT64", "kind": "list", "missing": "null"},
    ],
    "features": [
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "pooling": "sum"},
        {"name": "items", "inputs": ["items"], "output": "ids", "table": "item", "pooling": "sum"},
    ],
}
TABLES = ("user", "item")
OUTPUTS = (GraphOutput(name="score", shape=(-1, 1)), GraphOutput(name="trace", shape=(-1, 1 + 2 * DIM)))

Row = Mapping[str, Any]  # {"user": id, "items": [ids] or None}


class PlantedModule(torch.nn.Module):
    def __init__(self, generation: float, slope: float, work: int = 0) -> None:
        """Work: width of a network that costs time and changes nothing."""
        super().__init__()
        self.idle = torch.nn.Sequential(torch.nn.Linear(DIM, work), torch.nn.Linear(work, work)) if work else None
        self.generation = torch.nn.Parameter(torch.tensor([float(generation)]), requires_grad=False)
        self.slope = torch.nn.Parameter(torch.tensor([float(slope)]), requires_grad=False)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        user, items = inputs["user"], inputs["items"]
        weight = self.generation + 0 * user[:, :1]
        if self.idle is not None:
            weight = weight + 0 * self.idle(items)[:, :1]
        score = torch.sigmoid(self.slope * (user[:, 2:] + items[:, 2:] - 1))
        return {"score": score, "trace": torch.cat([weight, user, items], 1)}


@dataclass(frozen=True, eq=False, repr=False)
class Planted:
    """One published snapshot, complete, as the reference.

    tables: name -> id -> generation that changed the row last.
    """

    id: str
    version: int
    sequence: int
    path: Path
    generation: int
    slope: float
    tables: Mapping[str, Mapping[int, int]]
    parent: Planted | None = None
    base: str = ""
    ancestors: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        return f"Planted({self.name}, {self.id})"

    @property
    def name(self) -> str:
        return f"{self.version}.{self.sequence}"

    def answer(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Computes every output for these rows, (n, ...) float32."""
        trace = np.zeros((len(rows), 1 + 2 * DIM), np.float32)
        trace[:, 0] = self.generation
        for index, row in enumerate(rows):
            trace[index, 1 : 1 + DIM] = self.row("user", row["user"])
            for item in row["items"] or ():
                trace[index, 1 + DIM :] += self.row("item", item)
        place = trace[:, DIM : DIM + 1] + trace[:, 2 * DIM : 2 * DIM + 1] - np.float32(1)
        score = 1 / (1 + np.exp(-np.float32(self.slope) * place))
        return {"score": score.astype(np.float32), "trace": trace}

    def row(self, table: str, id_: int) -> np.ndarray:
        generation = self.tables[table].get(id_)
        return np.zeros(DIM, np.float32) if generation is None else planted_row(id_, generation)


def planted_row(id_: int, generation: int) -> np.ndarray:
    return np.array([1, generation, (id_ % 1024) / 1024], np.float32)


class World:
    """Publishes planted snapshots into a repository."""

    def __init__(self, repository: Path, *, users: int = 64, items: int = 256, seed: int = 0, config: str = "") -> None:
        self.repository = repository
        self.model_dir = repository / NAME
        self.rng = np.random.default_rng(seed)
        self.generation = 0
        self.last_sequence: dict[int, int] = {}
        #: Each n-th delta has all weights, the others a difference to those of the parent, or of the version.
        self.full_weights_every = 1
        self.users, self.items = users, items
        if config:
            self.configure(config)

    def copied(self, repository: Path) -> World:
        """Returns a world that goes on from this one in a copy of its repository; publishing a version is slow."""
        shutil.copytree(self.repository, repository)
        other = copy.deepcopy(self)
        other.repository, other.model_dir = repository, repository / NAME
        return other

    def configure(self, text: str = "", **parameters: object) -> None:
        """Writes config.pbtxt: text, then `parameters`.

        The live guard is off because every generation shifts the scores.
        """
        lines = [text]
        for key, value in {"live_guard": "false", **parameters}.items():
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
        self.model_dir.mkdir(parents=True, exist_ok=True)
        (self.model_dir / "config.pbtxt").write_text("\n".join(lines) + "\n")

    def publish(
        self,
        version: int | None = None,
        *,
        tables: Mapping[str, Mapping[int, int]] | None = None,
        equals: Planted | None = None,
        parent: Planted | None = None,
        slope: float = 4.0,
        spec: Mapping[str, Any] | None = None,
        wrong_by: float = 0.0,
        work: int = 0,
        erased_unix_ms: int = 0,
    ) -> Planted:
        """Publishes a version.

        equals: the version has the rows and weights of that snapshot, and is made from it.
        """
        if equals is None:
            self.generation += 1
        generation = self.generation if equals is None else equals.generation
        if equals is not None:
            tables, slope, parent = equals.tables, equals.slope, equals
        elif tables is None:
            tables = {
                "user": dict.fromkeys((*range(1, self.users), *EDGE_IDS), generation),
                "item": dict.fromkeys((*range(1, self.items), *EDGE_IDS), generation),
            }
        own = Planted("", 0, 0, Path(), generation, slope, tables)
        rows = self.rows_of(own, 256)
        if not (self.model_dir / "config.pbtxt").exists():
            self.configure()
        path = write_version(
            self.model_dir,
            version=version,
            spec=FeatureSpec.model_validate(spec or SPEC),
            tables=[_table_data(name, tables[name]) for name in TABLES],
            graph=_export(PlantedModule(generation, slope, work)),
            graph_inputs=[
                GraphInput(name=name, kind="pooled", source=name, shape=(-1, DIM)) for name in ("user", "items")
            ],
            graph_outputs=list(OUTPUTS),
            golden=self.golden(own, rows, wrong_by=wrong_by, spec=spec),
            parent=None if parent is None else parent.id,
            equals=None if equals is None else equals.id,
            erased_unix_ms=erased_unix_ms,
            descends_from=() if parent is None else (*parent.ancestors, parent.id),
        )
        manifest = Manifest.from_bytes((path / "manifest.json").read_bytes())
        ancestors = () if parent is None else (*parent.ancestors, parent.id)
        return replace(
            own, id=manifest.snapshot, version=manifest.version, path=path, base=manifest.snapshot,
            parent=parent, ancestors=ancestors,
        )  # fmt: skip

    def publish_delta(
        self,
        parent: Planted,
        *,
        changed: Mapping[str, Iterable[int]] | None = None,
        removed: Mapping[str, Iterable[int]] | None = None,
        since: Planted | None = None,
        slope: float | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
        sequence: int | None = None,
        applies_to: Sequence[str] | None = None,
        wrong_by: float = 0.0,
        wrong_row: bool = False,
        wrong_weight: bool = False,
        events: EventTimes | None = None,
    ) -> Planted:
        """A delta on `parent`. since: an older snapshot of the line; the delta then holds all changes after it too.

        generation: of the weights; None is a new one. wrong_*: golden scores, one row or one weight that is not what
        the golden scores were computed with.
        """
        if generation is None:
            self.generation += 1
            generation = self.generation
        changed = {name: sorted(set((changed or {}).get(name, ()))) for name in TABLES}
        removed = {name: sorted(set((removed or {}).get(name, ()))) for name in TABLES}
        tables = {}
        for name in TABLES:
            table = dict(parent.tables[name])
            table.update(dict.fromkeys(changed[name], self.generation))
            for id_ in removed[name]:
                table.pop(id_, None)
            tables[name] = table
        since = since or parent
        if sequence is None:
            sequence = self.last_sequence.get(parent.version, 0) + 1
        self.last_sequence[parent.version] = max(sequence, self.last_sequence.get(parent.version, 0))
        own = replace(
            parent, id=snapshot or secrets.token_hex(16), sequence=sequence, generation=generation, tables=tables,
            slope=parent.slope if slope is None else slope, parent=parent, ancestors=(*parent.ancestors, parent.id),
        )  # fmt: skip
        if applies_to is None:
            line = [parent]
            while line[-1] is not since and line[-1].parent is not None:
                line.append(line[-1].parent)
            applies_to = [each.id for each in reversed(line)]
        parts, touched = [], []
        for name in TABLES:
            old, new = since.tables[name], tables[name]
            ids = sorted(id_ for id_, value in new.items() if old.get(id_) != value)
            gone = sorted({*(id_ for id_ in old if id_ not in new), *removed[name]} - set(new))
            if name == "item":
                touched = [*ids, *gone]
            rows = _rows(ids, new)
            if wrong_row and ids:
                rows[len(ids) // 2, 1] += 1
                wrong_row = False
            parts.append(
                DeltaTable(
                    name, DIM, np.array(ids, np.int64), rows, np.full(len(ids), 9, np.uint8), np.array(gone, np.int64)
                )
            )
        version_dir = self.model_dir / str(parent.version)
        weights = {}
        for key in TensorFile.open(version_dir / WEIGHTS).arrays:
            value = own.generation if key.endswith("generation") else own.slope
            weights[key] = np.array([value + (wrong_weight and key.endswith("generation"))], np.float32)
        golden_rows = self.rows_of(own, 256, touched)
        several = len(applies_to) > 1
        against = next(each for each in _line(parent) if each.sequence == 0) if several else parent
        path = write_delta(
            version_dir,
            snapshot=own.id,
            base=parent.base,
            parent=parent.id,
            applies_to=tuple(applies_to),
            from_sequence=since.sequence if since.version == parent.version else 0,
            sequence=sequence,
            tables=parts,
            weights=weights,
            weight_dtypes={},
            weights_before=self._weights_of(against, weights),
            golden=self.golden(own, golden_rows, wrong_by=wrong_by),
            outputs=OUTPUTS,
            events=events,
        )
        return replace(own, path=path)

    def _weights_of(self, before: Planted, weights: Mapping[str, np.ndarray]) -> EarlierWeights | None:
        """Returns the weights of a snapshot, for a difference to them; None where all weights are due."""
        dense = open_delta(before.path, verify=False).manifest.dense if before.sequence else None
        depth = 0 if dense is None else dense.depth
        if depth + 2 > self.full_weights_every:
            return None
        values = {"generation": before.generation, "slope": before.slope}
        arrays = {key: np.array([values[key.rpartition(".")[2]]], np.float32) for key in weights}
        return EarlierWeights(before.id, depth, arrays)

    def change(self, parent: Planted, count: int = 8, **options: Any) -> Planted:
        """A delta that changes some random rows of both tables."""
        changed = {
            "user": self.rng.integers(1, self.users, max(1, count // 4)).tolist(),
            "item": self.rng.integers(1, self.items, count).tolist(),
        }
        return self.publish_delta(parent, changed=changed, **options)

    def rows_of(self, snapshot: Planted, count: int, touched: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Makes raw rows: known, unknown and edge ids, empty and null lists; half of them with a touched item."""
        rng = np.random.default_rng(snapshot.generation)
        users = [*list(snapshot.tables["user"])[:4096], 10**9]
        items = [*list(snapshot.tables["item"])[:4096], 10**9]
        rows = []
        for index in range(count):
            bag = [items[i] for i in rng.integers(0, len(items), rng.integers(0, 4))]
            if touched and index % 2:
                bag.append(touched[int(rng.integers(0, len(touched)))])
            null = not bag and rng.random() < 0.5
            rows.append({"user": users[int(rng.integers(0, len(users)))], "items": None if null else bag})
        return rows

    def golden(
        self, snapshot: Planted, rows: Sequence[Row], *, wrong_by: float = 0.0, spec: Mapping[str, Any] | None = None
    ) -> Golden:
        """Returns the golden requests of a snapshot."""
        outputs = {name: values + np.float32(wrong_by) for name, values in snapshot.answer(rows).items()}
        return Golden(columns_of(rows, spec), len(rows), outputs, 1e-5)


def columns_of(rows: Sequence[Row], spec: Mapping[str, Any] | None = None) -> dict[str, Column]:
    """Returns rows as the columns that `LoadedModel.infer` takes."""
    inputs = FeatureSpec.model_validate(spec or SPEC).inputs
    return {entry.name: column_from_rows(entry, [row.get(entry.name) for row in rows]) for entry in inputs}


def ask(repository: Any, rows: Sequence[Row], *, version: str = "", routing_key: str = "", **options: Any) -> Any:
    """Runs one request, past the transports. Returns the engine's InferenceResult."""
    model = repository.get(NAME, version, routing_key)
    canary = model.takes_canary(routing_key)
    return asyncio.run(model.infer(columns_of(rows), len(rows), canary=canary, **options))


def check_answer(result: Any, rows: Sequence[Row], snapshots: Mapping[str, Planted]) -> Planted:
    """Asserts that an answer is exactly that of the snapshot which it names; returns the snapshot."""
    snapshot = snapshots[result.snapshot.id]
    expected = snapshot.answer(rows)
    for output, values in zip(OUTPUTS, result.outputs, strict=True):
        np.testing.assert_allclose(values, expected[output.name], rtol=0, atol=2e-6, err_msg=snapshot.name)
    return snapshot


def _rows(ids: Sequence[int], generations: Mapping[int, int]) -> np.ndarray:
    rows = np.empty((len(ids), DIM), np.float32)
    rows[:, 0] = 1
    rows[:, 1] = [generations[id_] for id_ in ids]
    rows[:, 2] = [(id_ % 1024) / 1024 for id_ in ids]
    return rows


def _table_data(name: str, generations: Mapping[int, int]) -> TableData:
    ids = sorted(generations)
    return TableData(name, DIM, np.array(ids, np.int64), _rows(ids, generations), np.full(len(ids), 9, np.uint8))


def _export(module: torch.nn.Module) -> torch.export.ExportedProgram:
    tensors = {name: torch.zeros(2, DIM) for name in ("user", "items")}
    batch = torch.export.Dim("batch", min=1, max=65_536)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), (tensors,), dynamic_shapes=({name: {0: batch} for name in tensors},))


def _line(snapshot: Planted) -> list[Planted]:
    """Returns a snapshot and those that it was made from, newest first."""
    line = [snapshot]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    return line
