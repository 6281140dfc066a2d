"""Takes torch's ExportedProgram apart into the two things that are published: the graph's JSON and the named weights.

Everything that is not needed to compute is left out: stack traces and source paths, call trees, guards, sample inputs,
pickled anything. In-place operators are made functional first, because the weights are shared by all sessions.
"""

from __future__ import annotations

import inspect
import json
import operator
import re
import threading
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.checkpoint.document import GraphDocument, document_from, is_node_name
from storage.checkpoint.manifest import GraphInput, GraphOutput
from storage.checkpoint.operators import check_operator
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.traces import release_trace
from storage.errors import CheckpointError, ConfigError, UnsafeArtifact, Unsupported

if TYPE_CHECKING:
    import torch

# torch's exporter and deserializer keep global state while they work.
TORCH_LOCK = threading.Lock()
_DECOMPOSED_AT_MOST = 3
# The numbers of torch's ScalarType in the export schema.
SCALAR_TYPES = {"FP32": 7, "FP64": 8, "INT64": 5, "INT32": 4, "BOOL": 12}


@dataclass(frozen=True)
class PackedProgram:
    """The published parts of a program."""

    #: The graph's JSON.
    document: bytes
    weights: dict[str, np.ndarray]
    #: Safetensors names of weights whose numpy type does not say it.
    weight_dtypes: dict[str, str]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    torch_version: str


def pack_program(
    program: torch.export.ExportedProgram, inputs: Sequence[GraphInput], outputs: Sequence[GraphOutput]
) -> PackedProgram:
    """Takes a program apart for publication.

    inputs, outputs: in the order of the program's own user inputs and outputs. Raises ConfigError when they do not fit
    the program, Unsupported when the program uses an operator that would be refused on loading.
    """
    import torch

    program, document = document_of(program)
    bound = _bind_inputs(document, inputs)
    _check_outputs(document, outputs)
    weights, dtypes = _weights(program)
    return PackedProgram(
        canonical_json(document.to_json_value()), weights, dtypes, bound, tuple(outputs), str(torch.__version__)
    )


def document_of(
    program: torch.export.ExportedProgram,
) -> tuple[torch.export.ExportedProgram, GraphDocument]:
    """Returns the program with functional operators alone, and its graph as it is published. Raises UnsafeArtifact."""
    from torch._export.serde import serialize

    with TORCH_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Accepted operators stay whole (linear, einsum), others become what torch makes of them (gru, tensordot), and
        # in-place ones functional.
        program = program.run_decompositions({})
        for _ in range(_DECOMPOSED_AT_MOST):  # a part may be made of parts
            if parts := _decompositions(program):
                program = program.run_decompositions(parts)
        _drop_unused(program)
        _refuse_operators(program)
        serializer = serialize.ExportedProgramSerializer()
        # torch 2.11 and 2.12 have no option to leave out what is not published.
        known = inspect.signature(serializer.serialize).parameters
        leave_out = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")
        serialized = serializer.serialize(program, **{name: False for name in leave_out if name in known})
        release_trace(program.graph)
    return program, plain_document(json.loads(serialize._to_json_bytes(serialized.exported_program)))


