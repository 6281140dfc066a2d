"""The environment of a rank: torchrun, or `emberline train --nproc`, tells each process its place by it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ConfigError


@dataclass(frozen=True)
class RankPlace:
    """The place of a process among those that train together."""

    rank: int = 0
    #: Ranks in all.
    size: int = 1
    #: Ranks on this machine.
    local_size: int = 1
    #: How often all ranks were started again, because one ended.
    restarts: int = 0
    #: The number among those on this machine.
    local_rank: int = 0
    #: True when the store where ranks meet outlives them.
    keeps_store: bool = False
    #: A folder that the ranks of this machine share, new at each start; None: there is none.
    errors: Path | None = None


def rank_place() -> RankPlace:
    """Returns the place of this process, alone where nothing started it as a rank.

    Raises ConfigError when the environment says half of it.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return RankPlace()
    try:
        file = os.environ.get("TORCHELASTIC_ERROR_FILE")
        return RankPlace(
            int(os.environ["RANK"]),
            int(size),
            int(os.environ["LOCAL_WORLD_SIZE"]),
            int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            int(os.environ.get("LOCAL_RANK", "0")),
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            None if file is None else Path(file).parent.parent,
        )
    except (KeyError, ValueError) as error:
        raise incomplete(error) from None


def environment_of(place: RankPlace, port: int) -> dict[str, str]:
    """Returns the environment of a process of this machine at this place. port: that of the store where ranks meet.

    place: has a folder for errors.
    """
    assert place.errors is not None
    return {
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(place.errors / str(place.rank) / "error.json"),
    }


def incomplete(error: Exception) -> ConfigError:
    """Returns the error for an environment that lacks something of a rank."""
    return ConfigError(
        f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')!r}, but RANK, LOCAL_WORLD_SIZE, MASTER_ADDR or MASTER_PORT is "
        f"missing or is no number ({error}); start ranks with torchrun, or unset WORLD_SIZE",
        field="WORLD_SIZE",
    )


def is_rank() -> bool:
    """Returns whether this process was started as one of several ranks."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_first_rank() -> bool:
    """Returns whether this process is the first rank, or the only one."""
    return os.environ.get("RANK", "0") == "0"
