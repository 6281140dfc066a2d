"""Finds the route of an inference request from its head alone: the model and the protocol version."""

from __future__ import annotations

from dataclasses import dataclass

from serving.control.models import Model
from serving.protocol.routing import ANYWHERE, Routing

_PREDICT = ":predict"


@dataclass(slots=True)
class InferenceRoute:
    """Says which model an inference request is for, and by which protocol."""

    name: str
    #: "" for the version that is served.
    version: str
    #: Whether it is KServe v1's predict, not v2's infer.
    is_v1: bool
    #: The routing that the headers ask for.
    routing: Routing = ANYWHERE
    #: The model that was found when the request was admitted; None until then.
    model: Model | None = None


def inference_route(method: str, path: str) -> InferenceRoute | None:
    """Returns the route of an inference request; None for every other request."""
    if method != "POST":
        return None
    parts = path.split("/")
    if parts[-1] == "infer" and parts[:3] == ["", "v2", "models"]:
        if len(parts) == 5:
            return InferenceRoute(parts[3], "", False)
        if len(parts) == 7 and parts[4] == "versions":
            return InferenceRoute(parts[3], parts[5], False)
    if len(parts) == 4 and parts[1:3] == ["v1", "models"] and parts[3].endswith(_PREDICT):
        return InferenceRoute(parts[3].removesuffix(_PREDICT), "", True)
    return None
