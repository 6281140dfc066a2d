"""A TorchScript file as a module with embedding layers: its graph is interpreted, node by node.

torch.jit.load reads the file; nothing of it is run as TorchScript afterwards. Branches and loops that depend on shapes
and flags alone are followed while torch exports, as in Python.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.errors import InvalidInput, Unsupported
from trainer.converting.aten_layers import AtenLayers, is_known, refuse
from trainer.converting.converted import Converted, Original
from trainer.converting.script_values import OF_TENSORS, PYTHON, Owner

_MAX_STEPS = 100_000
# Triton's names for inputs of a TorchScript model, which say their place.
_NUMBERED = re.compile(r".+__([0-9]+)")


def convert_torchscript(path: Path, sample: Mapping[str, Tensor]) -> Converted:
    """Converts a file of torch.jit.save. sample: a batch by the names of the inputs of forward(), or by names that end
    in their numbers, as in INPUT__0.

    Raises Unsupported naming the operators that are not converted, InvalidInput for another file or sample.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch advises torch.export, which comes too late here
            script = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, LookupError) as error:  # torch raises any of them for a damaged file
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidInput(f"{path}: not a file of torch.jit.save ({reason})", field=str(path)) from None
    module = ScriptModule(path, script, tuple(sample))
    with module.adding(), torch.no_grad():
        module(dict(sample))
    return Converted(module, (), _original(script, module.places))


class ScriptModule(AtenLayers):
    """forward(batch) takes tensors by the names of the sample and returns what the file's forward() returns."""

    def __init__(self, path: Path, script: Any, given: Sequence[str]) -> None:
        super().__init__()
        self._path = path
        # A tuple, so that the file's module becomes no child of this one.
        self._script = (script,)
        self._graph = script.inlined_graph
        entries = [(entry.name, str(entry.type)) for entry in script.forward.schema.arguments[1:]]
        #: The name in a batch of each argument of forward().
        self.places = _places(path, entries, given)
        for name, value in [*script.named_parameters(), *script.named_buffers()]:
            self.add_weight(name, value)
        self._constants: dict[str, str] = {}
        for node in self._graph.findAllNodes("prim::Constant", recurse=True):
            output = node.output()
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                name = f"constant_{output.debugName()}"
                self._constants[output.debugName()] = name
                self.add_weight(name, node.t("value"))

    def forward(self, batch: dict[str, Tensor]) -> Any:
        inputs = list(self._graph.inputs())
        values: dict[str, Any] = {inputs[0].debugName(): Owner("", self._script[0])}
        for value, name in zip(inputs[1:], self.places, strict=True):
            values[value.debugName()] = dict(batch) if name is None else batch[name]
        with self.running():
            self._block(self._graph, values)
            outputs = [values[value.debugName()] for value in self._graph.outputs()]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _block(self, block: Any, values: dict[str, Any]) -> None:
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::If":
                self._if(node, values)
            elif kind == "prim::Loop":
                self._loop(node, values)
            else:
                outputs = [value.debugName() for value in node.outputs()]
                result = self._node(node, kind, [values[value.debugName()] for value in node.inputs()])
                values.update([(outputs[0], result)] if len(outputs) == 1 else zip(outputs, result or (), strict=False))

    def _if(self, node: Any, values: dict[str, Any]) -> None:
        condition = values[node.input().debugName()]
        if isinstance(condition, Tensor):
            raise Unsupported(f"{self._path}: a branch depends on the values of a request ({_where(node)})")
        block = list(node.blocks())[0 if condition else 1]
        self._block(block, values)
        results = [values[value.debugName()] for value in block.outputs()]
        values.update((value.debugName(), each) for value, each in zip(node.outputs(), results, strict=True))

    def _loop(self, node: Any, values: dict[str, Any]) -> None:
        count, going, *carried = [values[value.debugName()] for value in node.inputs()]
        block = next(iter(node.blocks()))
        counter, *inside = [value.debugName() for value in block.inputs()]
        step = 0
        while going and step < min(count, _MAX_STEPS):
            values.update({counter: step, **dict(zip(inside, carried, strict=True))})
            self._block(block, values)
            going, *carried = [values[value.debugName()] for value in block.outputs()]
            step += 1
        if going and step < count:
            raise Unsupported(f"{self._path}: a loop of more than {_MAX_STEPS:,} steps ({_where(node)})")
        values.update((value.debugName(), each) for value, each in zip(node.outputs(), carried, strict=True))

    def _node(self, node: Any, kind: str, inputs: list[Any]) -> Any:
        if kind == "prim::Constant":
            return self._constant(node)
        if kind == "prim::GetAttr":
            return self._attribute(inputs[0], node.s("name"))
        name = kind.partition("::")[2]
        has_tensor = any(isinstance(each, Tensor) for each in inputs)
        python = OF_TENSORS.get(kind)
        if python is None and not (has_tensor and kind.startswith("aten::")):
            python = PYTHON.get(kind)
        if python is not None:
            return python(node, *inputs)
        if not kind.startswith("aten::") or not is_known(name):
            self._refuse()
        schema = torch._C.parse_schema(node.schema())
        packet = getattr(torch.ops.aten, name)
        target = getattr(packet, schema.overload_name or "default")
        by_name = [entry.name for entry in target._schema.arguments if entry.kwarg_only]
        count = len(inputs) - len(by_name)
        return self.run(name, target, inputs[:count], dict(zip(by_name, inputs[count:], strict=True)))

    def _constant(self, node: Any) -> Any:
        stored = self._constants.get(node.output().debugName())
        return node.output().toIValue() if stored is None else self.weight(stored)

    def _attribute(self, owner: Owner, name: str) -> Any:
        path = f"{owner.path}.{name}".lstrip(".")
        value = getattr(owner.module, name)
        if isinstance(value, Tensor):
            return self.weight(path)
        return Owner(path, value) if isinstance(value, torch.jit.ScriptModule) else value

    def _refuse(self) -> None:
        """Raises the error that names every operator that is not converted, also those behind the first."""
        unknown: dict[str, list[str]] = defaultdict(list)
        blocks = [self._graph]
        while blocks:
            for node in blocks.pop().nodes():
                blocks.extend(node.blocks())
                kind = node.kind()
                is_plain = (
                    kind in PYTHON
                    or kind in OF_TENSORS
                    or kind in ("prim::Constant", "prim::GetAttr", "prim::If", "prim::Loop")
                )
                if not is_plain and not (kind.startswith("aten::") and is_known(kind.partition("::")[2])):
                    unknown[kind].append(_where(node))
        refuse(self._path, unknown)


