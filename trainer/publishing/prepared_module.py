"""A module prepared for publishing: planned on a sample, with its tables and its dense half.

B rows of the sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from storage.checkpoint import GraphOutput
from storage.errors import ConfigError, InvalidInput, Unsupported
from storage.features import Column, FeatureEngine, FeatureSpec
from trainer.data import to_inputs
from trainer.embedding import EmbeddingTable, refresh_means
from trainer.publishing.cut_plan import CutPlan, plan_with_spec
from trainer.publishing.dense_half import DenseHalf, graph_outputs, named_outputs
from trainer.publishing.derive_spec import plan_from_sample
from trainer.publishing.recording import Recording, record, running_on_sample
from trainer.publishing.row_order import check_row_order
from trainer.publishing.sample import Sample
from trainer.publishing.single_row import needs_more_rows
from trainer.publishing.weight_rows import WeightRows


@dataclass(frozen=True)
class PreparedModule:
    """A module planned on a sample, with all that writing a version needs."""

    plan: CutPlan
    half: DenseHalf
    outputs: tuple[GraphOutput, ...]
    #: The module's own outputs on the sample, as it was when this was made.
    wanted: Mapping[str, Tensor]
    #: The feature engine of plan.spec.
    engine: FeatureEngine

    @classmethod
    def of(
        cls, module: nn.Module, sample_batch: object, spec: FeatureSpec | None, user_inputs: Sequence[str] = ()
    ) -> PreparedModule:
        """Runs the module once on the sample, as `publish` takes it; the caller has put it in eval().

        Raises Unsupported, InvalidInput or ConfigError for a module or sample that cannot be cut.
        """
        container = nn.Module()
        container.add_module("module", module)
        container.training = False
        sample, plan = _planned(container, sample_batch, spec, user_inputs)
        with torch.no_grad():
            with running_on_sample():
                own = sample.call(module, {name: leaf.clone() for name, leaf in sample.leaves.items()})
            wanted = named_outputs(own)
            if plan.packs and len(next(iter(wanted.values()))) != plan.rows:
                raise Unsupported(
                    "the module uses a packed sequence otherwise than by a layer of torch over it (nn.GRU, nn.LSTM, "
                    "nn.RNN) and pad_packed_sequence; its data has a shape that depends on lengths"
                )
            described = graph_outputs(wanted)
            check_row_order(module, sample, wanted)
        repeats = needs_more_rows(module, sample, wanted)
        half = DenseHalf(container, sample, plan, list(wanted), repeats_a_row=repeats)
        return cls(plan, half, tuple(described), wanted, FeatureEngine(plan.spec))

    @property
    def tables(self) -> dict[str, EmbeddingTable]:
        """The tables of our own layers by name, in the order of the plan."""
        return {source.name: source.trained for source in self.plan.tables if source.trained is not None}

    @property
    def rows(self) -> dict[str, EmbeddingTable | WeightRows]:
        """The rows of all tables by name, as the layers have them now, in the order of the plan."""
        return {source.name: source.live for source in self.plan.tables}

    def refresh_means(self, *, all_rows: bool) -> None:
        """Computes the means of tables anew that features fall back to. all_rows: as for `trainer.embedding.means`."""
        means = self.plan.spec.mean_tables
        tables = self.tables
        of = {mean: tables[table] for mean, table in means.items()}
        refresh_means({mean: tables[mean] for mean in means}, of, all_rows=all_rows)

    def plain_layer(self) -> str | None:
        """Returns the table of a layer, or a parameter, whose rows lie in a weight, where changes are not tracked; None
        without one.
        """
        return next((source.name for source in self.plan.tables if source.trained is None), None)


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module that torch.compile, DataParallel or DistributedDataParallel wrap, or the module itself.

    What is around a module takes any arguments, and only the module itself says how they are called.
    """
    while True:
        inner = getattr(module, "_orig_mod", module)
        inner = inner.module if isinstance(inner, nn.DataParallel | DistributedDataParallel) else inner
        assert isinstance(inner, nn.Module)
        if inner is module:
            return module
        module = inner


def _planned(
    container: nn.Module, sample_batch: object, spec: FeatureSpec | None, user_inputs: Sequence[str]
) -> tuple[Sample, CutPlan]:
    module = container.get_submodule("module")
    if spec is None:
        sample = Sample.of(module, sample_batch)
        recording = record(container, sample.leaves, lambda: sample.call(module, sample.leaves))
        rows = _batch_rows(recording)
        return sample, plan_from_sample(recording, sample.leaves, rows, user_inputs)
    if user_inputs:
        raise ConfigError("with a spec, `side: user` of its inputs says which are the user's", field="user_inputs")
    columns = _columns_of(sample_batch, spec)
    rows = max(column.rows for column in columns.values())
    sample = Sample.of(module, to_inputs(FeatureEngine(spec).run(columns, rows)))
    recording = record(container, sample.leaves, lambda: sample.call(module, sample.leaves))
    if _batch_rows(recording) != rows:
        raise Unsupported(f"the module gives {_batch_rows(recording)} rows for {rows} rows of the sample")
    return sample, plan_with_spec(spec, columns, rows, recording, sample.leaves)


def _columns_of(sample_batch: object, spec: FeatureSpec) -> dict[str, Column]:
    wrong = "with a spec, sample_batch is a mapping of input names to storage.features.Column"
    if not isinstance(sample_batch, Mapping):
        raise InvalidInput(f"{wrong}; got {type(sample_batch).__name__}")
    columns: dict[str, Column] = {}
    for entry in spec.inputs:
        column = sample_batch.get(entry.name)
        if not isinstance(column, Column):
            raise InvalidInput(f"{wrong}; {entry.name!r} is {type(column).__name__}", field=entry.name)
        columns[entry.name] = column
    return columns


def _batch_rows(recording: Recording) -> int:
    first = next(iter(named_outputs(recording.outputs).values()))
    rows = first.shape[0] if first.dim() else 0
    if rows < 2:
        raise InvalidInput(
            f"the module's first output has {rows} rows; give a sample of two rows or more, so that the batch shows"
        )
    return int(rows)
