"""Reads config.pbtxt, Triton's ModelConfig in text form, strictly: an unsupported field is refused, not ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from serving.model_config.buckets import GraphSettings, read_graph_settings
from serving.model_config.instance_groups import (
    InstanceGroup,
    Place,
    VisibleGpus,
    place_sessions,
    read_instance_groups,
)
from serving.model_config.options import ModelOptions
from serving.model_config.queue_settings import (
    MAX_BATCH_SIZE,
    QueueSettings,
    check_range,
    config_error,
    read_queue_settings,
    refuse_others,
)
from serving.model_folders import CONFIG
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature
from storage.errors import ConfigError, ReadError

MAX_CONFIG_BYTES = 1 << 20

# Hints for configurations of Triton's own backends.
_OTHERS = (
    "this server runs versions that emberline.publish or the trainer wrote, and no TensorFlow, ONNX, TensorRT or "
    "Python models: leave the line out, and publish the PyTorch module"
)
_KNOWN = ("name", "platform", "backend", "version_policy", "max_batch_size", "input", "output", "instance_group")
_KNOWN_FIELDS = (*_KNOWN, "dynamic_batching", "parameters", "metric_tags", "model_warmup", "optimization")
_TENSOR_FIELDS = ("name", "data_type", "dims", "optional")
_OUTPUT_FIELDS = ("name", "data_type", "dims", "label_filename")


@dataclass(frozen=True)
class ModelConfig:
    """A model's checked configuration."""

    name: str
    proto: Any
    #: 0: the version's own limit.
    max_batch_size: int
    queue: QueueSettings
    options: ModelOptions
    #: The model's folder.
    folder: Path = Path()
    #: Labels of the classes of outputs, where config.pbtxt names a file of them.
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Groups of sessions, as configured.
    groups: tuple[InstanceGroup, ...] = ()
    graphs: GraphSettings = field(default_factory=GraphSettings)
    #: Places of the sessions on this machine, as computed by `placed`.
    places: tuple[Place, ...] = (None,)

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return len(self.places)

    @property
    def may_use_processor(self) -> bool:
        """True if the processor does what a GPU cannot: `on_gpu_failure`, which defaults by the kinds of the groups."""
        choice = self.options.on_gpu_failure
        return choice == "cpu" or (choice is None and all(group.kind != "KIND_GPU" for group in self.groups))

    def placed(self, gpus: VisibleGpus | None) -> ModelConfig:
        """Returns the configuration with its sessions on this machine's GPUs.

        Raises ConfigError where KIND_GPU or their memory cannot be had.
        """
        places = place_sessions(self.groups, gpus)
        if self.options.hbm_bytes and all(place is None for place in places):
            raise config_error("parameters.hbm_bytes", "is memory of a GPU, and no session is on one; remove it")
        if self.options.hbm_placement == "shard" and all(place is None for place in places):
            raise config_error("parameters.hbm_placement", "is of rows on GPUs, and no session is on one; remove it")
        most = self.options.max_sessions
        if most is not None and most < len(places):
            raise config_error("parameters.max_sessions", f"is {most}, and instance_group has {len(places)} already")
        return replace(self, places=places)

    def choose_versions(self, found: Iterable[int]) -> list[int]:
        """The versions to serve out of those in the folder, by the version policy; the newest one by default."""
        ascending = sorted(found)
        choice = self.proto.version_policy.WhichOneof("policy_choice")
        if choice == "all":
            return ascending
        if choice == "specific":
            wanted = set(self.proto.version_policy.specific.versions)
            absent = wanted - set(ascending)
            if absent:
                raise ConfigError(
                    f"version_policy.specific: version {min(absent)} is not in the folder, which has {ascending}",
                    field="version_policy.specific",
                )
            return sorted(wanted)
        return ascending[-max(1, self.proto.version_policy.latest.num_versions) :]


