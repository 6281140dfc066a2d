"""Answers for Triton's trace and log settings, none of which this server can change.

Traces are not taken; the log is set when the server is started (`--log-level`). A change that asks for the present
setting is answered as Triton answers it; any other one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import InvalidInput, Unsupported

TRACE: Mapping[str, Any] = {
    "trace_file": "",
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
LOG: Mapping[str, Any] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def check_trace_settings(wanted: Mapping[str, Any]) -> None:
    """Raises InvalidInput for an unknown trace setting, Unsupported for one that would change."""
    for key, value in wanted.items():
        said = _known(key, TRACE, "trace")
        given = value if type(value) is list else [value]
        # null, or nothing, asks for the default.
        if value not in (None, []) and given != (said if type(said) is list else [said]):
            raise Unsupported(f"{key}: this server takes no traces, which is {said!r}; its metrics tell the times")


def check_log_settings(wanted: Mapping[str, Any]) -> None:
    """Raises InvalidInput for an unknown log setting, Unsupported for one that would change."""
    for key, value in wanted.items():
        said = _known(key, LOG, "log")
        if type(value) is not type(said):
            raise InvalidInput(f"{key!r} is of the type of {said!r}, got {str(value)[:40]!r}", field=key[:100])
        if value != said:
            raise Unsupported(f"{key} stays {said!r}: the log is set when the server is started (--log-level)")


def _known(key: str, settings: Mapping[str, Any], what: str) -> Any:
    if key not in settings:
        raise InvalidInput(f"unknown {what} setting {key[:100]!r}; there are {', '.join(settings)}", field=key[:100])
    return settings[key]
