"""Describes the inputs of a graph that a GPU makes itself from ids, and what its kernels need of each feature."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import prod

from storage.checkpoint.manifest import GraphEntry, GraphInput
from storage.errors import Unsupported
from storage.features import FeatureSpec
from storage.specs import POOLINGS, TableSpec


@dataclass(frozen=True)
class GpuFeature:
    """One feature that a GPU looks up."""

    name: str
    #: Number of its table.
    table: int
    dim: int
    #: Length of an unpooled feature, otherwise the number of its pooling.
    shape: int
    #: Number of the graph's input that gets its rows.
    place: int
    #: Number of the graph's input that gets its mask, if any.
    states: int | None
    #: Numbers of the graph's inputs that get the lengths of its bags.
    lengths: tuple[int, ...]
    #: True if it belongs to the user's side.
    is_user: bool
    is_weighted: bool


@dataclass(frozen=True)
class GpuFeatures:
    """All features of a graph; in both parts the user's side comes last."""

    #: Unpooled features: rows of ids to their places.
    gathered: tuple[GpuFeature, ...]
    #: Pooled features: bags, summed.
    pooled: tuple[GpuFeature, ...]
    #: Inputs that are dense groups, each with the name of its group.
    dense: tuple[tuple[int, str], ...]
    #: Inputs that are integers, each with the name of its feature.
    integers: tuple[tuple[int, str], ...]
    #: Numbers of the inputs that are not looked up: dense, integers and lengths, ascending.
    packed: tuple[int, ...]

    @property
    def all(self) -> tuple[GpuFeature, ...]:
        """All features, the gathered ones first."""
        return (*self.gathered, *self.pooled)


def gpu_features(
    spec: FeatureSpec, tables: Sequence[TableSpec], graph: GraphEntry, user_places: Set[int]
) -> GpuFeatures:
    """Describes the features of a graph.

    user_places: numbers of the inputs of the user's side. Raises Unsupported where only the host can look up.
    """
    by_source: dict[str, list[tuple[int, GraphInput]]] = {}
    for place, entry in enumerate(graph.inputs):
        if entry.kind not in ("dense", "ids"):
            by_source.setdefault(entry.source, []).append((place, entry))
    numbers = {table.name: index for index, table in enumerate(tables)}
    found: list[GpuFeature] = []
    for name, entries in by_source.items():
        feature = spec.feature(name)
        rows = _only(name, [(place, entry) for place, entry in entries if entry.kind in ("pooled", "rows")], "FP32")
        states = _only(name, [(place, entry) for place, entry in entries if entry.kind == "mask"], "BOOL")
        is_pooled = feature.pooling != "none"
        if rows is None or (is_pooled and len(entries) > 1):
            raise Unsupported(f"feature {name!r} has inputs other than its rows alone")
        table = numbers[feature.table]
        absent = tables[table].absent if feature.absent_rows is None else feature.absent_rows
        if not absent.is_zero:
            raise Unsupported(f"feature {name!r}: ids without a row read as {absent}, on a GPU they read as zeros")
        if feature.fallback:
            chain = ", ".join(feature.fallback)
            raise Unsupported(f"feature {name!r}: ids without a row read rows of {chain}, which only the host looks up")
        length = 1 if is_pooled else feature.length
        if prod(graph.inputs[rows].shape[1:]) != length * tables[table].dim:
            raise Unsupported(f"input {graph.inputs[rows].name!r} is not of the shape of its rows")
        found.append(
            GpuFeature(
                name,
                table,
                tables[table].dim,
                POOLINGS.index(feature.pooling) if is_pooled else length,
                rows,
                states,
                tuple(place for place, entry in entries if entry.kind == "lengths"),
                rows in user_places,
                feature.pooling == "weighted",
            )
        )
    if not found:
        raise Unsupported("the graph reads no rows")
    found.sort(key=lambda feature: feature.is_user)
    dense = tuple((place, entry.source) for place, entry in enumerate(graph.inputs) if entry.kind == "dense")
    integers = tuple((place, entry.source) for place, entry in enumerate(graph.inputs) if entry.kind == "ids")
    lengths = [place for feature in found for place in feature.lengths]
    packed = sorted([place for place, _ in (*dense, *integers)] + lengths)
    return GpuFeatures(
        tuple(feature for feature in found if spec.feature(feature.name).pooling == "none"),
        tuple(feature for feature in found if spec.feature(feature.name).pooling != "none"),
        dense,
        integers,
        tuple(packed),
    )


def _only(name: str, entries: Sequence[tuple[int, GraphInput]], dtype: str) -> int | None:
    """Returns the number of the one input of a kind; None where there is none."""
    if len(entries) > 1:
        raise Unsupported(f"feature {name!r} has two inputs of one kind")
    for place, entry in entries:
        if entry.dtype != dtype:
            raise Unsupported(f"input {entry.name!r} is {entry.dtype}, not {dtype}")
        return place
    return None
