"""Lets a request leave inputs out that the outputs which it asks for do not need: one tower of two, apart."""

from __future__ import annotations

from collections.abc import Mapping

from storage.checkpoint import DenseGraph, PublishedVersion
from storage.checkpoint.output_needs import inputs_of_outputs
from storage.features import Column, FeatureSpec


def needs_of_outputs(spec: FeatureSpec, graph: DenseGraph) -> dict[str, frozenset[str]]:
    """Returns for each output the raw inputs that it is computed from; empty where every output needs all of them."""
    raw = [_raw_inputs(spec, entry.source, entry.kind == "dense") for entry in graph.inputs]
    needs = {
        output.name: frozenset(name for number in numbers for name in raw[number])
        for output, numbers in zip(graph.outputs, inputs_of_outputs(graph), strict=True)
    }
    everything = {entry.name for entry in spec.inputs}
    return needs if any(each < everything for each in needs.values()) else {}


def stand_ins(published: PublishedVersion, needs: Mapping[str, frozenset[str]]) -> dict[str, Column]:
    """Returns a row for each input that some output does not need: that of a golden request, which any graph takes."""
    if not needs:
        return {}
    left_out = {entry.name for entry in published.spec.inputs} - frozenset.intersection(*needs.values())
    golden = published.golden().columns
    return {name: golden[name].slice(0, 1) for name in sorted(left_out) if name in golden}


def _raw_inputs(spec: FeatureSpec, source: str, is_group: bool) -> set[str]:
    features = [each for each in spec.features if (each.output == "dense" and each.group == source) == is_group]
    found: set[str] = set()
    for feature in features if is_group else [spec.feature(source)]:
        found |= {*feature.inputs, *([feature.weights] if feature.weights else [])}
        for level in feature.fallback:
            found |= set(spec.feature(level).inputs) if level in {each.name for each in spec.features} else set()
    return found
