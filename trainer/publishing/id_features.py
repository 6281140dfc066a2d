"""The features of ids that take the place of embedding layers: which ones a call needs, and what they are called.

W ids of a row, D dim of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from storage.features import Feature
from storage.features.transforms import Select, Slice, Transform
from storage.initializers import AbsentRows
from trainer.embedding import Embedding, EmbeddingBag
from trainer.publishing.call_layout import CallLayout, IdColumn
from trainer.publishing.cut_plan import CutCall, CutFeature, Reduction
from trainer.publishing.embedding_layers import EmbeddingLayer, TableNames, free_name, layer_absent, layer_dim
from trainer.publishing.id_steps import kind_of, transforms_of
from trainer.publishing.recording import LayerCall


@dataclass(frozen=True)
class IdUse:
    """One lookup of ids out of a sample tensor."""

    leaf: str
    #: The columns that it reads; None for bags.
    columns: tuple[int, int] | None
    transforms: tuple[Transform, ...]
    pooling: str
    length: int = 0
    with_lengths: bool = False
    #: The sample tensor that holds a weight for each id, "" for none.
    weights: str = ""
    #: What ids without a row read as; None: what the table says.
    absent: AbsentRows | None = None


@dataclass(frozen=True)
class FixedCall:
    """A call over ids that every row has as many of: its lookups, and how their rows become the result."""

    uses: tuple[IdUse, ...]
    #: The call, without the names of its features.
    cut: CutCall

    @property
    def reads_ids(self) -> bool:
        """True where the dense graph needs the ids too."""
        return self.cut.reduction is not None and self.cut.reduction.padding is not None

    @property
    def reads_weights(self) -> bool:
        """True where the dense graph needs the weights of the ids."""
        return self.cut.reduction is not None and self.cut.reduction.is_weighted


def are_ids(layout: CallLayout) -> bool:
    """Returns whether transforms can make the ids of a call."""
    return all(transforms_of([each.chain]) is not None for each in layout.columns if each.leaf)


def fixed_call(call: LayerCall, layout: CallLayout, weights: CallLayout | None, shapes_fit: bool) -> FixedCall:
    """Describes a call by lookups.

    weights: the layout of the weights, where they are columns of the batch; shapes_fit: whether their tensor has the
    shape of that of the ids.
    """
    layer = call.layer
    segments = _segments(layout.columns)
    constants = tuple(dict.fromkeys(each.place for each in layout.columns if not each.leaf))
    rows = [each for segment in segments for each in segment] + [IdColumn("", place) for place in constants]
    order = tuple(rows.index(each) for each in layout.columns)
    is_plain = len(segments) == 1 and order == tuple(range(len(segments[0])))
    if isinstance(layer, nn.EmbeddingBag):
        padding = layer.padding_idx if layer.mode != "sum" else None
        beside = weights is not None and shapes_fit and _same_columns(layout, weights)
        at_first = layout.placement.form == "axis" and layout.placement.axis == 0
        if is_plain and at_first and layer.mode != "max" and padding is None and (beside or not call.is_weighted):
            of_weights = weights.columns[0].leaf if weights is not None else ""
            use = _use(call, segments[0], "weighted" if of_weights else layer.mode, 0)
            return FixedCall((replace(use, weights=of_weights),), CutCall(call.path, "pooled"))
        reduction = Reduction(layer.mode, padding, call.is_weighted)  # type: ignore[arg-type]
    else:
        reduction = None
    uses = tuple(
        _use(call, segment, "sum", 0) if len(segment) == 1 else _use(call, segment, "none", len(segment))
        for segment in segments
    )
    cut = CutCall(
        call.path,
        "rows",
        constants=constants,
        order=() if order == tuple(range(len(rows))) else order,
        placement=layout.placement,
        reduction=reduction,
    )
    return FixedCall(uses, cut)


def _use(call: LayerCall, segment: Sequence[IdColumn], pooling: str, length: int) -> IdUse:
    transforms = transforms_of([each.chain for each in segment]) or ()
    columns = segment[0].place, segment[-1].place + 1
    return IdUse(segment[0].leaf, columns, transforms, pooling, length, absent=layer_absent(call.layer))


def _segments(columns: Sequence[IdColumn]) -> list[list[IdColumn]]:
    """Returns the different columns of tensors in runs: neighbours of one tensor after steps of the same kind."""
    distinct = list(dict.fromkeys(each for each in columns if each.leaf))
    leaves = list(dict.fromkeys(each.leaf for each in distinct))
    kinds = list(dict.fromkeys(kind_of(each.chain) for each in distinct))
    distinct.sort(key=lambda each: (leaves.index(each.leaf), kinds.index(kind_of(each.chain)), each.place))
    found: list[list[IdColumn]] = []
    for each in distinct:
        last = found[-1][-1] if found else None
        if (
            last is not None
            and (last.leaf, last.place + 1) == (each.leaf, each.place)
            and kind_of(last.chain) == kind_of(each.chain)
        ):
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _same_columns(ids: CallLayout, weights: CallLayout) -> bool:
    """Returns whether weights stand in the places of the ids that they weigh, in one tensor."""
    return (
        ids.placement == weights.placement
        and [each.place for each in ids.columns] == [each.place for each in weights.columns]
        and len({each.leaf for each in weights.columns}) == 1
        and all(not each.chain for each in weights.columns)
    )


class IdFeatures:
    """Collects the features of ids of a module, and names them.

    taken: names of features, of which it adds its own. own_names: the names that collections give their tables.
    """

    def __init__(self, taken: set[str], own_names: Mapping[EmbeddingLayer, str]) -> None:
        self.names = TableNames(own_names)
        self._taken = taken
        self._made: dict[tuple[IdUse, str], tuple[Feature, CutFeature]] = {}

    @property
    def features(self) -> list[Feature]:
        """The features, in the order of their first use."""
        return [feature for feature, _ in self._made.values()]

    @property
    def cuts(self) -> tuple[CutFeature, ...]:
        """The same as the graph takes them."""
        return tuple(cut for _, cut in self._made.values())

    def add(self, call: LayerCall, use: IdUse, width: int) -> str:
        """Returns the name of the feature of a use. width: that of the input."""
        table = self.names.name(call.path, call.layer)
        key = use, table
        if key not in self._made:
            self._made[key] = self._feature(call, use, table, width)
        return self._made[key][1].name

    def free(self, name: str) -> str:
        """Returns the name, or one like it that no feature has, and takes it."""
        found = free_name(name, self._taken)
        self._taken.add(found)
        return found

    def _feature(self, call: LayerCall, use: IdUse, table: str, width: int) -> tuple[Feature, CutFeature]:
        layer = call.layer
        transforms: tuple[Transform, ...] = ()
        name = use.leaf
        if use.columns is not None and use.columns != (0, width):
            start, stop = use.columns
            name = f"{use.leaf}_{start}" if stop - start == 1 else f"{use.leaf}_{start}_{stop}"
            transforms = (Select(index=start),) if stop - start == 1 else (Slice(start=start, stop=stop),)
        transforms += use.transforms
        if isinstance(layer, Embedding | EmbeddingBag):
            transforms += layer.table.transforms
        name = self.free(f"{name}_{table}" if name in self._taken else name)
        absent = None
        if use.absent is not None:
            initializer = use.absent.initializer
            absent = {"type": initializer.kind, "scale": initializer.scale, "seed": use.absent.seed}
        feature = Feature.model_validate(
            {
                "name": name,
                "inputs": (use.leaf,),
                "transforms": transforms,
                "output": "ids",
                "table": table,
                "pooling": use.pooling,
                "length": use.length,
                "weights": use.weights,
                "absent": absent,
            }
        )
        return feature, CutFeature(name, table, layer_dim(layer), use.pooling, use.length, use.with_lengths, use.absent)
