"""The feature spec is a version's `features.json`, and the `inputs:` and `features:` of the trainer's config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from storage.errors import ConfigError
from storage.features.chain_rules import check_chains
from storage.features.fallback import MEAN, mean_table
from storage.features.feature import Feature, InputSpec, WireInput
from storage.features.pipeline import Flow, trace
from storage.features.strict_model import StrictModel, did_you_mean
from storage.features.transforms import Cross, Fill, IsNull, Pad, Split, Vocabulary
from storage.specs import LookupLevel, LookupSpec


class FeatureSpec(StrictModel):
    """All inputs and features of a model. Its JSON is a version's `features.json`."""

    inputs: Annotated[tuple[InputSpec, ...], Field(min_length=1, max_length=10_000)]
    features: Annotated[tuple[Feature, ...], Field(min_length=1, max_length=10_000)]

    @classmethod
    def parse(cls, data: str | bytes | Mapping[str, Any]) -> FeatureSpec:
        """Reads a spec from JSON text or parsed data. Raises ConfigError whose field is the place at fault."""
        try:
            return cls.model_validate_json(data) if isinstance(data, str | bytes) else cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"feature spec: {place + ': ' if place else ''}{message}", field=place) from None

    @model_validator(mode="after")
    def _check(self) -> FeatureSpec:
        _check_unique("input", [entry.name for entry in self.inputs])
        _check_unique("feature", [entry.name for entry in self.features])
        names = {entry.name for entry in self.inputs}
        for feature in self.features:
            for name in feature.inputs:
                if name not in names:
                    raise ValueError(f"feature {feature.name!r}: unknown input {name!r}{did_you_mean(name, names)}")
            inputs = [self.input(name) for name in feature.inputs]
            trace(feature, inputs)
            if feature.output == "integers":
                _check_never_null(feature, inputs)
        _check_weights(self._inputs, self.features)
        check_chains(self.features, self._inputs)
        return self

    @cached_property
    def _inputs(self) -> dict[str, InputSpec]:
        return {entry.name: entry for entry in self.inputs}

    @cached_property
    def _features(self) -> dict[str, Feature]:
        return {entry.name: entry for entry in self.features}

    def input(self, name: str) -> InputSpec:
        """Returns the input of that name. Raises KeyError."""
        return self._inputs[name]

    def feature(self, name: str) -> Feature:
        """Returns the feature of that name. Raises KeyError."""
        return self._features[name]

    def flow(self, name: str) -> Flow:
        """Returns the type of a feature's values and their number in a row, after its transforms."""
        feature = self.feature(name)
        return trace(feature, [self.input(entry) for entry in feature.inputs])

    @property
    def ids_features(self) -> tuple[Feature, ...]:
        """The features that give ids, in order."""
        return tuple(feature for feature in self.features if feature.output == "ids")

    @cached_property
    def integers(self) -> dict[str, int]:
        """Maps each feature that gives integers to the number of them in a row."""
        return {each.name: self.flow(each.name).high for each in self.features if each.output == "integers"}

    @cached_property
    def weights_of(self) -> dict[str, str]:
        """Maps each input of weights to the input of ids whose values it weighs, one weight for each value."""
        return {feature.weights: feature.inputs[0] for feature in self.features if feature.weights}

    @cached_property
    def dense_groups(self) -> dict[str, int]:
        """Maps each group to its width; the dense features of a group are concatenated in the order of the spec."""
        groups: dict[str, int] = {}
        for feature in self.features:
            if feature.output == "dense":
                groups[feature.group] = groups.get(feature.group, 0) + self.flow(feature.name).high
        return groups

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables in use, in the order of their first feature."""
        return tuple(dict.fromkeys(feature.table for feature in self.ids_features))

    @cached_property
    def mean_tables(self) -> dict[str, str]:
        """Maps each table that holds the mean of another one's rows to that one, in the order of their features."""
        return {mean_table(each.table): each.table for each in self.ids_features if MEAN in each.fallback}

    def lookup(self, name: str) -> LookupSpec:
        """Returns how the ids of a feature are looked up. Raises KeyError."""
        feature = self.feature(name)
        chain = tuple(
            LookupLevel("", mean_table(feature.table))
            if level == MEAN
            else LookupLevel(level, self.feature(level).table, self.flow(level).high > 1)
            for level in feature.fallback
        )
        return LookupSpec(name, feature.table, feature.pooling, feature.length, feature.absent_rows, chain)

    def parallel_levels(self, name: str) -> tuple[str, ...]:
        """Returns the levels of a feature's chain whose ids stand for its own one by one."""
        return tuple(level.feature for level in self.lookup(name).fallback if level.parallel)

    def wire_inputs(self) -> list[WireInput]:
        """Returns every tensor that a request may carry, companions included."""
        return [tensor for entry in self.inputs for tensor in entry.wire_inputs()]


def _check_unique(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two {what}s are called {name!r}")
        seen.add(name)


def _check_never_null(feature: Feature, inputs: Sequence[InputSpec]) -> None:
    """Raises ValueError unless every row has all of its integers: nothing is left out."""
    for entry in inputs:
        if entry.nulls != "error" and not any(isinstance(op, Fill | IsNull | Pad) for op in feature.transforms):
            raise ValueError(
                f"feature {feature.name!r} gives integers, but a null has none: say `nulls: error` of the input "
                f"{entry.name!r}, or fill nulls by a transform"
            )
    for op in feature.transforms:
        if isinstance(op, Vocabulary) and op.unknown == "absent":
            raise ValueError(
                f"feature {feature.name!r} gives integers, but an unknown value has none: give `unknown` an id"
            )


def _check_weights(inputs: Mapping[str, InputSpec], features: Sequence[Feature]) -> None:
    """Raises ValueError, naming the feature, unless every weights input goes with exactly one input of ids."""
    weighs: dict[str, str] = {}
    for feature in features:
        if not feature.weights:
            continue
        where = f"feature {feature.name!r}"
        if feature.weights not in inputs:
            raise ValueError(
                f"{where}: unknown weights input {feature.weights!r}{did_you_mean(feature.weights, inputs)}"
            )
        ids, weights = inputs[feature.inputs[0]], inputs[feature.weights]
        _check_pair(where, feature, ids, weights)
        if weighs.setdefault(weights.name, ids.name) != ids.name:
            raise ValueError(
                f"{where}: the input {weights.name!r} holds the weights of {weighs[weights.name]!r} already; an input "
                "of weights goes with one input of ids"
            )


def _check_pair(where: str, feature: Feature, ids: InputSpec, weights: InputSpec) -> None:
    if weights.dtype != "FP32":
        raise ValueError(f"{where}: the weights input {weights.name!r} is {weights.dtype}; weights are FP32")
    if len(feature.inputs) > 1 or any(isinstance(op, Cross | Fill | IsNull | Pad | Split) for op in feature.transforms):
        raise ValueError(
            f"{where}: cross, fill, is_null, pad and split make ids that have no weight; a weighted feature cannot use "
            "them"
        )
    if weights.kind != ids.kind or weights.width != ids.width or weights.max_length != ids.max_length:
        raise ValueError(
            f"{where}: the weights input {weights.name!r} must have the kind, width and max_length of {ids.name!r}, "
            "whose values it weighs"
        )
    if isinstance(weights.default, tuple):
        raise ValueError(f"{where}: a list of weights follows its list of ids, so {weights.name!r} has no default")
