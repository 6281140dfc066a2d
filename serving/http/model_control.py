"""The routes that control one model: load, unload, go back, hold still, try out. They answer with the state then."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import JsonValue

from serving.control import bodies as bodies
from serving.control.calls import ControlCalls
from serving.http.control_messages import json_response, read_object
from serving.repository.model_repository import ModelRepository
from storage.errors import NotFound

_State = dict[str, JsonValue]
_Call = Callable[[ModelRepository, str, Any], _State | None]


def _canary(repository: ModelRepository, name: str, body: bodies.CanaryBody) -> _State:
    if body.promote:
        return repository.promote(name)
    if body.stop:
        return repository.stop_canary(name)
    assert body.fraction is not None
    return repository.canary(name, fraction=body.fraction, to=body.to)


# verb -> its body, and what it calls; load and unload answer with nothing, as in Triton
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
    "budget": (bodies.BudgetBody, lambda repository, name, body: repository.set_budget(name, body.dram_bytes)),
    "sessions": (bodies.SessionsBody, lambda repository, name, body: repository.set_sessions(name, body.count)),
    "allow": (bodies.AllowBody, lambda repository, name, body: repository.allow(name, str(body.version), body.inputs)),
}


def add_model_control(app: FastAPI, repository: ModelRepository, calls: ControlCalls) -> None:
    """Adds POST /v2/repository/models/NAME/VERB, and GET .../NAME/snapshots, .../budget and .../sessions."""

    @app.get("/v2/repository/models/{name}/snapshots")
    async def snapshots(name: str) -> Response:
        return json_response(await calls.run(lambda: repository.snapshots(name)))

    @app.get("/v2/repository/models/{name}/budget")
    async def budget(name: str) -> Response:
        return json_response(await calls.run(lambda: repository.budget(name)))

    @app.get("/v2/repository/models/{name}/sessions")
    async def sessions(name: str) -> Response:
        return json_response(await calls.run(lambda: repository.sessions(name)))

    @app.post("/v2/repository/models/{name}/{verb}")
    async def control(name: str, verb: str, request: Request) -> Response:
        if verb not in VERBS:
            close = difflib.get_close_matches(verb[:40], VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(VERBS)}"
            raise NotFound(f"a model has no call {verb[:40]!r}; {hint}")
        body_type, call = VERBS[verb]
        body = body_type.parse(await read_object(request))
        state = await calls.run(lambda: call(repository, name, body))
        return Response() if state is None else json_response(state)
