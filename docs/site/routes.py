"""Writes the reference of the HTTP routes and gRPC calls, of the tables that the server answers by."""

from __future__ import annotations

import re

from docs.site.markdown_tables import code, prose, table
from serving.grpc.needs import GRPC_NEEDS
from serving.http.openapi import openapi_document
from serving.http.routes import TABLE
from serving.security.needs import Need
from serving.security.principals import ADMIN, PREDICT, READ

_ROLES = {PREDICT: "predict", READ: "read", ADMIN: "admin"}
_INTRODUCTION = """\
# Routes and calls

A server answers HTTP on `--http-port` (8000) and gRPC on `--grpc-port` (8001). `GET /metrics` and the
[console](../console.md) are on `--metrics-port` (8002). A role is needed where the server has an access file or a token
of its own ([security](../security.md)); "open" means that anyone may call. `GET /openapi.json` of a running server has
the requests and answers in full.

Every route may answer 200, 400, 413, 415, 431, 500 and 503, and one with a role also 401, 403 and 429. The tables have
the statuses beside these.
"""
_GRPC = """\
## gRPC

The service is `inference.GRPCInferenceService`. `grpc.health.v1.Health` and reflection are there, too.
"""
_USUAL = {"200", "400", "401", "403", "413", "415", "429", "431", "500", "503"}


def routes_page() -> str:
    """Returns the page with every route of the HTTP port and every call of the gRPC port."""
    document = openapi_document(TABLE.operations)
    parts = [_INTRODUCTION]
    tags: dict[str, list[tuple[str, ...]]] = {}
    for operation in TABLE.operations:
        if not operation.summary:
            continue
        described = document["paths"][operation.path][operation.method.lower()]
        statuses = ", ".join(sorted(set(described["responses"]) - _USUAL))
        row = (f"`{operation.method} {operation.path}`", prose(operation.summary), _role(operation.need), statuses)
        tags.setdefault(operation.tag, []).append(row)
    for tag, rows in tags.items():
        parts.append(f"## HTTP: {tag}\n")
        parts.append(table(("route", "meaning", "role", "also"), rows))
    parts.append("## Meanings of statuses\n")
    responses = document["components"]["responses"]
    rows = [(status, prose(_plain(each["description"]))) for status, each in sorted(responses.items())]
    parts.append(table(("status", "meaning"), rows))
    parts.append(_GRPC)
    calls = []
    for name, need in GRPC_NEEDS.items():
        writes = f"; to change: {_role(need.writes)}" if need.writes is not None else ""
        calls.append((code(name), _role(need.need) + writes))
    parts.append(table(("call", "role"), calls))
    return "\n".join(parts)


def _role(need: Need) -> str:
    names = [name for bit, name in _ROLES.items() if need.roles & bit]
    return (" and " if need.all_roles else " or ").join(names) or "open"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)
