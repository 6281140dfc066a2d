"""Calls to a running server, and their failures in words."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from storage.errors import InvalidInput, Unavailable

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MODEL = click.argument("model")
URL = click.option("--url", default="http://127.0.0.1:8000", help="The server's HTTP address.")


def timeout_option(default: float) -> Callable[[Decorated], Decorated]:
    """The option --timeout, seconds."""
    return click.option(
        "--timeout", type=click.FloatRange(0.1), default=default, help="Seconds to wait for the answer."
    )


def call_server(
    url: str, path: str, timeout: float, content: object | None = None, headers: Mapping[str, str] | None = None
) -> tuple[Any, Mapping[str, str]]:
    """The answer's JSON (None when it is empty) and its headers. content: sent as JSON by POST; without it a GET.

    Raises InvalidInput with the server's own words when it refuses, Unavailable when nobody answers.
    """
    address = f"{url.rstrip('/')}{path}"
    body = None if content is None else json.dumps(content).encode()
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read()
            return (json.loads(text) if text else None), answer.headers
    except urllib.error.HTTPError as error:
        refusal = error.read().decode(errors="replace")
        try:
            refusal = json.loads(refusal)["error"]
        except (ValueError, KeyError, TypeError):
            refusal = refusal[:500]
        raise InvalidInput(f"the server answered {error.code}: {refusal}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error))
        reason = reason if reason.isprintable() else "it does not speak HTTP"
        raise Unavailable(
            f"no answer from {address}: {reason}; is `emberline serve` running, and is --url right?"
        ) from None


def model_path(model: str, verb: str) -> str:
    """The path of a call that controls a model."""
    return f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/{verb}"
