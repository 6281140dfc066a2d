"""Reads a .pt2 file that torch.export.save wrote, without torch's own loader, which would read pickles in it.

The graph is JSON and passes the same closed set of types as that of a published version. Weights are plain bytes in an
archive whose members are stored, and are mapped from it.
"""

from __future__ import annotations

import mmap
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from storage.checkpoint.assembly import SCALAR_DTYPES, assemble
from storage.checkpoint.document import GraphDocument
from storage.checkpoint.operators import SYMBOLIC
from storage.checkpoint.program import plain_document
from storage.checkpoint.strict_json import parse_json
from storage.errors import CheckpointError, InvalidInput, UnsafeArtifact, Unsupported
from trainer.converting.aten_layers import CALL_EVAL, REPLACED, in_training, is_known, refuse

_MAX_JSON_BYTES = 256 << 20
# Of a member's header in a zip archive, before its name.
_HEADER_BYTES = 30


@dataclass(frozen=True)
class Pt2File:
    """A program and its weights."""

    graph: fx.Graph
    document: GraphDocument
    #: By the name of the graph's placeholder.
    weights: Mapping[str, tuple[str, Tensor]]
    #: Keys of the dictionary that the program returned, or None.
    output_names: tuple[str, ...] | None


def read_pt2(path: Path) -> Pt2File:
    """Reads a program. Raises InvalidInput for another file, UnsafeArtifact for one that holds pickled values,
    Unsupported naming all operators that are not converted.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidInput(f"{path}: not a file of torch.export.save ({error})", field=str(path)) from None


def _read(path: Path, archive: zipfile.ZipFile) -> Pt2File:
    members = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
    models = [name for name in members if name.startswith("models/") and name.endswith(".json")]
    if len(models) != 1:
        raise InvalidInput(f"{path}: it holds {len(models)} programs of torch.export, expected one", field=str(path))
    model = models[0].removeprefix("models/").removesuffix(".json")
    content = _json(path, archive, members[models[0]])
    if f"data/weights/{model}.pt" in members:
        raise UnsafeArtifact(f"{path}: its weights are a pickle, as older torch wrote them; load it and save it again")
    version = content.get("schema_version", {})
    if version.get("major") != 8:
        raise Unsupported(
            f"{path}: schema {version}, expected major version 8; load it with its torch and save it again"
        )
    _check_operators(path, content)
    _on_the_host(content)
    names = _output_names(content)
    try:
        document = plain_document(content, also=REPLACED)
        module = assemble(document, also=REPLACED)
    except CheckpointError as error:
        raise Unsupported(f"{path}: {error}") from None
    stored = {
        **_tensors(path, archive, members, "data/weights", f"{model}_weights_config.json"),
        **_tensors(path, archive, members, "data/constants", f"{model}_constants_config.json"),
    }
    weights: dict[str, tuple[str, Tensor]] = {}
    for spec in document.graph_module.signature.input_specs:
        entry = spec.parameter or spec.buffer or spec.tensor_constant
        if entry is None:
            continue
        name = next(value for key, value in entry.model_dump().items() if key.endswith("_name"))
        if name not in stored:
            raise InvalidInput(f"{path}: the weight {name!r} is not in the file", field=name)
        weights[entry.arg.name] = name, stored[name]
    return Pt2File(module.graph, document, weights, names)


def _json(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> dict[str, Any]:
    if member.file_size > _MAX_JSON_BYTES:
        raise UnsafeArtifact(f"{path}: {member.filename} has {member.file_size} bytes")
    if member.flag_bits & 1:
        raise InvalidInput(f"{path}: {member.filename} is encrypted", field=str(path))
    content = parse_json(archive.read(member), what=f"{path}: {member.filename}", max_bytes=_MAX_JSON_BYTES)
    if not isinstance(content, dict):
        raise InvalidInput(f"{path}: {member.filename} is no object", field=str(path))
    return content


def _check_operators(path: Path, content: Mapping[str, Any]) -> None:
    unknown: dict[str, list[str]] = defaultdict(list)
    training: list[str] = []
    try:
        for node in content["graph_module"]["graph"]["nodes"]:
            target = node["target"]
            name = target.removeprefix("torch.ops.aten.").partition(".")[0]
            if target not in SYMBOLIC and not (target.startswith("torch.ops.aten.") and is_known(name)):
                unknown[target].append(str(node.get("name") or "a node"))
            given = {entry["name"]: next(iter(entry["arg"].values()), None) for entry in node["inputs"]}
            if in_training(name, given):
                training.append(f"{name} ({_result(node)})")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path}: not the program of torch.export ({error!r})", field=str(path)) from None
    if unknown:
        refuse(path, unknown)
    if training:
        raise Unsupported(f"{path}: it was exported in training mode: {', '.join(training)}; {CALL_EVAL}")


def _result(node: Mapping[str, Any]) -> str:
    """Returns what a node's result is called, for a message."""
    outputs = node.get("outputs") or [{}]
    tensor = outputs[0].get("as_tensor") or {}
    return str(tensor.get("name") or node.get("name") or "a node")


def _on_the_host(value: Any) -> None:
    """Moves everything in a graph's JSON to the host, where it was exported on a GPU."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else []):
        if key in ("device", "as_device") and isinstance(entry, dict) and "type" in entry:
            value[key] = {"type": "cpu", "index": None}
        else:
            _on_the_host(entry)


def _output_names(content: Mapping[str, Any]) -> tuple[str, ...] | None:
    calls = content["graph_module"].get("module_call_graph") or [{}]
    text = (calls[0].get("signature") or {}).get("out_spec", "")
    try:
        spec = parse_json(text.encode(), what="out_spec", max_bytes=1 << 20)[1]
        if spec["type"] != "builtins.dict":
            return None
        keys = parse_json(spec["context"].encode(), what="out_spec", max_bytes=1 << 20)
        return tuple(keys) if all(isinstance(key, str) for key in keys) else None
    except (UnsafeArtifact, KeyError, IndexError, TypeError, AttributeError):
        return None


def _tensors(
    path: Path, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], folder: str, config: str
) -> dict[str, Tensor]:
    described = members.get(f"{folder}/{config}")
    if described is None:
        return {}
    found: dict[str, Tensor] = {}
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    for name, entry in _json(path, archive, described).get("config", {}).items():
        try:
            meta = entry["tensor_meta"]
            if entry["use_pickle"] or meta is None:
                raise UnsafeArtifact(
                    f"{path}: {name!r} is stored as a pickle, which could run code; export the module again with plain "
                    "tensors on the CPU"
                )
            member = members[f"{folder}/{entry['path_name']}"]
            size, stride = ([part["as_int"] for part in meta[key]] for key in ("sizes", "strides"))
            dtype, start = SCALAR_DTYPES[meta["dtype"]], meta["storage_offset"]["as_int"]
            found[name] = _mapped(whole, member, dtype).as_strided(size, stride, start)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"{path}: the weight {name!r} is damaged ({error!r})", field=name) from None
    return found


def _mapped(whole: mmap.mmap, member: zipfile.ZipInfo, dtype: torch.dtype) -> Tensor:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    header = whole[member.header_offset : member.header_offset + _HEADER_BYTES]
    extra = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start, size = member.header_offset + _HEADER_BYTES + extra, member.file_size
    if size == 0:
        return torch.empty(0, dtype=dtype)
    if start % dtype.itemsize:
        return torch.frombuffer(bytearray(whole[start : start + size]), dtype=dtype)
    return torch.frombuffer(whole, dtype=dtype, count=size // dtype.itemsize, offset=start)
