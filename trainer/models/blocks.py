"""The layout of dense weights: which values of a weight belong to which feature, so that they can be found again in a
model with other features.

Each axis of a weight is a row of blocks, each with a label and a width. Values of two models that lie in blocks of the
same labels mean the same; of blocks of another width, the leading ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from storage.features.spec import FeatureSpec

Shape = tuple[int, ...]
#: Label and width of the parts of one axis, in order.
Blocks = tuple[tuple[str, int], ...]
#: The name that a feature is known by; for finding a feature again that was renamed.
Names = Callable[[str], str]


@dataclass(frozen=True)
class WeightLayout:
    """The place and the axes of one weight."""

    #: What the weight is in its model, whatever it is called: dropout, for one, changes the names of layers.
    role: str
    axes: tuple[Blocks, ...]

    def fits(self, shape: Shape) -> bool:
        """Returns whether a weight of this shape can have this layout."""
        return shape == tuple(sum(width for _, width in axis) for axis in self.axes)


@dataclass(frozen=True)
class InputLayout:
    """The features of a model and their dims, on which the layouts of the zoo depend."""

    spec: FeatureSpec
    #: Values of a row by ids feature.
    dims: Mapping[str, int]
    names: Names = str
    #: The heads of the tasks, as the last axis of a model has them.
    heads: Blocks = (("score", 1),)

    @property
    def pooled(self) -> tuple[str, ...]:
        """The pooled features, in order."""
        return tuple(feature.name for feature in self.spec.ids_features if feature.pooling != "none")

    def joined(self) -> Blocks:
        """All pooled rows and the dense columns, side by side."""
        return (*((f"field {self.names(name)}", self.dims[name]) for name in self.pooled), *self.dense())

    def dense(self) -> Blocks:
        """The columns of the dense groups, side by side."""
        features = [feature for feature in self.spec.features if feature.output == "dense"]
        return tuple(
            (f"dense {self.names(feature.name)}", self.spec.flow(feature.name).high)
            for group in self.spec.dense_groups
            for feature in features
            if feature.group == group
        )


def mlp_width(name: str, weights: Mapping[str, Shape]) -> int:
    """Returns how many values an MLP gives, by the shapes of its weights."""
    found = (re.fullmatch(rf"{re.escape(name)}\.([0-9]+)\.weight", weight) for weight in weights)
    return weights[f"{name}.{max(int(match[1]) for match in found if match is not None)}.weight"][0]


def mlp_layouts(name: str, weights: Mapping[str, Shape], inputs: Blocks, outputs: Blocks) -> dict[str, WeightLayout]:
    """Returns the layouts of an MLP's linear layers, as `mlp` makes it.

    name: of the MLP in its model. weights: shapes of all weights of the model. inputs, outputs: of the whole MLP.
    """
    found = (re.fullmatch(rf"{re.escape(name)}\.([0-9]+)\.weight", weight) for weight in weights)
    places = sorted(int(match[1]) for match in found if match is not None)
    layouts: dict[str, WeightLayout] = {}
    before = inputs
    for depth, place in enumerate(places):
        last = place == places[-1]
        role = f"{name}.out" if last else f"{name}.hidden{depth}"
        units = outputs if last else ((role, weights[f"{name}.{place}.weight"][0]),)
        layouts[f"{name}.{place}.weight"] = WeightLayout(f"{role}.weight", (units, before))
        layouts[f"{name}.{place}.bias"] = WeightLayout(f"{role}.bias", (units,))
        before = units
    return layouts


def sequence_layouts(
    inputs: InputLayout, weights: Mapping[str, Shape], dim: int, *, product: bool = True
) -> dict[str, WeightLayout]:
    """Returns the layouts of a model whose states of a sequence, of `dim` values, join its features in the MLP `top`.

    product: whether the state's product with the target joins them too. Values of all other weights are known by their
    places: of a model of other sizes, the leading ones mean the same.
    """
    pooled = tuple((f"field {inputs.names(name)}", inputs.dims[name]) for name in inputs.pooled)
    states: Blocks = (("state", dim), *((("state * target", dim),) if product else ()))
    own = {
        name: WeightLayout(name, tuple((("values", size),) for size in shape))
        for name, shape in weights.items()
        if not name.startswith("top.")
    }
    return {**own, **mlp_layouts("top", weights, (*pooled, *states, *inputs.dense()), inputs.heads)}


def pair_blocks(names: Sequence[str]) -> Blocks:
    """Returns the products of all pairs of vectors, as the lower triangle of a matrix, row by row."""
    return tuple(
        (f"pair {min(one, other)} {max(one, other)}", 1) for place, one in enumerate(names) for other in names[:place]
    )
