"""Finds what moved the scores of requests: rows of a table, or dense weights, taken from the second snapshot alone.

Both snapshots score the same rows with the engine that serves. Then the first snapshot scores them again with the rows
of one feature, of one table, or with the dense weights of the second. A part's share is the change that it makes by
itself; what the parts do only together is what is left over. B rows, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from emberline.difference.tables import AskedChanges
from serving.scoring import Scorer
from storage.features import Column, FeatureBatch

_HARDLY = 1e-7


@dataclass(frozen=True)
class PartEffect:
    """Holds the change that one part of the second snapshot makes by itself."""

    #: dense, a table, or a feature.
    kind: str
    name: str
    #: Mean and largest absolute change of the output, over all requests.
    mean: float
    largest: float
    #: Mean change with its sign.
    shift: float


@dataclass(frozen=True)
class MovedRequest:
    """A request whose score moved far."""

    #: Its place in the file, from 0.
    row: int
    before: float
    after: float
    #: The change that each table and the dense weights make by themselves, the largest first.
    parts: dict[str, float]
    #: The changed rows that it reads, by how far they moved: feature, id, norm of the change.
    rows: list[tuple[str, int, float]]


@dataclass(frozen=True)
class ScoreDifference:
    """The difference of one output."""

    output: str
    requests: int
    #: Requests whose score differs in more than rounding.
    moved: int
    mean: float
    largest: float
    shift: float
    parts: list[PartEffect] = field(default_factory=list)
    #: Mean absolute change that the sum of the parts leaves unexplained.
    together: float = 0.0
    most: list[MovedRequest] = field(default_factory=list)
    #: Why the change cannot be divided among parts; "" where it is.
    undivided: str = ""


@dataclass(frozen=True)
class Requests:
    """Raw requests, and the features that the first snapshot makes of them."""

    columns: Mapping[str, Column]
    rows: int
    features: FeatureBatch
    #: What the second snapshot reads of them, where it has other inputs.
    columns_after: Mapping[str, Column] | None = None

    def asked(self, scorer: Scorer) -> dict[str, np.ndarray]:
        """Returns the ids that they hold, ascending, by table."""
        found: dict[str, list[np.ndarray]] = {}
        for feature in scorer.spec.ids_features:
            found.setdefault(feature.table, []).append(self.features.ids[feature.name].values)
        return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}


def score_differences(
    before: Scorer, after: Scorer, requests: Requests, changes: Mapping[str, AskedChanges], top: int
) -> list[ScoreDifference]:
    """Returns the difference of each output that both snapshots have.

    changes: the ids of the requests that differ, by table. top: requests to list.
    """
    own = before.score(requests.columns, requests.rows)
    columns = requests.columns if requests.columns_after is None else requests.columns_after
    other = dict(zip(_names(after), after.score(columns, requests.rows), strict=True))
    undivided = _why_undivided(before, after)
    effects = {} if undivided else _effects(before, after, requests)
    found = []
    for place, name in enumerate(_names(before)):
        if name in other and own[place].shape == other[name].shape:
            alone = {part: outputs[place] for part, outputs in effects.items()}
            found.append(_output(name, own[place], other[name], alone, before, requests, changes, top, undivided))
    return found


def outputs_not_compared(before: Scorer, after: Scorer) -> list[str]:
    """Returns, in words, which outputs only one of the snapshots has, or both in different shapes."""
    first, second = ({each.name: list(each.shape) for each in scorer.outputs} for scorer in (before, after))
    found = []
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            found.append(f"{name}: not compared, only the {'first' if name in first else 'second'} snapshot has it")
        elif first[name] != second[name]:
            found.append(f"{name}: not compared, its shape is {first[name]} and then {second[name]}")
    return found


def _names(scorer: Scorer) -> list[str]:
    return [entry.name for entry in scorer.outputs]


def _why_undivided(before: Scorer, after: Scorer) -> str:
    if before.spec != after.spec:
        return "the snapshots make other features of the requests"
    if before.graph_inputs != after.graph_inputs:
        return "the dense graphs of the snapshots have other inputs"
    return ""


def _effects(before: Scorer, after: Scorer, requests: Requests) -> dict[tuple[str, str], list[np.ndarray]]:
    """Returns the outputs of the first snapshot with one part of the second, by kind and name."""
    first, second = before.tensors(requests.features), after.tensors(requests.features)
    found = {("dense", "dense weights"): after.run(first)}
    tables = {feature.name: feature.table for feature in before.spec.ids_features}

    def swapped(is_in: Callable[[str], bool]) -> list[np.ndarray]:
        mixed: list[torch.Tensor] = [
            second[place] if entry.kind != "dense" and is_in(entry.source) else first[place]
            for place, entry in enumerate(before.graph_inputs)
        ]
        return before.run(mixed)

    for table in dict.fromkeys(tables.values()):
        mine = {name for name, of in tables.items() if of == table}
        found["table", table] = swapped(mine.__contains__)
        for feature in mine if len(mine) > 1 else ():
            found["feature", feature] = swapped(feature.__eq__)
    return found


def _output(
    name: str,
    own: np.ndarray,
    other: np.ndarray,
    alone: Mapping[tuple[str, str], np.ndarray],
    scorer: Scorer,
    requests: Requests,
    changes: Mapping[str, AskedChanges],
    top: int,
    undivided: str,
) -> ScoreDifference:
    rows = requests.rows
    old, new = _by_row(own, rows), _by_row(other, rows)
    change = new - old
    far = np.abs(change).max(axis=1)
    deltas = {part: _by_row(values, rows) - old for part, values in alone.items()}
    effects = [
        PartEffect(*part, *_figures(delta)) for part, delta in deltas.items() if np.abs(delta).max(initial=0.0) > 0
    ]
    whole = [delta for (kind, _), delta in deltas.items() if kind != "feature"]
    left = change - sum(whole) if whole else np.zeros_like(change)
    most = [
        _request(row, old, new, deltas, scorer, requests, changes)
        for row in np.argsort(-far, kind="stable")[:top].tolist()
        if far[row] > 0
    ]
    return ScoreDifference(
        name,
        rows,
        int((far > _HARDLY * np.maximum(1.0, np.abs(old).max(axis=1))).sum()),
        *_figures(change),
        sorted(effects, key=lambda effect: (-effect.mean, effect.name)),
        float(np.abs(left).mean()) if left.size else 0.0,
        most,
        undivided,
    )


def _figures(change: np.ndarray) -> tuple[float, float, float]:
    if not change.size:
        return 0.0, 0.0, 0.0
    return float(np.abs(change).mean()), float(np.abs(change).max()), float(change.mean())


def _by_row(values: np.ndarray, rows: int) -> np.ndarray:
    return values.astype(np.float64).reshape(rows, -1)


def _request(
    row: int,
    old: np.ndarray,
    new: np.ndarray,
    deltas: Mapping[tuple[str, str], np.ndarray],
    scorer: Scorer,
    requests: Requests,
    changes: Mapping[str, AskedChanges],
) -> MovedRequest:
    # Of several values, the one that moved furthest stands for the request.
    place = int(np.abs(new[row] - old[row]).argmax())
    parts = {name: float(delta[row, place]) for (kind, name), delta in deltas.items() if kind != "feature"}
    moved: list[tuple[str, int, float]] = []
    for feature in scorer.spec.ids_features:
        bags = requests.features.ids[feature.name]
        held = np.unique(bags.values[bags.offsets[row] : bags.offsets[row + 1]])
        ids, norms = changes.get(feature.table, (np.empty(0, np.int64), np.empty(0)))
        here = np.isin(ids, held)
        moved += [(feature.name, int(each), float(norm)) for each, norm in zip(ids[here], norms[here], strict=True)]
    moved.sort(key=lambda entry: (-entry[2], entry[0], entry[1]))
    order = sorted((name for name in parts if parts[name]), key=lambda name: -abs(parts[name]))
    listed: Sequence[tuple[str, int, float]] = moved[:8]
    return MovedRequest(
        row, float(old[row, place]), float(new[row, place]), {name: parts[name] for name in order}, list(listed)
    )
