"""Reads an ONNX file: its nodes, and its constants without a copy of the large ones.

External data is mapped from files beside the model, never from elsewhere. Nothing in an ONNX file runs as code: it is
a protobuf message whose operators are looked up in a table of ours.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from storage.errors import InvalidInput, Unsupported

OPSETS = range(13, 26)
_DOMAINS = ("", "ai.onnx")
# The numbers of float32, float16 and bfloat16 in onnx.TensorProto: what is half precision is computed in float32.
_AS_FLOAT32 = (1, 10, 16)
_INSTALL = "reading ONNX needs the packages onnx and onnxruntime: pip install 'emberline[onnx]'"


@dataclass(frozen=True)
class OnnxNode:
    """One node of the graph."""

    operator: str
    #: Its name, or that of its first output where it has none.
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class OnnxInput:
    """An input that is no constant. shape: a number, the name of a dimension, or None for each."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class OnnxGraph:
    """A model's graph."""

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    #: Initializers and the values of Constant nodes; those in files beside the model are memory maps.
    constants: Mapping[str, np.ndarray]
    opset: int
    path: Path
    #: Whether some constants or inputs are float16 or bfloat16.
    has_halves: bool


def read_onnx(path: Path) -> OnnxGraph:
    """Reads a model. Raises InvalidInput for what is no ONNX model, Unsupported for an opset before 13."""
    try:
        import onnx
    except ImportError:
        raise Unsupported(_INSTALL) from None
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise InvalidInput(f"{path}: not an ONNX model ({error})", field=str(path)) from None
    if not model.graph.node or not model.graph.output:
        raise InvalidInput(f"{path}: not an ONNX model: it has no nodes or no outputs", field=str(path))
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    graph = model.graph
    opset = max((entry.version for entry in model.opset_import if entry.domain in _DOMAINS), default=0)
    if opset not in OPSETS:
        raise Unsupported(
            f"{path}: opset {opset}, expected {OPSETS.start} to {OPSETS.stop - 1}; export it again, or convert it with "
            "onnx.version_converter.convert_version(model, 17)"
        )
    if graph.sparse_initializer:
        raise Unsupported(f"{path}: sparse initializer {graph.sparse_initializer[0].values.name!r}; make it dense")
    constants = {entry.name: _constant(path, entry) for entry in graph.initializer}
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    has_halves = any(entry.data_type in halves for entry in graph.initializer)
    nodes: list[OnnxNode] = []
    for position, node in enumerate(graph.node):
        if not all(isinstance(text, str) for text in (node.op_type, node.domain, node.name, *node.input, *node.output)):
            raise InvalidInput(f"{path}: not an ONNX model: the name of node {position} is no text", field=str(path))
        _check_arguments(path, node, opset)
        attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        has_halves |= any(entry.HasField("t") and entry.t.data_type in halves for entry in node.attribute)
        has_halves |= node.op_type == "Cast" and attributes.get("to") in halves
        attributes = {name: _plain(path, value) for name, value in attributes.items()}
        if node.op_type == "Constant" and node.domain in _DOMAINS:
            constants[node.output[0]] = _of_constant(path, node.name, attributes)
            continue
        same = _same_constant(node, attributes, constants)
        if same is not None:
            constants[node.output[0]] = same
            continue
        operator = node.op_type if node.domain in _DOMAINS else f"{node.domain}.{node.op_type}"
        name = node.name or node.output[0] or f"node {position}"
        nodes.append(OnnxNode(operator, name, tuple(node.input), tuple(node.output), attributes))
    inputs = tuple(_input(path, entry) for entry in graph.input if entry.name not in constants)
    has_halves |= any(entry.dtype == np.float16 for entry in inputs)
    outputs = tuple(entry.name for entry in graph.output)
    return OnnxGraph(tuple(nodes), inputs, outputs, constants, opset, path, has_halves)


def _check_arguments(path: Path, node: Any, opset: int) -> None:
    """Raises InvalidInput for a node with another number of inputs or outputs than its operator has."""
    import onnx

    where = f"{path}: not an ONNX model: {node.op_type} {node.name!r}"
    if not any(node.output):
        raise InvalidInput(f"{where} has no output", field=str(path))
    if node.domain not in _DOMAINS:
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return  # it is named with all others that are not converted
    for what, given, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= given <= most:
            raise InvalidInput(f"{where} has {given} {what}, expected {least} to {most}", field=str(path))


