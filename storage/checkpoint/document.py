"""Describes the graph's JSON as a closed set of types: anything not described here does not reach torch.

It is the part of torch's export schema (major version 8) that a dense graph of pure aten operators needs. Subgraphs,
custom objects, operators as arguments, call trees, guards and metadata do not exist in it. torch gets text that is
rebuilt from these types, never the file's own text.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Set
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from storage.checkpoint.expressions import SYMBOL_PATTERN, check_expression
from storage.checkpoint.operators import SYMBOLIC, check_operator
from storage.checkpoint.strict_json import parse_json
from storage.errors import UnsafeArtifact

SCHEMA_MAJOR = 8
MAX_NODES = 100_000
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# Names that the code which torch generates from a graph uses itself.
RESERVED_NAMES = frozenset({"torch", "device", "inf", "nan", "self", "fx_pytree", "pytree", "NoneType", "math"})


def is_node_name(name: str) -> bool:
    """Returns whether a name may stand as a variable in the code that torch generates."""
    return (
        _IDENTIFIER.fullmatch(name) is not None
        and not keyword.iskeyword(name)
        and not hasattr(builtins, name)
        and not name.startswith("__")
        and name not in RESERVED_NAMES
    )


def _node_name(name: str) -> str:
    if not is_node_name(name):
        raise UnsafeArtifact(f"graph: {name[:80]!r} is not a plain name of a value; the graph was not loaded")
    return name


def _expression(text: str) -> str:
    check_expression(text, where="graph: expr_str")
    return text


def _target(target: str, info: ValidationInfo) -> str:
    check_operator(target, where="graph", also=info.context or frozenset())
    return target


NodeName = Annotated[str, AfterValidator(_node_name)]
WeightName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,512}$")]
Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Float = float | Literal["Infinity", "-Infinity", "NaN"]
# Strings are options of operators ("tanh" of gelu) and equations of einsum.
Text = Annotated[str, Field(pattern=r"^[A-Za-z0-9_,.\-> ]{0,256}$")]
ScalarType = Literal[1, 2, 3, 4, 5, 6, 7, 8, 12, 13]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _OneOf(_Part):
    """A tagged union, as torch writes it: an object with one key."""

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) != 1:
            raise ValueError(f"expected an object with one key, got {sorted(value)[:4]}")
        if isinstance(value, dict) and None in value.values():
            raise ValueError(f"the key {next(iter(value))!r} has no value")
        return value


class TensorName(_Part):
    name: NodeName


class SymName(_OneOf):
    as_name: NodeName | None = None
    as_int: Int | None = None


class SymBoolName(_OneOf):
    as_name: NodeName | None = None
    as_bool: bool | None = None


class OptionalTensor(_OneOf):
    as_tensor: TensorName | None = None
    as_none: Literal[True] | None = None


class Device(_Part):
    type: Literal["cpu"]
    index: Literal[0] | None = None


class Argument(_OneOf):
    as_none: Literal[True] | None = None
    as_tensor: TensorName | None = None
    as_tensors: list[TensorName] | None = None
    as_int: Int | None = None
    as_ints: list[Int] | None = None
    as_float: Float | None = None
    as_floats: list[Float] | None = None
    as_string: Text | None = None
    as_sym_int: SymName | None = None
    as_sym_ints: list[SymName] | None = None
    as_scalar_type: ScalarType | None = None
    as_memory_format: Literal[1, 4] | None = None
    as_layout: Literal[7] | None = None
    as_device: Device | None = None
    as_bool: bool | None = None
    as_bools: list[bool] | None = None
    as_sym_bool: SymBoolName | None = None
    as_optional_tensors: list[OptionalTensor] | None = None


class TensorArgument(_OneOf):
    as_tensor: TensorName


class NamedArgument(_Part):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{0,64}$")]
    arg: Argument
    kind: Literal[0, 1, 2] | None = None


class Node(_Part):
    target: Annotated[str, AfterValidator(_target)]
    inputs: list[NamedArgument]
    outputs: list[Argument]
    metadata: dict[str, str] = Field(default_factory=dict, max_length=0)
    is_hop_single_tensor_return: None = None
    name: NodeName | None = None


class Hint(_OneOf):
    as_int: Int | None = None
    as_bool: bool | None = None


class SymExpr(_Part):
    expr_str: Annotated[str, AfterValidator(_expression)]
    hint: Hint | None = None


class SymInt(_OneOf):
    as_expr: SymExpr | None = None
    as_int: Int | None = None


class SymBool(_OneOf):
    as_expr: SymExpr | None = None
    as_bool: bool | None = None


class TensorMeta(_Part):
    dtype: ScalarType
    sizes: Annotated[list[SymInt], Field(max_length=16)]
    requires_grad: Literal[False]
    device: Device
    strides: Annotated[list[SymInt], Field(max_length=16)]
    storage_offset: SymInt
    layout: Literal[7]


class Graph(_Part):
    inputs: list[TensorArgument]
    outputs: list[TensorArgument]
    nodes: Annotated[list[Node], Field(max_length=MAX_NODES)]
    tensor_values: dict[NodeName, TensorMeta]
    sym_int_values: dict[NodeName, SymInt]
    sym_bool_values: dict[NodeName, SymBool]
    is_single_tensor_return: Literal[False] = False
    custom_obj_values: dict[str, str] = Field(default_factory=dict, max_length=0)
    sym_float_values: dict[str, str] = Field(default_factory=dict, max_length=0)


class UserInput(_Part):
    arg: TensorArgument


class Parameter(_Part):
    arg: TensorName
    parameter_name: WeightName


class Buffer(_Part):
    arg: TensorName
    buffer_name: WeightName
    persistent: bool


class TensorConstant(_Part):
    arg: TensorName
    tensor_constant_name: WeightName


class InputSpec(_OneOf):
    user_input: UserInput | None = None
    parameter: Parameter | None = None
    buffer: Buffer | None = None
    tensor_constant: TensorConstant | None = None


class UserOutput(_Part):
    arg: TensorArgument


class OutputSpec(_OneOf):
    user_output: UserOutput


class Signature(_Part):
    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]


class GraphModule(_Part):
    graph: Graph
    signature: Signature
    module_call_graph: list[str] = Field(max_length=0)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=0)
    treespec_namedtuple_fields: dict[str, str] = Field(default_factory=dict, max_length=0)


class RangeConstraint(_Part):
    min_val: Int | None
    max_val: Int | None


class SchemaVersion(_Part):
    major: Literal[8]
    minor: Annotated[int, Field(ge=0, lt=1000)]


class GraphDocument(_Part):
    """The whole of a dense graph's JSON."""

    graph_module: GraphModule
    opset_version: dict[Literal["aten"], Annotated[int, Field(ge=0, lt=10_000)]]
    range_constraints: dict[Annotated[str, Field(pattern=f"^{SYMBOL_PATTERN}$")], RangeConstraint]
    schema_version: SchemaVersion
    verifiers: list[Literal["ATEN"]] = Field(max_length=1)
    torch_version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+]{1,64}$")]
    guards_code: list[str] = Field(max_length=0)

    @model_validator(mode="after")
    def _signature_matches(self) -> GraphDocument:
        inputs = [entry.as_tensor.name for entry in self.graph_module.graph.inputs]
        outputs = [entry.as_tensor.name for entry in self.graph_module.graph.outputs]
        if inputs != [placeholder_of(spec) for spec in self.graph_module.signature.input_specs]:
            raise ValueError("the signature's inputs are not the graph's")
        if outputs != [spec.user_output.arg.as_tensor.name for spec in self.graph_module.signature.output_specs]:
            raise ValueError("the signature's outputs are not the graph's")
        if len(set(inputs)) != len(inputs):
            raise ValueError("two inputs have one name")
        return self

    def computation(self) -> list[object]:
        """Returns what the graph computes with its weights, equal for the same steps.

        The names of values and the sizes of the batch that it was traced with are not in it.
        """
        signature, places = self.graph_module.signature, dict[str, int]()
        steps: list[object] = [_placed(signature.input_specs, places)]
        for node in self.graph_module.graph.nodes:
            inputs = [(entry.name, _placed(entry.arg, places)) for entry in node.inputs]
            steps.append((node.target, inputs, _placed(node.outputs, places)))
        return [*steps, _placed(signature.output_specs, places)]

    def targets(self) -> set[str]:
        """The aten operators in use."""
        return {node.target for node in self.graph_module.graph.nodes} - SYMBOLIC

    def to_json_value(self) -> dict[str, Any]:
        """Returns the document as torch's own reader expects it: unions with their one key."""
        value: dict[str, Any] = self.model_dump(mode="python", exclude_unset=True)
        return value


