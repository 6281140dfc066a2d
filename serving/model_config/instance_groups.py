"""Reads `instance_group` of config.pbtxt: how many sessions there are, and where: on the processor, or on which
GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tritonclient.grpc import model_config_pb2

from serving.model_config.queue_settings import check_range, config_error, refuse_others
from storage.hbm.device import GpuInfo

logger = logging.getLogger("emberline.serving")

MAX_SESSIONS = 256
MAX_GPUS = 64
_FIELDS = ("name", "kind", "count", "gpus")
_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU")

# The place of a session: the number of a GPU, None for the processor.
Place = int | None


class VisibleGpus(Protocol):
    """The GPUs that this process sees, as far as a configuration depends on them."""

    @property
    def infos(self) -> Sequence[GpuInfo]:
        """The GPUs, each with its number."""

    @property
    def why_none(self) -> str:
        """The reason that there is none, or that the existing ones cannot be used; "" otherwise."""


@dataclass(frozen=True)
class InstanceGroup:
    """Sessions that are configured together."""

    kind: str = "KIND_AUTO"
    #: Number of sessions on each GPU, or on the processor.
    count: int = 1
    #: Numbers of the GPUs; empty for all of them.
    gpus: tuple[int, ...] = ()


def read_instance_groups(proto: Any) -> tuple[InstanceGroup, ...]:
    """Reads the groups; returns one of kind KIND_AUTO where none is given. Raises ConfigError naming the field."""
    groups: list[InstanceGroup] = []
    for index, group in enumerate(proto.instance_group):
        where = f"instance_group[{index}]"
        refuse_others(group, _FIELDS, f"{where}.")
        kind = model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind)
        if kind not in _KINDS:
            raise config_error(f"{where}.kind", f"is {kind}, expected one of {', '.join(_KINDS)}")
        check_range(f"{where}.count", group.count, 0, MAX_SESSIONS)
        for gpu in group.gpus:
            check_range(f"{where}.gpus", gpu, 0, MAX_GPUS - 1)
        if group.gpus and kind == "KIND_CPU":
            raise config_error(f"{where}.gpus", "are given, but the kind is KIND_CPU; remove them, or take KIND_GPU")
        groups.append(InstanceGroup(kind, group.count or 1, tuple(dict.fromkeys(group.gpus))))
    return tuple(groups) or (InstanceGroup(),)


def place_sessions(groups: Sequence[InstanceGroup], gpus: VisibleGpus | None) -> tuple[Place, ...]:
    """Returns the place of each session, group by group.

    As in Triton: `count` sessions on every GPU of a group, and KIND_AUTO takes the processor where the GPUs that it
    names, or all, are not there. Raises ConfigError where KIND_GPU cannot be had.
    """
    there = () if gpus is None or gpus.why_none else tuple(info.index for info in gpus.infos)
    why_none = "this server was started without GPUs" if gpus is None else gpus.why_none
    places: list[Place] = []
    for index, group in enumerate(groups):
        where = f"instance_group[{index}]"
        wanted = group.gpus or there
        absent = [gpu for gpu in wanted if gpu not in there]
        if group.kind == "KIND_CPU" or (group.kind == "KIND_AUTO" and (absent or not wanted)):
            if absent:
                logger.warning("%s.gpus: there is no GPU %d here: its sessions are on the processor", where, absent[0])
            places += [None] * group.count
            continue
        if not there:
            raise config_error(
                f"{where}.kind",
                f"is KIND_GPU, but no GPU can be used: {why_none}; KIND_AUTO would serve on the processor",
            )
        if absent:
            raise config_error(f"{where}.gpus", f"names GPU {absent[0]}; there are {', '.join(map(str, there))}")
        places += [gpu for gpu in wanted for _ in range(group.count)]
    check_range("instance_group.count", len(places), 1, MAX_SESSIONS)
    return tuple(places)


def share(places: Sequence[Place], count: int) -> list[Place]:
    """Returns places for `count` sessions, when there are fewer than configured: in the same proportions."""
    return [places[number % len(places)] for number in range(count)]
