"""Defines the routes that control one model, such as load, rollback, pin and canary; most answer with the new state."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import JsonValue

from serving.control import bodies
from serving.control.explaining import explain_json
from serving.http.openapi_schemas import ANY_OBJECT
from serving.http.operations import ControlCall, Operation
from serving.protocol.routing import routing_of_headers
from serving.protocol.v2 import parse_header_length
from serving.security.needs import EXPLAIN, LOOK_AT_MODEL, MODEL, OPEN, SAMPLE, control_need
from storage.errors import NotFound

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository

_State = dict[str, JsonValue]
_Call = Callable[["ModelRepository", str, Any], _State | None]


def _canary(repository: ModelRepository, name: str, body: bodies.CanaryBody) -> _State:
    if body.promote:
        return repository.promote(name)
    if body.stop:
        return repository.stop_canary(name)
    assert body.fraction is not None
    return repository.canary(name, fraction=body.fraction, to=body.to)


def _shadow(repository: ModelRepository, name: str, body: bodies.ShadowBody) -> _State:
    if body.promote:
        return repository.promote_shadow(name)
    if body.stop:
        return repository.stop_shadow(name)
    assert body.share is not None
    return repository.shadow(name, to=body.to, share=body.share, top_k=body.top_k, for_s=body.for_s or 0.0)


# Each verb with its body and the function that it calls. load and unload answer with nothing, as in Triton.
VERBS: dict[str, tuple[type[bodies.ControlBody], _Call]] = {
    "load": (bodies.LoadBody, lambda repository, name, _: repository.load(name)),
    "unload": (bodies.UnloadBody, lambda repository, name, _: repository.unload(name)),
    "rollback": (
        bodies.RollbackBody,
        lambda repository, name, body: repository.rollback(name, to=body.to, steps=body.steps),
    ),
    "resume": (bodies.ControlBody, lambda repository, name, _: repository.resume(name)),
    "pause": (bodies.ControlBody, lambda repository, name, _: repository.pause(name)),
    "pin": (bodies.PinBody, lambda repository, name, body: repository.pin(name, body.to)),
    "canary": (bodies.CanaryBody, _canary),
    "shadow": (bodies.ShadowBody, _shadow),
    "budget": (bodies.BudgetBody, lambda repository, name, body: repository.set_budget(name, body.dram_bytes)),
    "sessions": (bodies.SessionsBody, lambda repository, name, body: repository.set_sessions(name, body.count)),
    "allow": (bodies.AllowBody, lambda repository, name, body: repository.allow(name, str(body.version), body.inputs)),
}


def _snapshots(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.snapshots(call.name))


def _budget(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.budget(call.name))


def _sessions(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.sessions(call.name))


def _settings(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.settings(call.name))


def _fleet(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.fleet_view(call.name))


def _sample(call: ControlCall) -> Awaitable[_State]:
    return call.run(lambda: call.repository.sample(call.name))


def _explain(call: ControlCall) -> Awaitable[_State]:
    length = call.headers.get("inference-header-content-length")
    header_length = parse_header_length(None if length is None else length.encode("latin-1"))
    beside = routing_of_headers({name.encode(): value.encode("latin-1") for name, value in call.headers.items()})
    return call.run(lambda: explain_json(call.repository, call.name, call.body, header_length, beside))


def _wake(call: ControlCall) -> _State:
    body = bodies.WakeBody.parse(call.read_object())
    if call.repository.fleet is None:
        raise NotFound("this server has no fleet")
    return {"served": call.repository.fleet.wake(call.name, body.wake, looks=body.looks)}


async def _control(verb: str, call: ControlCall) -> _State | None:
    body_type, change = VERBS[verb]
    body = body_type.parse(call.read_object())
    return await call.run(lambda: change(call.repository, call.name, body))


def _unknown_verb(call: ControlCall) -> NoReturn:
    verb = call.verb[:40]
    close = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(VERBS)}"
    raise NotFound(f"a model has no call {verb!r}; {hint}")


_PATH = "/v2/repository/models/{name}/"
_look = functools.partial(Operation, "GET", need=LOOK_AT_MODEL, tag="repository", answer=ANY_OBJECT, errors=(404, 501))
_CONTROL = control_need(MODEL)
_OPTIONS = "The options in force, and where each comes from"
_SNAPSHOTS = "What is served, retained, held, quarantined and waited for"

MODEL_CONTROL_OPERATIONS = (
    _look(_PATH + "snapshots", handler=_snapshots, summary=_SNAPSHOTS),
    _look(_PATH + "budget", handler=_budget, summary="The DRAM budget, and what others would give"),
    _look(_PATH + "sessions", handler=_sessions, summary="The sessions, and what each has done"),
    _look(_PATH + "options", handler=_settings, summary=_OPTIONS),
    _look(_PATH + "fleet", handler=_fleet, summary="What all replicas serve, and what each has staged or refused"),
    Operation(
        "GET",
        _PATH + "sample",
        SAMPLE,
        _sample,
        "Some golden requests, as the body of a v1 request",
        "repository",
        ANY_OBJECT,
        errors=(404, 501, 503),
    ),
    Operation(
        "POST",
        _PATH + "explain",
        EXPLAIN,
        _explain,
        "Explain the score of a row of an inference request",
        "repository",
        ANY_OBJECT,
        ANY_OBJECT,
        (404, 503),
        is_optional=False,
    ),
    # Open to those who know the word that a replica keeps in the object store.
    Operation(
        "POST",
        _PATH + "look",
        OPEN,
        _wake,
        "Look at the object store, if asked to, for the other replicas of a fleet, and say what is served here",
        "repository",
        ANY_OBJECT,
        bodies.WakeBody,
        (403, 404),
        is_optional=False,
    ),
    *(
        Operation(
            "POST",
            _PATH + verb,
            _CONTROL,
            functools.partial(_control, verb),
            f"{verb.capitalize()} a model",
            "repository",
            None if verb in ("load", "unload") else ANY_OBJECT,
            body,
            (404, 409, 501),
        )
        for verb, (body, _) in VERBS.items()
    ),
    Operation("POST", _PATH + "{verb}", _CONTROL, _unknown_verb),
)
