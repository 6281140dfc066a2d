"""The HTTP application: inference goes straight to its route, everything else to the control routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from serving.errors import status_of
from serving.http.body import BodyReader, ClientGoneError, Receive, Scope, Send
from serving.http.infer import InferenceRoutes
from serving.models import Models
from serving.protocol.json_text import dump_json

_PREDICT = ":predict"


class HttpApp:
    """An ASGI application."""

    def __init__(
        self, models: Models, control: Callable[[Scope, Receive, Send], Awaitable[None]], bodies: BodyReader
    ) -> None:
        """models: who answers inference. control: an ASGI application for all else."""
        self._control = control
        self._inference = InferenceRoutes(models, bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return None
        if scope["method"] == "POST":
            parts = scope["path"].split("/")
            if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer":
                if len(parts) == 5:
                    return await self._inference.infer(parts[3], "", scope, receive, send)
                if len(parts) == 7 and parts[4] == "versions":
                    return await self._inference.infer(parts[3], parts[5], scope, receive, send)
            if len(parts) == 4 and parts[1:3] == ["v1", "models"] and parts[3].endswith(_PREDICT):
                return await self._inference.predict(parts[3].removesuffix(_PREDICT), "", scope, receive, send)
        started = False

        async def watched(message: object) -> None:
            nonlocal started
            started = True
            await send(message)  # type: ignore[arg-type]

        try:
            await self._control(scope, receive, watched)
        except ClientGoneError:
            return None
        except Exception as error:
            if not started:
                status, _, text = status_of(error)
                await send_json(send, status, {"error": text})
        return None


async def send_json(send: Send, status: int, content: object) -> None:
    """Sends a whole JSON response."""
    body = dump_json(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