def _same_constant(node: Any, attributes: Mapping[str, Any], constants: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the constant that a node hands on: by Identity, or by a Cast among types that are read as float32."""
    value = constants.get(node.input[0]) if len(node.input) == 1 and node.domain in _DOMAINS else None
    if value is None or node.op_type == "Identity":
        return value
    is_same = node.op_type == "Cast" and value.dtype == np.float32 and attributes.get("to") in _AS_FLOAT32
    return value if is_same else None


def _plain(path: Path, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_plain(path, each) for each in value]
    return _constant(path, value) if hasattr(value, "data_type") and hasattr(value, "dims") else value


def _of_constant(path: Path, name: str, attributes: Mapping[str, Any]) -> np.ndarray:
    for key, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32)):
        if key in attributes:
            return np.array(attributes[key], dtype)
    if "value_floats" in attributes:
        return np.array(attributes["value_floats"], np.float32)
    value = attributes.get("value")
    if not isinstance(value, np.ndarray):
        raise Unsupported(f"{path}: Constant {name!r} holds {sorted(attributes)}; numbers are read")
    return value


def _constant(path: Path, tensor: Any) -> np.ndarray:
    """Returns a tensor's values, widened to float32 from float16 and bfloat16."""
    import onnx

    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError):
        raise InvalidInput(
            f"{path}: {tensor.name!r} has the unknown type {tensor.data_type}", field=tensor.name
        ) from None
    if dtype.kind not in "fiub" and dtype.name != "bfloat16":
        raise Unsupported(f"{path}: the constant {tensor.name!r} is {dtype.name}; numbers are read")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        values = _external(path, tensor, dtype)
    else:
        try:
            values = onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{path}: {tensor.name!r} is damaged: {error}", field=tensor.name) from None
    return values.astype(np.float32) if dtype.name in ("float16", "bfloat16") else values


def _external(path: Path, tensor: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Maps a tensor's bytes in a file of the model's folder. Raises InvalidInput for a path that leaves it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    parts = PurePosixPath(location)
    file = path.parent / parts
    where = f"{path}: the external data of {tensor.name!r}"
    inside = location and "\\" not in location and not parts.is_absolute() and ".." not in parts.parts
    # Also where a symbolic link in the folder leads out of it.
    if not inside or not file.resolve().is_relative_to(path.parent.resolve()):
        raise InvalidInput(f"{where} lies at {location!r}; expected a file in the model's folder", field=tensor.name)
    shape = tuple(tensor.dims)
    if min(shape, default=0) < 0:
        raise InvalidInput(f"{path}: {tensor.name!r} has the shape {list(shape)}", field=tensor.name)
    expected = math.prod(shape) * dtype.itemsize
    try:
        start, length = int(entries.get("offset", "0")), int(entries.get("length", expected))
    except ValueError:
        raise InvalidInput(f"{where} has no number as its offset or length", field=tensor.name) from None
    size = file.stat().st_size if file.is_file() else -1
    if size < 0:
        raise InvalidInput(f"{where} is not there: {file}", field=tensor.name)
    if start < 0 or length != expected or start + length > size:
        raise InvalidInput(
            f"{where} is {length} bytes at {start} of {file.name}, which has {size}; its shape takes {expected}",
            field=tensor.name,
        )
    if expected == 0:
        return np.zeros(shape, dtype)
    # A private map: pages come from the file as they are read, and a write would never reach it.
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if start % dtype.itemsize:
        return np.frombuffer(mapped[start : start + length], dtype).reshape(shape)
    return np.frombuffer(mapped, dtype, expected // dtype.itemsize, start).reshape(shape)


def _input(path: Path, entry: Any) -> OnnxInput:
    import onnx

    tensor = entry.type.tensor_type
    if not entry.type.HasField("tensor_type"):
        raise Unsupported(f"{path}: the input {entry.name!r} is no tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        except (KeyError, TypeError):
            raise InvalidInput(
                f"{path}: the input {entry.name!r} has the unknown type {tensor.elem_type}", field=str(entry.name)
            ) from None
    if dtype.kind not in "fiub":
        raise Unsupported(
            f"{path}: the input {entry.name!r} is {dtype.name}; make numbers of it before the model, for which the "
            "feature engine has hashing and vocabularies"
        )
    shape = tuple(
        part.dim_value if part.HasField("dim_value") else (part.dim_param or None) for part in tensor.shape.dim
    )
    return OnnxInput(entry.name, dtype, shape)
