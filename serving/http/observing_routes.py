"""Defines the routes of Triton's trace and log settings, and of timelines."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from serving.control.observing_settings import change_log, change_traces, log_settings, trace_settings
from serving.http.messages import JSON, HttpResponse
from serving.http.openapi_schemas import ANY_OBJECT, closed
from serving.http.operations import ControlCall, Operation
from serving.observing.observation import MAX_TIMELINE_S
from serving.protocol.json_text import dump_json
from serving.security.needs import LOOK_AT_MODEL, LOOK_AT_SERVER, MODEL, SERVER, control_need
from storage.errors import InvalidInput

TIMELINE_PATH = "/v2/trace/timeline"
_SECONDS = "seconds"


def _trace(call: ControlCall) -> Mapping[str, Any]:
    if call.name:
        call.repository.get(call.name)
    return trace_settings(call.repository.observation)


def _set_trace(call: ControlCall) -> Mapping[str, Any]:
    _trace(call)
    change_traces(call.repository.observation, call.read_object(), of_model=bool(call.name))
    return _trace(call)


def _log(call: ControlCall) -> Mapping[str, Any]:
    return log_settings(call.repository.observation.log_format)


def _set_log(call: ControlCall) -> Mapping[str, Any]:
    change_log(call.repository.observation.log_format, call.read_object())
    return _log(call)


async def _timeline(call: ControlCall) -> HttpResponse:
    wanted = call.read_object()
    seconds = wanted.pop(_SECONDS, None)
    if wanted:
        raise InvalidInput(f"unknown key {next(iter(wanted))[:100]!r}; there is {_SECONDS!r}", field=_SECONDS)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= MAX_TIMELINE_S:
        raise InvalidInput(
            f"{_SECONDS!r}: expected a number up to {MAX_TIMELINE_S:g}, got {str(seconds)[:40]!r}", field=_SECONDS
        )
    observation = call.repository.observation
    content = await call.run(lambda: dump_json(observation.record_timeline(float(seconds))))
    return HttpResponse(200, content, [JSON])


_look = functools.partial(Operation, "GET", tag="settings", answer=ANY_OBJECT)
_set = functools.partial(Operation, "POST", tag="settings", answer=ANY_OBJECT, body=ANY_OBJECT)
_TRACE, _SET_TRACE = "Trace settings", "Trace settings after a change"
_TRACE_PATH, _MODEL_TRACE_PATH = "/v2/trace/setting", "/v2/models/{name}/trace/setting"

SETTINGS_OPERATIONS = (
    _look(_TRACE_PATH, LOOK_AT_SERVER, _trace, _TRACE, errors=(501,)),
    _set(_TRACE_PATH, control_need(SERVER, "trace"), _set_trace, _SET_TRACE, errors=(501,)),
    _look(_MODEL_TRACE_PATH, LOOK_AT_MODEL, _trace, _TRACE, errors=(404, 501)),
    _set(_MODEL_TRACE_PATH, control_need(MODEL, "trace"), _set_trace, _SET_TRACE, errors=(404, 501)),
    _look("/v2/logging", LOOK_AT_SERVER, _log, "Logging settings", errors=(501,)),
    _set("/v2/logging", control_need(SERVER, "logging"), _set_log, "Logging settings after a change", errors=(501,)),
    Operation(
        "POST",
        TIMELINE_PATH,
        control_need(SERVER, "timeline"),
        _timeline,
        "A timeline of the server's threads, for Chrome's and Perfetto's viewers",
        "settings",
        ANY_OBJECT,
        closed({_SECONDS: {"type": "number"}}, [_SECONDS]),
        errors=(409,),
        is_optional=False,
    ),
)