def read_model_config(model_dir: Path) -> ModelConfig:
    """Reads and checks a model's config.pbtxt; without one, everything is at its default. Raises ConfigError."""
    proto = read_proto(model_dir)
    try:
        checked = check_model_config(model_dir.name, proto)
        return replace(checked, folder=model_dir, labels=_read_labels(proto, model_dir))
    except ConfigError as error:
        raise ConfigError(f"{model_dir / CONFIG}: {error}", field=error.field) from None


def read_proto(model_dir: Path) -> Any:
    """A model's config.pbtxt as a ModelConfig, an empty one where there is none. Raises ConfigError."""
    path = model_dir / CONFIG
    proto = model_config_pb2.ModelConfig()
    if path.exists():
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path}: over {MAX_CONFIG_BYTES} bytes", field=CONFIG)
        try:
            text_format.Parse(path.read_text(encoding="utf-8"), proto)
        except (text_format.ParseError, ValueError) as error:  # ValueError: no UTF-8, or an enum's number past its type
            raise ConfigError(f"{path}: {error}", field=CONFIG) from None
    return proto


def refuse_unknown(proto: Any, known: Iterable[str]) -> None:
    """Raises ConfigError for fields of a ModelConfig, its inputs and outputs that are set and not known."""
    refuse_others(proto, tuple(known), "")
    for index, tensor in enumerate(proto.input):
        refuse_others(tensor, _TENSOR_FIELDS, f"input[{index}].")
    for index, tensor in enumerate(proto.output):
        refuse_others(tensor, _OUTPUT_FIELDS, f"output[{index}].")


def check_model_config(name: str, proto: Any) -> ModelConfig:
    """Checks a parsed ModelConfig of the model in folder `name`. Raises ConfigError with the field's name."""
    if proto.backend == "identity":
        raise config_error("backend", "is 'identity' now, and was 'emberline'; restart the server")
    if proto.backend not in ("", "emberline"):
        raise config_error("backend", f"is {proto.backend!r}, expected 'emberline', 'identity' or nothing; {_OTHERS}")
    if proto.platform not in ("", "emberline"):
        raise config_error("platform", f"is {proto.platform!r}, expected 'emberline' or nothing; {_OTHERS}")
    refuse_unknown(proto, _KNOWN_FIELDS)
    if proto.name and proto.name != name:
        raise config_error("name", f"is {proto.name!r}, but the folder is called {name!r}")
    check_range("max_batch_size", proto.max_batch_size, 0, MAX_BATCH_SIZE)
    options = ModelOptions.parse({key: value.string_value for key, value in proto.parameters.items()})
    queue = read_queue_settings(proto, timeout_ms=options.timeout_ms, max_wait_ms=options.max_wait_ms)
    groups = read_instance_groups(proto)
    config = ModelConfig(
        name, proto, proto.max_batch_size, queue, options, groups=groups, graphs=read_graph_settings(proto)
    )
    if options.max_sessions is not None and options.pick != "least_loaded":
        raise config_error(
            "parameters.max_sessions",
            f"is for pick least_loaded, and pick is {options.pick}: there, each session has its own requests",
        )
    if (after := options.feedback_negative_after_s) is not None and after > options.feedback_keep_s:
        raise config_error(
            "parameters.feedback_negative_after_s",
            f"is {after:g}, and scores wait for labels for {options.feedback_keep_s:g} s (feedback_keep_s); expected "
            "no more",
        )
    # Without GPUs where the processor will do; `placed` decides again.
    return replace(config, places=(None,) * sum(group.count for group in groups))


