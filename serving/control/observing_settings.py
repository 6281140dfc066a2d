"""Answers Triton's calls for trace and log settings: what is in force, and what of it can be changed while it serves.

Requests are traced where the server was started with a collector (`--trace-otlp`): then `trace_level` turns traces on
and off, and `trace_rate` says of how many requests one is traced. Of the log the levels can be changed, for all loggers
or for one. Changes hold until the server's process ends. A change that asks for the present setting is answered as
Triton answers it, and one that is not possible is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from serving.observing.logs import LEVELS, ROOT, is_known, logger_named, set_levels
from serving.observing.observation import Observation, Sampling
from storage.errors import InvalidInput, Unsupported

_OFF, _ON = "OFF", "TIMESTAMPS"
_MOST_RATE = 1_000_000_000
# The key of the level of one logger.
_LEVEL = "log_level."
_INHERITED = "default"
_FLAGS = {"log_error": logging.ERROR, "log_warning": logging.WARNING, "log_info": logging.INFO}
_VERBOSE = "log_verbose_level"


def trace_settings(observation: Observation) -> dict[str, str | list[str]]:
    """Returns the trace settings by Triton's names."""
    sampling = observation.sampling
    return {
        "trace_file": "",
        "trace_level": [_ON if sampling.is_on else _OFF],
        "trace_rate": str(_rate(sampling.share)),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_mode": "opentelemetry",
    }


def change_traces(observation: Observation, wanted: Mapping[str, Any], *, of_model: bool) -> None:
    """Changes trace settings. of_model: the call is about one model.

    Raises InvalidInput for an unknown setting or value, Unsupported for one that cannot be changed.
    """
    said = trace_settings(observation)
    sampling = observation.sampling
    is_on, share = sampling.is_on, sampling.share
    for key, value in wanted.items():
        present = _known(key, said, "trace")
        if value is None or value == []:  # asks for the default
            default = observation.configured_sampling
            is_on = default.is_on if key == "trace_level" else is_on
            share = default.share if key == "trace_rate" else share
            continue
        given = [str(each) for each in value] if isinstance(value, list) else [str(value)]
        if key == "trace_level":
            is_on = _is_on(given)
        elif key == "trace_rate":
            rate = _checked_rate(given)
            share = share if rate == _rate(share) else _share(rate)
        elif given != (present if isinstance(present, list) else [present]):
            raise Unsupported(f"{key} stays {present!r}: traces are sent by OTLP to where --trace-otlp says")
    if (is_on, share) == (sampling.is_on, sampling.share):
        return
    if of_model:
        raise Unsupported("trace settings are those of the whole server: leave out the model")
    if not observation.can_trace:
        raise Unsupported("this server takes no traces, since it was started without --trace-otlp")
    observation.trace(Sampling(is_on, share))


def log_settings(log_format: str) -> dict[str, str | bool | int]:
    """Returns the log settings by Triton's names, and the level of each logger that has one of its own."""
    level = logging.getLogger().getEffectiveLevel()
    said: dict[str, str | bool | int] = {"log_file": ""}
    said |= {key: level <= least for key, least in reversed(_FLAGS.items())}
    said |= {_VERBOSE: int(level <= logging.DEBUG), "log_format": "json" if log_format == "json" else "default"}
    return said | {f"{_LEVEL}{name}": own for name, own in set_levels().items()}


def change_log(log_format: str, wanted: Mapping[str, Any]) -> None:
    """Changes levels of the log. Raises InvalidInput for an unknown setting, Unsupported for one that cannot change."""
    said = log_settings(log_format)
    levels: dict[str, int] = {}
    flags = {key: said[key] for key in (*_FLAGS, _VERBOSE)}
    for key, value in wanted.items():
        if key.startswith(_LEVEL):
            levels[key.removeprefix(_LEVEL)] = _level(key, value)
            continue
        present = _known(key, said, "log")
        if type(value) is not type(present):
            raise InvalidInput(f"{key!r} is of the type of {present!r}, got {str(value)[:40]!r}", field=key[:100])
        if key in flags:
            flags[key] = value
        elif value != present:
            raise Unsupported(f"{key} stays {present!r}: it is set when the server is started")
    if any(flags[key] != said[key] for key in flags):
        levels.setdefault(ROOT, _level_of_flags(flags))
    for name, level in levels.items():
        logger_named(name).setLevel(level)


def _level_of_flags(flags: Mapping[str, Any]) -> int:
    """Returns the level that logs what the flags say. Each severity includes those above it."""
    if flags[_VERBOSE] > 0:
        return logging.DEBUG
    is_on = [bool(flags[key]) for key in _FLAGS]  # the most severe one first
    if is_on != sorted(is_on, reverse=True):
        raise Unsupported("a severity is logged with all above it: log_info with log_warning and log_error")
    return [logging.CRITICAL, *_FLAGS.values()][sum(is_on)]


def _level(key: str, value: Any) -> int:
    name = key.removeprefix(_LEVEL)
    if not is_known(name):
        raise InvalidInput(f"{key[:120]!r}: there is no logger of this name", field=key[:100])
    if value == _INHERITED and name != ROOT:
        return logging.NOTSET
    if not isinstance(value, str) or value not in LEVELS:
        known = ", ".join(LEVELS) + ("" if name == ROOT else f", or {_INHERITED} for that of the logger above")
        raise InvalidInput(f"{key[:120]!r}: expected {known}, got {str(value)[:40]!r}", field=key[:100])
    return LEVELS[value]


def _is_on(levels: list[str]) -> bool:
    if levels not in ([_OFF], [_ON]):
        raise Unsupported(f"trace_level: expected {_OFF} or {_ON}; contents of tensors are not traced")
    return levels == [_ON]


def _checked_rate(given: list[str]) -> int:
    text = given[0] if len(given) == 1 else ""
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > _MOST_RATE:
        raise InvalidInput(
            f"trace_rate: expected a whole number up to {_MOST_RATE}, got {text[:40]!r}", field="trace_rate"
        )
    return int(text)


def _rate(share: float) -> int:
    """Returns of how many requests one is traced; 0 where none is but those whose callers say so."""
    return min(_MOST_RATE, max(1, round(1 / share))) if share else 0


def _share(rate: int) -> float:
    return 1 / rate if rate else 0.0


def _known(key: str, settings: Mapping[str, Any], what: str) -> Any:
    if key not in settings:
        raise InvalidInput(f"unknown {what} setting {key[:100]!r}; there are {', '.join(settings)}", field=key[:100])
    return settings[key]
