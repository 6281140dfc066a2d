"""The training configuration: everything about a model, in one YAML file.

Nothing in the trainer knows a data set; columns, transforms, tables, label, model and optimizers are named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from storage.byte_sizes import ByteSize
from storage.data import DataOptions
from storage.data.streams.join_options import JoinOptions
from storage.errors import ConfigError
from storage.features.dtypes import ColumnType
from storage.features.feature import Feature, InputSpec
from storage.features.spec import FeatureSpec
from storage.features.strict_model import StrictModel, did_you_mean
from storage.paths import local_path
from storage.specs import RowType, check_model_name
from trainer.config_errors import parse_config
from trainer.config_templates import expand
from trainer.config_yaml import parse_yaml, read_yaml
from trainer.label_config import Label
from trainer.lowering import CombinedFeature, Lowered, lower
from trainer.model_config import ModelConfig
from trainer.optimizer_config import OptimizerConfig
from trainer.option_values import Wire, device_option
from trainer.table_config import AnyTableConfig, TablePart
from trainer.task_config import Targets, TaskConfig, check_tasks
from trainer.tracking_config import TrackingConfig


class EarlyStoppingConfig(StrictModel):
    """Ends a training after `patience` evaluations without a better one, and keeps the model of the best."""

    #: None for the first task.
    task: str | None = None
    #: One that the task measures; None for its log_loss, or else its first one.
    metric: str | None = None
    patience: int = Field(default=2, ge=1)
    #: A better one differs by more than this.
    min_delta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)


def watched_metric(config: EarlyStoppingConfig, tasks: Sequence[TaskConfig]) -> tuple[str, str]:
    """Returns the task and the metric that early stopping goes by. Raises ValueError when they are not measured."""
    where = "training.early_stopping"
    by_name = {task.name: task for task in tasks}
    task = tasks[0] if config.task is None else by_name.get(config.task)
    if task is None:
        raise ValueError(f"{where}.task: there is no task {config.task!r}{did_you_mean(str(config.task), by_name)}")
    usual = "log_loss" if "log_loss" in task.measured else next(iter(task.measured), "")
    metric = config.metric or usual
    if metric not in task.measured:
        raise ValueError(
            f"{where}.metric: the task {task.name!r} does not measure {metric!r}{did_you_mean(metric, task.measured)}"
        )
    if metric == "calibration":
        raise ValueError(f"{where}.metric: calibration is best at 1; choose calibration_error, or another metric")
    return task.name, metric


class TrainingConfig(StrictModel):
    """Length and order of training."""

    batch_size: int = Field(default=512, ge=1, le=1 << 20)
    epochs: int = Field(default=1, ge=1, le=100_000)
    shuffle: bool = True
    #: Rows held in memory to shuffle among.
    shuffle_rows: int = Field(default=262_144, ge=1)
    seed: int = Field(default=1, ge=0, lt=2**63)
    #: Threads of the dense part; 0 is all cores but one, which reads ahead.
    threads: int = Field(default=0, ge=0, le=1024)
    #: Threads that compute features ahead of the step; the batches and their order are the same for any number.
    feature_threads: int = Field(default=1, ge=1, le=64)
    #: What rows, their gradients and those of the dense weights are rounded to on their way between ranks.
    wire: Wire = "fp32"
    #: Epochs between evaluations; 0 for the last epoch only.
    eval_every: int = Field(default=1, ge=0)
    #: Steps between checkpoints; 0 for the end of each epoch only.
    checkpoint_every_steps: int = Field(default=0, ge=0)
    #: The column with the time of each row, in seconds if it holds numbers, by which tables evict after_seconds; None
    #: for the time at which it is trained on.
    time_column: str | None = None
    #: DRAM of all tables together, rows beyond it lie on SSD; None keeps every row in memory.
    dram_bytes: Annotated[ByteSize, Field(ge=1)] | None = None
    #: None trains all epochs and keeps the last model.
    early_stopping: EarlyStoppingConfig | None = None
    #: Where the dense part is computed: cpu, cuda (with several ranks, the GPU of each), cuda:N, or auto, a GPU if
    #: there is one. Tables are in host memory.
    device: str = "cpu"
    #: Of the products of the dense part; bf16 and fp16 as torch's autocast has it. Weights and rows are float32.
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    #: Whether torch compiles the dense part.
    compile: bool = False
    #: Of the ids with a row of features with a `fallback`, the share that reads it in training all the same.
    fallback_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    #: Memory of a GPU for the rows that training sees most, with their optimizer values; None keeps none there. Without
    #: effect on a processor.
    hbm_bytes: Annotated[ByteSize, Field(ge=1)] | None = None

    @field_validator("device")
    @classmethod
    def _names_a_device(cls, given: str) -> str:
        return device_option(given)

    @model_validator(mode="after")
    def _is_evaluated(self) -> TrainingConfig:
        if self.early_stopping is not None and self.eval_every == 0:
            raise ValueError("early_stopping needs evaluations on the way; give eval_every 1 or more")
        return self


class DriftConfig(StrictModel):
    """A rise of the loss since the last publish, on which a delta is published."""

    #: How much the mean loss has risen, as a share of what it was.
    rise: float = Field(default=0.05, gt=0.0, allow_inf_nan=False)
    #: Rows that a mean is taken over, but at least sixteen batches.
    rows: int = Field(default=20_000, ge=1)


class PublishConfig(StrictModel):
    """Content of a published version, when deltas are published, and what stays in the repository.

    After each `delta_every_*` of training, whichever comes first, what changed is published as a delta; 0 is off.
    """

    golden_requests: int = Field(default=256, ge=256, le=100_000)
    max_batch_size: int = Field(default=1024, ge=1, lt=2**31)
    #: Largest absolute difference of a golden score.
    tolerance: float = Field(default=1e-6, gt=0.0, lt=1.0)
    delta_every_steps: int = Field(default=0, ge=0)
    delta_every_rows: int = Field(default=0, ge=0)
    delta_every_seconds: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    #: A delta is published too when the loss has risen since the last one; None never.
    delta_on_drift: DriftConfig | None = None
    #: Each n-th delta of a version holds all changes since the version; 0 never.
    cumulative_every: int = Field(default=16, ge=0)
    #: A full version of the same content follows after this many deltas; 0 never.
    version_every_deltas: int = Field(default=256, ge=0)
    #: A full version follows when the bytes of the deltas exceed this share of the version's; 0 never.
    version_at_share: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    #: Each n-th delta holds all dense weights, the others what changed in them; 1 for all of them.
    full_weights_every: int = Field(default=8, ge=1, le=64)
    #: Deltas that stay in the repository, beside those that they need.
    keep_deltas: int = Field(default=32, ge=1)
    #: Versions that stay in the repository.
    keep_versions: int = Field(default=2, ge=1)
    #: Training can go back to at least this many of the newest snapshots.
    keep_states: int = Field(default=4, ge=1)
    #: Storage of a table's rows (fp32, fp16, bf16, int8), `default` for tables that are not named; training is in
    #: float32 all the same.
    row_types: dict[str, RowType] = Field(default_factory=dict)


class TrainingDataOptions(DataOptions):
    """Says how data is read, and which rows are trained on."""

    #: The share of the rows with label 0 that are trained on; the probabilities are corrected for it.
    negative_sampling: float = Field(default=1.0, gt=0.0, le=1.0)
    #: How events of a stream that is followed get their labels from others; None where labels are in the rows.
    join: JoinOptions | None = None


class TrainConfig(StrictModel):
    """The whole configuration file. Read it with `load_config`."""

    model_name: str
    #: The column of 0 and 1 of a model with one binary task; with other tasks, they are listed instead.
    label: Label | None = None
    tasks: tuple[TaskConfig, ...] = Field(default=(), max_length=256)
    #: The column by which rows count more or less.
    sample_weight: str | None = None
    inputs: tuple[InputSpec, ...] = Field(min_length=1)
    features: tuple[Feature, ...] = Field(min_length=1)
    tables: tuple[AnyTableConfig, ...] = ()
    model: ModelConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    publish: PublishConfig = PublishConfig()
    tracking: TrackingConfig | None = None
    #: How files of data are read.
    data: TrainingDataOptions = TrainingDataOptions()

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        try:
            check_model_name(self.model_name, field="model_name")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        try:
            spec = FeatureSpec(inputs=self.inputs, features=self.features)
        except ValidationError as error:
            raise ValueError(error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")) from None
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError(f"tables: a name stands twice in {names}")
        for feature in spec.ids_features:
            if feature.table not in names:
                raise ValueError(
                    f"feature {feature.name!r} looks up the table {feature.table!r}, which `tables` does not list"
                    f"{did_you_mean(feature.table, names)}"
                )
        for name in self.publish.row_types:
            parts = [part.rows.name for table in self.tables for part in table.parts()]
            if name not in (*names, *parts, "default"):
                raise ValueError(f"publish.row_types: there is no table {name!r}{did_you_mean(name, names)}")
        idle = sorted(set(names) - set(spec.table_names))
        if idle:
            raise ValueError(f"the table {idle[0]!r} is used by no feature; remove it")
        lower(spec, self.tables)
        check_tasks(self.label, self.tasks, self.model.type)
        if self.training.fallback_share and not any(feature.fallback for feature in self.features):
            raise ValueError("training.fallback_share: no feature has a `fallback`; leave it out, or give one a chain")
        if self.data.negative_sampling < 1.0 and [task.loss for task in self.targets.tasks] != ["binary_cross_entropy"]:
            raise ValueError(
                "data.negative_sampling: corrects the probability of one binary task; expected a model with one, of "
                "binary_cross_entropy alone"
            )
        if self.training.early_stopping is not None:
            watched_metric(self.training.early_stopping, self.targets.tasks)
        read = {entry.source for entry in self.inputs} | {self.training.time_column or self.inputs[0].source}
        read |= {*self.targets.numbers, *self.targets.texts, *self.targets.groups}
        if (join := self.data.join) is not None:
            if self.training.time_column is None:
                raise ValueError("data.join: joins by the times of events; set training.time_column")
            if join.label not in self.targets.numbers:
                near = did_you_mean(join.label, self.targets.numbers)
                raise ValueError(f"data.join.label: no task has {join.label!r} as its label of numbers{near}")
            read |= {*join.key, *([join.kind.column] if join.kind else [])}
        for key in ("types", "missing_columns"):
            for name in getattr(self.data, key):
                if name not in read:
                    raise ValueError(f"data.{key}: {name!r} is no column that is read{did_you_mean(name, read)}")
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy with other values, as pydantic does, and nothing of what was derived from the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in ("targets", "_lowered"):
            copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def targets(self) -> Targets:
        """The tasks that the model learns, from `label` or `tasks`."""
        return Targets.of(self.label, self.tasks, self.sample_weight)

    @cached_property
    def _lowered(self) -> Lowered:
        return lower(FeatureSpec(inputs=self.inputs, features=self.features), self.tables)

    @property
    def spec(self) -> FeatureSpec:
        """The feature spec that is published with a version: a combined feature is in it as its parts."""
        return self._lowered.spec

    @property
    def combined(self) -> tuple[CombinedFeature, ...]:
        """The features whose rows are made of those of several others of `spec`."""
        return self._lowered.combined

    @property
    def row_tables(self) -> tuple[TablePart, ...]:
        """The tables of rows, in the order of `tables`; some of these are made of several."""
        return tuple(part for table in self.tables for part in table.parts())

    @property
    def row_types(self) -> dict[str, RowType]:
        """`publish.row_types` for the tables of rows: what is said of a table holds for all that it is made of."""
        given = self.publish.row_types
        names = {part.rows.name: table.name for table in self.tables for part in table.parts()}
        found = {
            name: given[name] if name in given else given[of] for name, of in names.items() if {name, of} & set(given)
        }
        return {**found, **{name: given[name] for name in given if name == "default"}}

    @property
    def column_types(self) -> dict[str, ColumnType]:
        """Types of the training columns by input, where they are known."""
        return {entry.name: entry.column_type for entry in self.inputs if entry.column_type is not None}

    def with_column_types(self, column_types: Mapping[str, ColumnType]) -> TrainConfig:
        """Returns the configuration with column types added to the inputs that do not have one yet."""
        content = self.model_dump(mode="json")
        for entry in content["inputs"]:
            entry["column_type"] = entry["column_type"] or column_types.get(entry["name"])
        return parse_config(TrainConfig, content)


def load_config(path: Path | str) -> TrainConfig:
    """Reads a YAML file. Raises ConfigError naming the file, the dotted path and what to do."""
    path = local_path(path, "config")
    return parse_content(read_yaml(path), source=str(path))


def data_section(path: Path) -> dict[str, Any]:
    """Returns the section `data` of a YAML file; a whole configuration may have none. Raises ConfigError."""
    content = read_yaml(path)
    whole = isinstance(content, Mapping) and "model_name" in content
    found = content.get("data", {} if whole else None) if isinstance(content, Mapping) else None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: has no section `data:` with options of how files are read", field="data")
    return dict(found)


def parse_text(text: str, *, source: str = "config") -> TrainConfig:
    """Reads a configuration from YAML text. Raises ConfigError as `load_config` does."""
    return parse_content(parse_yaml(text, source), source=source)


def parse_content(content: object, *, source: str = "config") -> TrainConfig:
    """Reads a configuration from a mapping, which may have ranges of names. Raises ConfigError as `load_config`."""
    expanded, written = expand(content, source)
    return parse_config(TrainConfig, expanded, source=source, as_written=written.path)


def with_row_types(config: TrainConfig, row_types: Mapping[str, str]) -> TrainConfig:
    """Returns the configuration with other `publish.row_types`. Raises ConfigError for an unknown table or row type."""
    content = config.model_dump(mode="json")
    content["publish"]["row_types"] = dict(row_types)
    return parse_config(TrainConfig, content)


def with_tracking(config: TrainConfig, tracker: str | None) -> TrainConfig:
    """Returns the configuration with tracking by `tracker`, with the options that it has for it; None keeps its own."""
    if tracker is None or (config.tracking is not None and config.tracking.type == tracker):
        return config
    content = config.model_dump(mode="json")
    content["tracking"] = {"type": tracker}
    return parse_config(TrainConfig, content)


def with_device(config: TrainConfig, device: str | None) -> TrainConfig:
    """Returns the configuration with another device; None keeps its own. Raises ConfigError for no device."""
    if device is None:
        return config
    content = config.model_dump(mode="json")
    content["training"]["device"] = device
    return parse_config(TrainConfig, content)
