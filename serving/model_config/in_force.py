"""Reports the options that are in force, and where each comes from.

An entry is {"name", "value", "from"}: from is "default", the name of a file, an environment variable or a flag,
"program" for what the Python program gave that made the server, or "operator" for what was set while the server runs.
Nothing here is a secret: options name the files that hold some, and addresses with a user or a password are refused
where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.config import ServerConfig
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import ModelConfig
from serving.model_folders import CONFIG

DEFAULT, PROGRAM, OPERATOR = "default", "program", "operator"
# Fields of config.pbtxt that say how a model is served, beside `parameters`.
_FIELDS = (
    "max_batch_size",
    "version_policy",
    "instance_group",
    "dynamic_batching",
    "optimization",
    "model_warmup",
)


def server_settings(config: ServerConfig) -> list[dict[str, Any]]:
    """Returns the options of a server. Where an option is left out, its value is what the server does then."""
    fields = {name: field for name, field in ServerConfig.model_fields.items() if name != "origins"}
    values = {name: getattr(config, name) for name in fields}
    given = {name for name, field in fields.items() if values[name] != field.get_default(call_default_factory=True)}
    values["store"] = config.store_dir
    values["max_connections_per_address"] = config.connections_per_address
    if config.repository_url is not None:
        values["mirror_dir"] = config.model_repository
    origins = dict(config.origins)
    if "model_repository" in origins:
        origins["repository_url"] = origins["model_repository"]
    # Every flag and variable is named in `origins`.
    return [
        _entry(name, value, origins.get(name, PROGRAM if name in given else DEFAULT)) for name, value in values.items()
    ]


def model_settings(
    config: ModelConfig, *, sessions: int | None = None, dram_bytes: int | None = None
) -> list[dict[str, Any]]:
    """Returns the options of a model: fields of its config.pbtxt, and its parameters.

    sessions, dram_bytes: what an operator set instead, None for nothing.
    """
    entries = []
    for name in _FIELDS:
        given = [text for field, text in _lines(config.proto) if field == name]
        entries.append(_entry(name, ", ".join(given) or None, CONFIG if given else DEFAULT))
    entries.append(_entry("sessions", config.sessions, CONFIG if config.proto.instance_group else DEFAULT))
    if sessions is not None:
        entries[-1] = _entry("sessions", sessions, OPERATOR)
    for name in ModelOptions.model_fields:
        entry = _entry(name, getattr(config.options, name), CONFIG if name in config.proto.parameters else DEFAULT)
        if name == "dram_bytes" and dram_bytes is not None:
            entry = _entry(name, dram_bytes, OPERATOR)
        entries.append(entry)
    return entries


def _lines(proto: Any) -> list[tuple[str, str]]:
    """Returns the name and the content of each field that is set, in one line each."""
    found = []
    for descriptor, value in proto.ListFields():
        for each in value if descriptor.is_repeated and not isinstance(value, Mapping) else (value,):
            is_message = hasattr(each, "DESCRIPTOR")
            text = text_format.MessageToString(each, as_one_line=True) if is_message else str(each)
            found.append((descriptor.name, text or "{}"))
    return found


def _entry(name: str, value: Any, origin: str) -> dict[str, Any]:
    return {"name": name, "value": _plain(value), "from": origin}


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