def plain_document(content: dict[str, Any], *, also: Set[str] = frozenset()) -> GraphDocument:
    """Returns torch's JSON of a program, which it changes, as it is published. Raises UnsafeArtifact.

    also: as for operators.check_operator.
    """
    try:
        _strip(content)
        _rename(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnsafeArtifact(f"graph: not the JSON of an exported program ({error!r})") from None
    return document_from(content, also=also)


def _decompositions(program: torch.export.ExportedProgram) -> dict[Any, Any]:
    """Returns torch's functions of accepted operators for the operators of a program that are not accepted."""
    import torch

    refused = {
        node.target for node in program.graph.nodes if node.op == "call_function" and not _is_accepted(node.target)
    }
    known = dict(torch.export.default_decompositions()) if refused else {}
    known[torch.ops.aten.unsafe_split.Tensor] = torch.ops.aten.split.Tensor
    return {target: known[target] for target in refused if target in known}


def _is_accepted(target: Any) -> bool:
    if target is operator.getitem:
        return True
    try:
        check_operator(_target_name(target), where="graph")
    except UnsafeArtifact:
        return False
    return True


def _drop_unused(program: torch.export.ExportedProgram) -> None:
    """Leaves weights out that nothing reads, such as a parameter whose rows are a table."""
    signature, graph = program.graph_signature, program.graph
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    kept = []
    for spec, node in zip(signature.input_specs, holders, strict=True):
        if spec.target is not None and not node.users:
            graph.erase_node(node)
        else:
            kept.append(spec)
    signature.input_specs[:] = kept


def _refuse_operators(program: torch.export.ExportedProgram) -> None:
    """Raises Unsupported for an operator that no server accepts, naming the place in the module that uses it."""
    for node in program.graph.nodes:
        if node.op == "call_function" and not _is_accepted(node.target):
            raise Unsupported(
                f"the module uses the operator {str(node.target)[:120]!r}{_place(node)}, which published graphs may "
                "not use; write that part with accepted operators (docs/format.md says which they are)"
            )


def _target_name(target: Any) -> str:
    """Returns the name that the graph's JSON will have for a target."""
    if hasattr(target, "_schema"):
        return f"torch.ops.{target}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _place(node: Any) -> str:
    """Returns the submodule that a node comes from, and the line outside of torch."""
    text = ""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = str(path).rpartition("module.")[2]
        kind = kind if isinstance(kind, str) else kind.__name__
        text = f" in {name} ({kind.rpartition('.')[2]})" if "module." in str(path) else text
    lines = re.findall(r'File "([^"]+)", line ([0-9]+)', node.meta.get("stack_trace") or "")
    own = [f"{file}:{line}" for file, line in lines if "/torch/" not in file and "/trainer/publishing/" not in file]
    return f"{text} at {own[-1]}" if own else text


def weight_key(kind: str, name: str) -> str:
    """Returns a weight's name in dense.safetensors. kind: "state" or "constant"."""
    return f"{kind}.{name}"


def _strip(content: dict[str, Any]) -> None:
    module = content["graph_module"]
    for node in module["graph"]["nodes"]:
        node["metadata"] = {}
        # torch sets this for subgraph calls only; those are refused by their target.
        node["is_hop_single_tensor_return"] = None
    for meta in module["graph"]["tensor_values"].values():
        meta["requires_grad"] = False
    module.update(module_call_graph=[], metadata={}, treespec_namedtuple_fields={})
    content.update(guards_code=[], verifiers=["ATEN"])


def _rename(content: dict[str, Any]) -> None:
    # A user's forward() may call an input "device" or "input"; the loader refuses such names, so they are changed here.
    graph = content["graph_module"]["graph"]
    taken = {name for key in ("tensor_values", "sym_int_values", "sym_bool_values") for name in graph[key]}
    names: dict[str, str] = {}

    def renamed(name: str) -> str:
        if is_node_name(name):
            return name
        if name not in names:
            fresh = "v_" + re.sub(r"[^A-Za-z0-9_]", "_", name)[:200]
            while fresh in taken:
                fresh += "_"
            taken.add(fresh)
            names[name] = fresh
        return names[name]

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            for key, entry in value.items():
                if key == "as_name" or (key == "name" and isinstance(entry, str) and "arg" not in value):
                    value[key] = renamed(entry)
                else:
                    walk(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                walk(entry)
        return value

    walk(content["graph_module"])
    for key in ("tensor_values", "sym_int_values", "sym_bool_values"):
        graph[key] = {renamed(name): entry for name, entry in graph[key].items()}


def _user_inputs(document: GraphDocument) -> list[str]:
    specs = document.graph_module.signature.input_specs
    return [spec.user_input.arg.as_tensor.name for spec in specs if spec.user_input is not None]


def _bind_inputs(document: GraphDocument, inputs: Sequence[GraphInput]) -> tuple[GraphInput, ...]:
    placeholders = _user_inputs(document)
    if len(placeholders) != len(inputs):
        raise ConfigError(
            f"graph_inputs names {len(inputs)} inputs, the exported program takes {len(placeholders)}: {placeholders}",
            field="graph_inputs",
        )
    for entry, placeholder in zip(inputs, placeholders, strict=True):
        _check_tensor(document, placeholder, entry, f"graph input {entry.name!r}")
    return tuple(
        entry.model_copy(update={"placeholder": placeholder})
        for entry, placeholder in zip(inputs, placeholders, strict=True)
    )


def _check_outputs(document: GraphDocument, outputs: Sequence[GraphOutput]) -> None:
    names = [entry.as_tensor.name for entry in document.graph_module.graph.outputs]
    if len(names) != len(outputs):
        raise ConfigError(
            f"graph_outputs names {len(outputs)} outputs, the exported program gives {len(names)}",
            field="graph_outputs",
        )
    for entry, name in zip(outputs, names, strict=True):
        _check_tensor(document, name, entry, f"graph output {entry.name!r}")


def _check_tensor(document: GraphDocument, name: str, entry: GraphInput | GraphOutput, what: str) -> None:
    meta = document.graph_module.graph.tensor_values.get(name)
    if meta is None:
        raise CheckpointError(f"{what}: the program has no tensor {name!r}")
    if meta.dtype != SCALAR_TYPES[entry.dtype]:
        raise ConfigError(f"{what}: declared {entry.dtype}, the program has ScalarType {meta.dtype}", field=entry.name)
    sizes = [-1 if size.as_int is None else size.as_int for size in meta.sizes]
    if sizes != list(entry.shape):
        hint = "export with a dynamic batch" if sizes and sizes[0] != -1 else "-1 is the batch"
        raise ConfigError(f"{what}: declared {list(entry.shape)}, the program has {sizes}; {hint}", field=entry.name)


def _weights(program: torch.export.ExportedProgram) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    import torch

    weights: dict[str, np.ndarray] = {}
    dtypes: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        if spec.target is None:
            continue
        state = program.state_dict.get(spec.target)
        key = weight_key("constant" if state is None else "state", spec.target)
        tensor = program.constants[spec.target] if state is None else state
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise CheckpointError(f"weight {spec.target!r}: expected a dense tensor, got {type(tensor).__name__}")
        tensor = tensor.detach().to("cpu").contiguous()
        if tensor.dtype == torch.bfloat16:
            weights[key] = tensor.view(torch.int16).numpy().view(np.uint16)
            dtypes[key] = "BF16"
        else:
            weights[key] = tensor.numpy()
    return weights, dtypes
