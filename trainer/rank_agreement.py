"""Checks that the ranks of a training were given the same: ranks that differ would train apart, or wait for ever."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.ranks import Ranks

# Settings that say something of a machine.
_OF_MACHINES: Any = {
    "training": {"device", "dram_bytes", "threads", "feature_threads"},
    "data": {"read_threads", "column_threads"},
    "tracking": True,
}
_SHOWN = 80  # characters of a value
_FOLDER = "the newest checkpoint in the output folder"


def check_agreement(ranks: Ranks, config: TrainConfig, given: Mapping[str, object], newest: str) -> None:
    """Raises ConfigError, at all ranks, for the first thing that a rank was given other than the first rank.

    given: by its name, beside the configuration. newest: the commit that each sees as the newest one, "" for none.
    """
    if not ranks.are_several:
        return
    own: dict[str, object] = {"the release of Emberline": _release()}
    _flatten(config.model_dump(mode="json", exclude=_OF_MACHINES), "", own)
    own |= given
    own[_FOLDER] = newest or "none"
    of_all = ranks.gather((socket.gethostname(), {name: str(value) for name, value in own.items()}))
    (first_host, first), *others = of_all
    for rank, (host, facts) in enumerate(others, 1):
        for name in dict.fromkeys((*first, *facts)):
            one, other = first.get(name, "missing"), facts.get(name, "missing")
            if one == other:
                continue
            advice = "the output must be a folder that all ranks see" if name == _FOLDER else "give all ranks the same"
            raise ConfigError(
                f"{name} is {one[:_SHOWN]} at rank 0 ({first_host}) and {other[:_SHOWN]} at rank {rank} ({host}); "
                f"{advice}",
                field="output" if name == _FOLDER else name,
            )


def _flatten(value: Any, prefix: str, found: dict[str, object]) -> None:
    """Adds the leaves of a JSON value by their dotted paths; entries of lists go by their names."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _flatten(entry, f"{prefix}.{key}" if prefix else str(key), found)
    elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        for place, entry in enumerate(value):
            _flatten(entry, f"{prefix}.{entry.get('name', place)}", found)
    else:
        found[prefix] = value


def _release() -> str:
    try:
        return metadata.version("emberline")
    except metadata.PackageNotFoundError:
        return "a checkout"
