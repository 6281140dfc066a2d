"""Passes the error of an unknown model from the control routes to the gate, in a header that no client sees."""

from __future__ import annotations

import json

from serving.errors import UnknownModel
from serving.http.messages import Headers, HttpResponse
from serving.protocol.json_text import dump_json, parse_object

_KNOWN = b"emberline-known-models"


def known_models_header(error: BaseException) -> Headers:
    """Returns a header with the names of an UnknownModel, for the gate, which knows the ones that the caller may see.

    The gate sends a response without it.
    """
    return [(_KNOWN, dump_json(error.known))] if isinstance(error, UnknownModel) else []


def unknown_model(response: HttpResponse) -> UnknownModel | None:
    """Returns the UnknownModel that a control route answered with; None for any other response."""
    names = dict(response.headers).get(_KNOWN)
    if names is None:
        return None
    return UnknownModel(parse_object(response.content, what="the response")["error"], json.loads(names))