def _placed(value: object, places: dict[str, int]) -> object:
    """Returns parts with the names of values replaced by numbers, in the order in which they come."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="python", exclude_unset=True)
    if isinstance(value, dict):
        return {
            key: places.setdefault(inner, len(places)) if key in ("name", "as_name") else _placed(inner, places)
            for key, inner in value.items()
        }
    return [_placed(inner, places) for inner in value] if isinstance(value, list) else value


def placeholder_of(spec: InputSpec) -> str:
    """Returns the graph's name of an input."""
    if spec.user_input is not None:
        return spec.user_input.arg.as_tensor.name
    weight = spec.parameter or spec.buffer or spec.tensor_constant
    if weight is None:
        raise ValueError("an input has no value")
    return weight.arg.name


def parse_document(data: bytes, *, max_bytes: int) -> GraphDocument:
    """Reads a graph's JSON. Raises UnsafeArtifact naming the place that is not allowed, before torch has seen it."""
    content = parse_json(data, what="graph", max_bytes=max_bytes)
    return document_from(content)


def document_from(content: Any, *, also: Set[str] = frozenset()) -> GraphDocument:
    """Checks a parsed graph. Raises UnsafeArtifact. also: as for operators.check_operator."""
    try:
        return GraphDocument.model_validate(content, context=also)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnsafeArtifact(f"graph: {where}: {first['msg']}") from None