def complete_model_config(config: ModelConfig, signature: ModelSignature) -> Any:
    """Returns the configuration as the server reports it: what the file left out is filled in from the version.

    Raises ConfigError when the file's inputs or outputs are not the version's own.
    """
    complete = model_config_pb2.ModelConfig()
    complete.CopyFrom(config.proto)
    complete.name = config.name
    complete.backend = "emberline"
    complete.max_batch_size = signature.max_batch_size
    if not complete.HasField("version_policy"):
        complete.version_policy.latest.num_versions = 1
    if not complete.instance_group:
        _add_groups(complete, config)
    if complete.input:
        _check_inputs(complete.input, signature)
    else:
        for entry in signature.inputs.values():
            complete.input.add(
                name=entry.name, data_type=_data_type(entry.dtype), dims=entry.dims, optional=entry.optional
            )
    if complete.output:
        _check_outputs(complete.output, signature)
    else:
        for output in signature.outputs:
            complete.output.add(name=output.name, data_type=_data_type(output.dtype), dims=output.dims or (1,))
    return complete


def _check_inputs(inputs: Any, signature: ModelSignature) -> None:
    listed = {tensor.name: tensor for tensor in inputs}
    for name, tensor in listed.items():
        entry = signature.inputs.get(name)
        if entry is None:
            raise config_error("input", f"{name!r} is no input of the version; it has {', '.join(signature.inputs)}")
        given = data_type_name(tensor.data_type)
        same = given == entry.dtype or (entry.role == "lengths" and given in ("INT32", "INT64"))
        if not same or tuple(tensor.dims) != entry.dims:
            raise config_error(
                "input",
                f"{name!r} is {given} {list(tensor.dims)}, but the version has {entry.dtype} {list(entry.dims)}",
            )
    for raw in signature.raw:
        if raw.name not in listed:
            raise config_error("input", f"the version's input {raw.name!r} is not listed; add it, or list no inputs")


def _check_outputs(outputs: Any, signature: ModelSignature) -> None:
    listed = {tensor.name: (data_type_name(tensor.data_type), tuple(tensor.dims)) for tensor in outputs}
    own = {output.name: (output.dtype, output.dims or (1,)) for output in signature.outputs}
    if listed != own:
        raise config_error("output", f"lists {listed}, but the version has {own}")


def _add_groups(complete: Any, config: ModelConfig) -> None:
    """Adds the groups that KIND_AUTO, by default, became on this machine."""
    gpus = sorted({place for place in config.places if place is not None})
    kind = "KIND_GPU" if gpus else "KIND_CPU"
    number = int(model_config_pb2.ModelInstanceGroup.Kind.Value(kind))
    count = config.sessions // (len(gpus) or 1)
    complete.instance_group.add(name=config.name, kind=number, count=count, gpus=gpus)


def _data_type(dtype: str) -> int:
    return int(model_config_pb2.DataType.Value(WIRE_TYPES[dtype].config))


def _read_labels(proto: Any, model_dir: Path) -> dict[str, tuple[str, ...]]:
    """Reads the lines of each output's label_filename, a file in the model's folder."""
    labels: dict[str, tuple[str, ...]] = {}
    for index, output in enumerate(proto.output):
        name = output.label_filename
        if not name:
            continue
        where = f"output[{index}].label_filename"
        if Path(name).name != name or name in (".", ".."):
            raise config_error(where, f"is {name[:100]!r}, expected the name of a file in the model's folder")
        path = model_dir / name
        try:
            if path.stat().st_size > MAX_CONFIG_BYTES:
                raise config_error(where, f"{name!r} has over {MAX_CONFIG_BYTES} bytes")
            lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            labels[output.name] = tuple(line.removesuffix("\r") for line in lines)
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
            raise config_error(where, f"{name!r}: {getattr(error, 'strerror', None) or error}") from None
        except OSError as error:
            raise ReadError(f"{path}: cannot be read now: {error.strerror}; try again") from error
    return labels


def data_type_name(data_type: int) -> str:
    """Returns the KServe name of a DataType of config.pbtxt; its number when there is no such type."""
    if data_type not in model_config_pb2.DataType.values():
        return str(data_type)
    name = str(model_config_pb2.DataType.Name(data_type))
    return "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
