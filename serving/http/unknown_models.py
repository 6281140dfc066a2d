"""How the error of an unknown model crosses from the control routes to the gate: in a header that no client sees."""

from __future__ import annotations

import json

from serving.errors import UnknownModel
from serving.http.messages import Headers, HttpResponse
from serving.protocol.json_text import dump_json, parse_object

_KNOWN = b"emberline-known-models"


def known_models_header(error: BaseException) -> Headers:
    """Takes the names of an UnknownModel to where it is known which of them the caller may see. It goes no further."""
    return [(_KNOWN, dump_json(error.known))] if isinstance(error, UnknownModel) else []


def unknown_model(response: HttpResponse) -> UnknownModel | None:
    """The error that a control route answered with, if it was that one."""
    names = dict(response.headers).get(_KNOWN)
    if names is None:
        return None
    return UnknownModel(parse_object(response.content, what="the response")["error"], json.loads(names))
