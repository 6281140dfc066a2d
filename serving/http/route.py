"""What a path asks of the models: an inference request's route, found from its head alone."""

from __future__ import annotations

from dataclasses import dataclass

from serving.control.models import Model
from serving.protocol.routing import ANYWHERE, Routing

_PREDICT = ":predict"


@dataclass(slots=True)
class InferenceRoute:
    """What an inference request asks for.

    version: "" for the one that is served. is_v1: KServe v1's predict, else v2's infer. routing: as the headers say.
    model: found when the request was admitted; None where it has to be asked for.
    """

    name: str
    version: str
    is_v1: bool
    routing: Routing = ANYWHERE
    model: Model | None = None


def inference_route(method: str, path: str) -> InferenceRoute | None:
    """What an inference request asks for; None for every other."""
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