def _where(node: Any) -> str:
    text = str(node.sourceRange()).strip().splitlines()
    return next((line.strip() for line in text if line.strip().startswith("File ")), "in forward()")


def _places(path: Path, entries: Sequence[tuple[str, str]], given: Sequence[str]) -> list[str | None]:
    """Returns for each argument of forward() its name in a batch; None for one that takes the whole batch."""
    if len(entries) == 1 and entries[0][1].startswith("Dict[str, Tensor]"):
        return [None]
    odd = [f"{name} ({kind})" for name, kind in entries if kind != "Tensor"]
    if odd:
        raise Unsupported(f"{path}: forward() takes {', '.join(odd)}; expected tensors, or one Dict[str, Tensor]")
    names = [name for name, _ in entries]
    if sorted(names) == sorted(given):
        return list(names)
    numbered = {int(match[1]): name for name in given if (match := _NUMBERED.fullmatch(name))}
    if sorted(numbered) == list(range(len(names))) and len(given) == len(names):
        return [numbered[place] for place in range(len(names))]
    raise InvalidInput(
        f"{path}: forward() takes {names}, the sample has {list(given)}; name its columns so, or by their place, such "
        f"as INPUT__0",
        field="sample",
    )


def _original(script: Any, places: Sequence[str | None]) -> Original:
    from trainer.publishing.dense_half import named_outputs

    def run(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        with torch.no_grad():
            found = script(*[tensors if name is None else tensors[name] for name in places])
        return {name: value.numpy() for name, value in named_outputs(found).items()}

    return run
