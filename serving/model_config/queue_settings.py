"""Reads `dynamic_batching` of config.pbtxt: how requests share batches, wait by priority, and are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage.errors import ConfigError

DEFAULT_QUEUE_SIZE = 256
MAX_QUEUE_SIZE = 1 << 20
MAX_QUEUE_DELAY_US = 10_000_000
MAX_LEVELS = 64
MAX_BATCH_SIZE = 1 << 20

_BATCHING_FIELDS = (
    "preferred_batch_size",
    "max_queue_delay_microseconds",
    "default_queue_policy",
    "priority_levels",
    "default_priority_level",
    "priority_queue_policy",
)
_POLICY_FIELDS = (
    "timeout_action",
    "default_timeout_microseconds",
    "allow_timeout_override",
    "max_queue_size",
)


@dataclass(frozen=True)
class LevelSettings:
    """The queue of one priority level."""

    #: Requests that may wait in it.
    max_size: int = DEFAULT_QUEUE_SIZE
    #: Limit on the wait of a request, 0 for no limit.
    timeout_us: int = 0
    #: A request that has waited longer is not refused but goes behind those of its level that have not.
    delays: bool = False


@dataclass(frozen=True)
class QueueSettings:
    """The queue and the batcher of a model."""

    #: True if several requests may share a batch.
    merge: bool = False
    #: Batch sizes worth waiting for.
    preferred: tuple[int, ...] = ()
    #: Limit on that wait.
    delay_us: int = 0
    #: Levels by priority, the first before all others.
    levels: tuple[LevelSettings, ...] = (LevelSettings(),)
    #: Level of requests without a priority, counted from 1.
    default_level: int = 1
    #: A request that would wait longer, by estimate, is refused at once; 0 for no limit.
    max_wait_us: int = 0

    def level_of(self, priority: int) -> int:
        """Returns the index of a request's level. As in Triton, 0 and numbers over the last level mean the default."""
        level = priority if 1 <= priority <= len(self.levels) else self.default_level
        return level - 1

    @property
    def max_size(self) -> int:
        """Number of requests that may wait in all levels together."""
        return sum(level.max_size for level in self.levels)


def read_queue_settings(proto: Any, *, timeout_ms: float | None, max_wait_ms: float | None) -> QueueSettings:
    """Reads the settings of a ModelConfig and our own options. timeout_ms: bounds the wait in every level.

    Raises ConfigError.
    """
    timeout_us, max_wait_us = int((timeout_ms or 0) * 1000), int((max_wait_ms or 0) * 1000)
    if not proto.HasField("dynamic_batching"):
        return QueueSettings(levels=(LevelSettings(timeout_us=timeout_us),), max_wait_us=max_wait_us)
    batching = proto.dynamic_batching
    refuse_others(batching, _BATCHING_FIELDS, "dynamic_batching.")
    check_range(
        "dynamic_batching.max_queue_delay_microseconds", batching.max_queue_delay_microseconds, 0, MAX_QUEUE_DELAY_US
    )
    for size in batching.preferred_batch_size:
        check_range("dynamic_batching.preferred_batch_size", size, 1, proto.max_batch_size or MAX_BATCH_SIZE)
    levels, default_level = _levels(batching, timeout_us)
    return QueueSettings(
        merge=True,
        preferred=tuple(sorted(set(batching.preferred_batch_size))),
        delay_us=batching.max_queue_delay_microseconds,
        levels=levels,
        default_level=default_level,
        max_wait_us=max_wait_us,
    )


def _levels(batching: Any, timeout_us: int) -> tuple[tuple[LevelSettings, ...], int]:
    check_range("dynamic_batching.priority_levels", batching.priority_levels, 0, MAX_LEVELS)
    count = batching.priority_levels
    default = _level("dynamic_batching.default_queue_policy", batching.default_queue_policy, timeout_us)
    own = dict(batching.priority_queue_policy)
    for key in sorted(own):
        if not 1 <= key <= count:
            raise config_error(
                f"dynamic_batching.priority_queue_policy[{key}]",
                f"there is no such level: priority_levels is {count}",
            )
    if count == 0:
        if batching.default_priority_level:
            raise config_error(
                "dynamic_batching.default_priority_level",
                f"is {batching.default_priority_level}, but priority_levels is not given",
            )
        return (default,), 1
    # As in Triton, it must be given: there is no level that everyone would expect.
    check_range("dynamic_batching.default_priority_level", batching.default_priority_level, 1, count)
    levels = tuple(
        _level(f"dynamic_batching.priority_queue_policy[{key}]", own[key], timeout_us) if key in own else default
        for key in range(1, count + 1)
    )
    return levels, batching.default_priority_level


def _level(where: str, policy: Any, timeout_us: int) -> LevelSettings:
    refuse_others(policy, _POLICY_FIELDS, f"{where}.")
    check_range(f"{where}.max_queue_size", policy.max_queue_size, 0, MAX_QUEUE_SIZE)
    check_range(f"{where}.default_timeout_microseconds", policy.default_timeout_microseconds, 0, 2**62)
    return LevelSettings(
        max_size=policy.max_queue_size or DEFAULT_QUEUE_SIZE,
        timeout_us=min((t for t in (policy.default_timeout_microseconds, timeout_us) if t), default=0),
        delays=bool(policy.timeout_action),
    )


def refuse_others(message: Any, known: tuple[str, ...], prefix: str) -> None:
    """Raises ConfigError for a field that is set and not known."""
    for descriptor, _ in message.ListFields():
        if descriptor.name not in known:
            raise config_error(prefix + descriptor.name, "is not supported; remove it")


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raises ConfigError when a field is out of bounds."""
    if not low <= value <= high:
        raise config_error(field, f"is {value}, expected {low} to {high}")


def config_error(field: str, text: str) -> ConfigError:
    """A ConfigError of a field of config.pbtxt."""
    return ConfigError(f"{field}: {text}", field=field)
