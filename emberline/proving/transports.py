"""Calls of KServe v2 over HTTP and gRPC, and what their failures mean for a comparison."""

from __future__ import annotations

import http.client
import json
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emberline.proving.batches import KSERVE_TYPES, Batch, kserve_type
from storage.errors import ConfigError, EmberlineError, InvalidInput, NotFound, Unavailable

# Seconds before a server that is full, or being loaded, is asked again; it may ask for up to `_LONGEST_WAIT_S`.
_WAITS_S = (0.25, 0.5, 1.0, 2.0)
_LONGEST_WAIT_S = 10.0
# The field of InferTensorContents by type; there is none for FP16 and BF16.
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_TOKEN = "give a token that may ask there with --token-file, or a certificate with --cert and --key"


class Refused(InvalidInput):
    """The old server refuses the content of a request."""


class ServerFault(Unavailable):
    """The old server failed at a request."""


class _BusyError(Exception):
    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Access:
    """Describes how the old server is reached: a token, TLS of HTTP, and TLS of gRPC (certificates as PEM)."""

    token: str = ""
    opener: urllib.request.OpenerDirector = field(default_factory=urllib.request.build_opener)
    why_none: Callable[[Exception], str] = lambda error: str(getattr(error, "reason", error))
    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None


def model_path(model: str) -> str:
    """Returns the path of a model."""
    return f"/v2/models/{urllib.parse.quote(model, safe='')}"


class Http:
    """A server's HTTP. Raises Refused for content that it refuses, ServerFault where it fails, Unavailable without an
    answer, NotFound for an unknown model, ConfigError for a caller that it does not let in.
    """

    def __init__(self, url: str, timeout_s: float, access: Access) -> None:
        self._url, self._timeout_s, self._access = url, timeout_s, access

    def metadata(self, model: str) -> Any:
        """Returns the model's inputs and outputs as KServe v2 has them."""
        return self._call(model_path(model), None)

    def infer(self, model: str, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the outputs for a batch."""
        inputs = [
            {"name": name, "datatype": kserve_type(values), "shape": list(values.shape), "data": _plain(values)}
            for name, values in batch.items()
        ]
        answer = self._call(f"{model_path(model)}/infer", {"inputs": inputs})
        try:
            return {
                entry["name"]: np.asarray(entry["data"], KSERVE_TYPES[entry["datatype"]]).reshape(entry["shape"])
                for entry in answer["outputs"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{self._url}: not an answer of KServe v2 ({error!r})") from None

    def _call(self, path: str, content: object) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._url}{path}", body, {"Content-Type": "application/json"})
        if self._access.token:
            request.add_header("Authorization", f"Bearer {self._access.token}")
        return _patiently(lambda: self._once(request))

    def _once(self, request: urllib.request.Request) -> Any:
        address = request.full_url
        try:
            with self._access.opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = f"{address} answered {error.code}: {error.read(2000).decode(errors='replace')[:500]}"
            if error.code in (429, 503):
                raise _BusyError(text, _seconds(error.headers.get("Retry-After"))) from None
            raise _http_error(error.code, text) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from {address}: {self._access.why_none(error)}") from None


def _http_error(code: int, text: str) -> EmberlineError:
    if code in (400, 422):
        return Refused(text)
    if code in (401, 403):
        return ConfigError(f"{text}; {_TOKEN}", field="OLD")
    if code == 404:
        return NotFound(f"{text}; name the model of the old server with --model")
    if code == 413:
        return InvalidInput(f"{text}; send fewer rows at once with --batch-rows", field="batch-rows")
    return ServerFault(text) if code >= 500 else InvalidInput(text, field="OLD")


class Grpc:
    """A server's gRPC. Raises as `Http` does."""

    def __init__(self, address: str, timeout_s: float, access: Access, is_tls: bool) -> None:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self._address, self._timeout_s, self._error, self._messages = address, timeout_s, grpc.RpcError, service_pb2
        self._headers = (("authorization", f"Bearer {access.token}"),) if access.token else ()
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if is_tls:
            credentials = grpc.ssl_channel_credentials(access.ca, access.key, access.cert)
            channel = grpc.secure_channel(address, credentials, options)
        else:
            channel = grpc.insecure_channel(address, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def metadata(self, model: str) -> Any:
        """Returns the model's inputs and outputs as KServe v2 has them."""
        answer = self._call(self._stub.ModelMetadata, self._messages.ModelMetadataRequest(name=model))
        return {
            what: [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in entries]
            for what, entries in (("inputs", answer.inputs), ("outputs", answer.outputs))
        }

    def infer(self, model: str, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the outputs for a batch."""
        from loadtest.bodies import grpc_request
        from loadtest.rows import Tensor

        tensors = [Tensor(name, kserve_type(values), np.ascontiguousarray(values)) for name, values in batch.items()]
        answer = self._call(self._stub.ModelInfer, grpc_request(model, tensors))
        try:
            raw = answer.raw_output_contents or [None] * len(answer.outputs)
            return {
                entry.name: (_typed(entry) if content is None else _raw(entry.datatype, content)).reshape(
                    list(entry.shape)
                )
                for entry, content in zip(answer.outputs, raw, strict=True)
            }
        except (KeyError, ValueError, struct.error) as error:
            raise InvalidInput(f"{self._address}: not an answer of KServe v2 ({error!r})", field="OLD") from None

    def _call(self, method: Any, request: Any) -> Any:
        return _patiently(lambda: self._once(method, request))

    def _once(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_s, metadata=self._headers)
        except self._error as error:
            name = error.code().name
            text = f"grpc://{self._address} answered {name}: {error.details()}"
            if name in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"):
                raise _BusyError(text) from None
            raise _grpc_error(name, text) from None


def _raw(datatype: str, content: bytes) -> np.ndarray:
    """Returns the values of a tensor's bytes, BF16 as float32."""
    if datatype == "BF16":
        # The upper half of a float32.
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if datatype != "BYTES":
        return np.frombuffer(content, KSERVE_TYPES[datatype])
    texts: list[bytes] = []
    start = 0
    while start < len(content):
        (size,) = struct.unpack_from("<I", content, start)
        texts.append(content[start + 4 : start + 4 + size])
        start += 4 + size
    return np.array(texts, object)


def _typed(output: Any) -> np.ndarray:
    """Returns the values of a tensor that come in a field of their type."""
    datatype = output.datatype
    return np.array(list(getattr(output.contents, _FIELDS[datatype])), KSERVE_TYPES[datatype])


def _grpc_error(name: str, text: str) -> EmberlineError:
    if name in ("INVALID_ARGUMENT", "OUT_OF_RANGE"):
        return Refused(text)
    if name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return ConfigError(f"{text}; {_TOKEN}", field="OLD")
    if name == "NOT_FOUND":
        return NotFound(f"{text}; name the model of the old server with --model")
    return Unavailable(text) if name == "DEADLINE_EXCEEDED" else ServerFault(text)


def _patiently(call: Callable[[], Any]) -> Any:
    """Calls again while the server is busy. Raises Unavailable when it stays so."""
    for wait_s in (*_WAITS_S, None):
        try:
            return call()
        except _BusyError as busy:
            if wait_s is None:
                raise Unavailable(f"{busy} ({len(_WAITS_S) + 1} times)") from None
            time.sleep(min(max(wait_s, busy.wait_s), _LONGEST_WAIT_S))
    raise AssertionError


def _seconds(text: str | None) -> float:
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0


def _plain(values: np.ndarray) -> list[Any]:
    flat = values.reshape(-1).tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in flat]
