"""Writes the first config.pbtxt of a model when it has none; the file is never changed again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage.checkpoint.manifest import GraphOutput

if TYPE_CHECKING:
    from storage.features import FeatureSpec

CONFIG = "config.pbtxt"
_TYPES = {
    "INT64": "TYPE_INT64",
    "INT32": "TYPE_INT32",
    "UINT64": "TYPE_UINT64",
    "BYTES": "TYPE_STRING",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BOOL": "TYPE_BOOL",
}


def config_text(name: str, spec: FeatureSpec, outputs: Sequence[GraphOutput], max_batch_size: int) -> str:
    """Returns Triton's ModelConfig as text: raw inputs with their optional companions, outputs, one CPU session."""
    inputs = [_tensor(wire.name, _TYPES[wire.dtype], wire.dims, optional=wire.optional) for wire in spec.wire_inputs()]
    results = [_tensor(entry.name, _TYPES[entry.dtype], entry.shape[1:] or (1,)) for entry in outputs]
    return "\n".join(
        [
            f"name: {_quoted(name)}",
            'backend: "emberline"',
            f"max_batch_size: {max_batch_size}",
            f"input [\n{_joined(inputs)}\n]",
            f"output [\n{_joined(results)}\n]",
            "instance_group [\n  {\n    count: 1\n    kind: KIND_AUTO\n  }\n]",
            "dynamic_batching {\n}",
            "",
        ]
    )


def write_config_if_absent(model_dir: Path, text: str) -> bool:
    """Creates config.pbtxt atomically, or leaves an existing one; returns whether it was created."""
    target = model_dir / CONFIG
    if target.exists() or target.is_symlink():
        return False
    temporary = model_dir / f".{CONFIG}.{secrets.token_hex(8)}"
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)  # fails when another publisher was first, where a rename would overwrite
        except FileExistsError:
            return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _tensor(name: str, data_type: str, dims: Iterable[int], *, optional: bool = False) -> str:
    lines = [f"name: {_quoted(name)}", f"data_type: {data_type}", f"dims: [ {', '.join(map(str, dims))} ]"]
    if optional:
        lines.append("optional: true")
    body = "\n".join(f"    {line}" for line in lines)
    return f"  {{\n{body}\n  }}"


def _joined(parts: Sequence[str]) -> str:
    return ",\n".join(parts)


def _quoted(text: str) -> str:
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'
