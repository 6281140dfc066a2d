"""The needs of requests: a role, and the scope it must cover. One table for HTTP, one for gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving.security.principals import ADMIN, PREDICT, READ

# Scopes: one model; the whole server, which is out of reach for a token of some models; or nothing in particular.
MODEL, SERVER, NOTHING = "model", "server", "nothing"


@dataclass(frozen=True, slots=True)
class Need:
    """The permission that a call needs."""

    #: Bits of roles, any of which is enough; 0: no check.
    roles: int
    #: Scope: MODEL, SERVER or NOTHING.
    about: str = NOTHING
    #: Name of the call in the log.
    call: str = ""

    @property
    def is_control(self) -> bool:
        """True if the call changes what is served, and is written into the audit log."""
        return self.roles == ADMIN


OPEN = Need(0)
INFER = Need(PREDICT, MODEL, "infer")
KNOWN = Need(PREDICT | READ)
# Needs about one model: the first is met by callers that may ask for its scores or see it, the second by those that may
# see it.
ABOUT_MODEL = Need(PREDICT | READ, MODEL)
LOOK_AT_MODEL = Need(READ, MODEL)
LOOK_AT_SERVER = Need(READ, SERVER)
REGIONS = Need(PREDICT, SERVER)
# The need of an unknown path: only callers that may see what exists learn that it does not.
UNKNOWN = Need(READ, NOTHING)


def _control(about: str, call: str) -> Need:
    return Need(ADMIN, about, call)


# (methods, path) -> need. {name} is the model; other braces match anything. A literal overrides braces.
HTTP_NEEDS: tuple[tuple[str, str, Need], ...] = (
    ("GET", "/v2/health/live", OPEN),
    ("GET", "/v2/health/ready", OPEN),
    ("GET", "/v2", KNOWN),
    ("GET", "/v2/", Need(PREDICT | READ, call="v2")),
    ("GET", "/openapi.json", UNKNOWN),
    ("GET", "/metrics", LOOK_AT_SERVER),
    ("GET", "/v2/models/stats", LOOK_AT_SERVER),
    ("GET", "/v2/models/{name}", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/versions/{version}", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/ready", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/versions/{version}/ready", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/config", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/versions/{version}/config", ABOUT_MODEL),
    ("GET", "/v2/models/{name}/stats", LOOK_AT_MODEL),
    ("GET", "/v2/models/{name}/versions/{version}/stats", LOOK_AT_MODEL),
    ("POST", "/v2/models/{name}/infer", INFER),
    ("POST", "/v2/models/{name}/versions/{version}/infer", INFER),
    ("POST", "/v2/repository/index", LOOK_AT_SERVER),
    ("GET", "/v2/repository/models/{name}/snapshots", LOOK_AT_MODEL),
    ("GET", "/v2/repository/models/{name}/budget", LOOK_AT_MODEL),
    ("GET", "/v2/repository/models/{name}/sessions", LOOK_AT_MODEL),
    ("POST", "/v2/repository/models/{name}/{verb}", _control(MODEL, "")),
    ("GET", "/v2/trace/setting", LOOK_AT_SERVER),
    ("POST", "/v2/trace/setting", _control(SERVER, "trace")),
    ("GET", "/v2/models/{name}/trace/setting", LOOK_AT_MODEL),
    ("POST", "/v2/models/{name}/trace/setting", _control(MODEL, "trace")),
    ("GET", "/v2/logging", LOOK_AT_SERVER),
    ("POST", "/v2/logging", _control(SERVER, "logging")),
    *(
        (method, f"/v2/{kind}sharedmemory{place}{verb}", REGIONS)
        for kind in ("system", "cuda")
        for place in ("", "/region/{region}")
        for method, verb in (("GET", "/status"), ("POST", "/register"), ("POST", "/unregister"))
    ),
    ("GET", "/v1/models", LOOK_AT_SERVER),
    ("GET", "/v1/models/{name}", ABOUT_MODEL),
    ("POST", "/v1/models/{name}:predict", INFER),
)

_PREDICT = ":predict"


@dataclass(slots=True)
class _Template:
    segments: tuple[str | None, ...]
    name_at: int
    needs: dict[str, Need]

    def fits(self, segments: list[str]) -> bool:
        return all(
            (want is None and bool(got)) or want == got for want, got in zip(self.segments, segments, strict=True)
        )


def _templates() -> dict[int, list[_Template]]:
    """Returns the templates by their number of segments; those with fewer braces first."""
    found: dict[tuple[str | None, ...], _Template] = {}
    for method, path, need in HTTP_NEEDS:
        parts = path.split("/")[1:]
        segments = tuple(None if part.startswith("{") and not part.endswith(_PREDICT) else part for part in parts)
        name_at = parts.index("{name}") if "{name}" in parts else -1
        found.setdefault(segments, _Template(segments, name_at, {})).needs[method] = need
    by_count: dict[int, list[_Template]] = {}
    for template in sorted(found.values(), key=lambda each: each.segments.count(None)):
        by_count.setdefault(len(template.segments), []).append(template)
    return by_count


_BY_COUNT = _templates()
# Health is asked most often, and by anyone: literal paths are found without a look at every template.
_LITERAL = {
    (method, path): (need, "", need.call or path.rpartition("/")[2])
    for method, path, need in HTTP_NEEDS
    if "{" not in path
}


def http_need(method: str, path: str) -> tuple[Need, str, str]:
    """Returns the need of a request, the model that it is about, and the name of the call.

    A path that exists with another method only is unknown.
    """
    literal = _LITERAL.get((method, path))
    if literal is not None:
        return literal
    segments = path.split("/")[1:]
    last = segments[-1] if segments else ""
    if method == "POST" and len(segments) == 3 and segments[:2] == ["v1", "models"] and last.endswith(_PREDICT):
        return INFER, last.removesuffix(_PREDICT), "infer"
    for template in _BY_COUNT.get(len(segments), ()):
        if not template.fits(segments):
            continue
        need = template.needs.get(method)
        if need is not None:
            name = segments[template.name_at] if template.name_at >= 0 else ""
            return need, name, need.call or last
    return UNKNOWN, "", last


def _of_model(message: Any) -> str:
    return str(message.name)


def _of_model_name(message: Any) -> str:
    return str(message.model_name)


@dataclass(frozen=True, slots=True)
class CallNeed:
    """The need of a gRPC call, and the model that it is about."""

    need: Need
    #: Returns the model that a message is about; None where there is none.
    model: Callable[[Any], str] | None = None
    #: The need of a call that may leave out the model, and does.
    of_server: Need | None = None
    #: The need of a call with settings.
    writes: Need | None = None
    #: The need of a call with settings and without a model.
    server_writes: Need | None = None

    @property
    def may_control(self) -> bool:
        """True if it can be a control call."""
        return self.writes is not None or self.need.is_control

    def of(self, message: Any) -> tuple[Need, str]:
        """Returns need and model of a message."""
        model = self.model(message) if self.model is not None else ""
        need, writes = self.need, self.writes
        if self.of_server is not None and not model:
            need, writes = self.of_server, self.server_writes
        return (writes if writes is not None and message.settings else need), model


GRPC_NEEDS: dict[str, CallNeed] = {
    "ServerLive": CallNeed(OPEN),
    "ServerReady": CallNeed(OPEN),
    "ServerMetadata": CallNeed(KNOWN),
    "ModelReady": CallNeed(ABOUT_MODEL, _of_model),
    "ModelMetadata": CallNeed(ABOUT_MODEL, _of_model),
    "ModelConfig": CallNeed(ABOUT_MODEL, _of_model),
    "ModelStatistics": CallNeed(LOOK_AT_MODEL, _of_model, of_server=LOOK_AT_SERVER),
    "ModelInfer": CallNeed(INFER, _of_model_name),
    "ModelStreamInfer": CallNeed(INFER, _of_model_name),
    "RepositoryIndex": CallNeed(LOOK_AT_SERVER),
    "RepositoryModelLoad": CallNeed(_control(MODEL, "load"), _of_model_name),
    "RepositoryModelUnload": CallNeed(_control(MODEL, "unload"), _of_model_name),
    "SystemSharedMemoryStatus": CallNeed(REGIONS),
    "SystemSharedMemoryRegister": CallNeed(REGIONS),
    "SystemSharedMemoryUnregister": CallNeed(REGIONS),
    "CudaSharedMemoryStatus": CallNeed(REGIONS),
    "CudaSharedMemoryRegister": CallNeed(REGIONS),
    "CudaSharedMemoryUnregister": CallNeed(REGIONS),
    "TraceSetting": CallNeed(
        LOOK_AT_MODEL,
        _of_model_name,
        of_server=LOOK_AT_SERVER,
        writes=_control(MODEL, "trace"),
        server_writes=_control(SERVER, "trace"),
    ),
    "LogSettings": CallNeed(LOOK_AT_SERVER, writes=_control(SERVER, "logging")),
}
# The need of a method that this server does not have.
UNKNOWN_CALL = CallNeed(UNKNOWN)
