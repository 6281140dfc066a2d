"""Asks a server that speaks KServe v2, over HTTP or gRPC: Triton, KServe, TorchServe, or one of ours."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emberline.proving.batches import KSERVE_TYPES, Batch, kserve_type, merged_outputs, rows_of
from storage.errors import ConfigError, InvalidInput, Unavailable


@dataclass(frozen=True)
class Names:
    """The old server's names for our inputs and outputs, where they differ."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


class OldServer:
    """A model of a server. address: HOST:PORT or http://HOST:PORT for HTTP, grpc://HOST:PORT for gRPC.

    batch_rows: rows that are sent at once. Raises ConfigError for another address, Unavailable without an answer,
    InvalidInput with the server's own words when it refuses.
    """

    def __init__(
        self, address: str, model: str, *, names: Names | None = None, batch_rows: int = 64, timeout_s: float = 30.0
    ) -> None:
        text = address if "://" in address else f"http://{address}"
        parts = urllib.parse.urlsplit(text)
        if parts.scheme not in ("http", "https", "grpc") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(f"{address!r}: expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT", field="OLD")
        self.address, self.model = text.rstrip("/"), model
        self._names = names or Names()
        self._batch_rows = batch_rows
        self._transport: _Http | _Grpc
        self._transport = _Grpc(parts.netloc, timeout_s) if parts.scheme == "grpc" else _Http(self.address, timeout_s)
        metadata = self._transport.metadata(model)
        self._inputs = {entry["name"]: entry for entry in metadata["inputs"]}
        self._outputs = [entry["name"] for entry in metadata["outputs"]]
        for name in self._names.inputs.values():
            if self._inputs and name not in self._inputs:
                raise ConfigError(f"the old server has no input {name!r}; it has {list(self._inputs)}", field="input")

    def score(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the outputs by our names, for the rows of a batch."""
        pieces = [
            {name: values[start : start + self._batch_rows] for name, values in batch.items()}
            for start in range(0, rows_of(batch), self._batch_rows)
        ]
        return merged_outputs([self._once(piece) for piece in pieces])

    def accepted(self, batch: Batch) -> tuple[np.ndarray, str]:
        """Returns the rows of a batch that the server answers, and its words about the first that it refuses."""
        rows = rows_of(batch)
        try:
            self.score(batch)
            return np.ones(rows, bool), ""
        except InvalidInput as error:
            if rows == 1:
                return np.zeros(1, bool), str(error)
        half = rows // 2
        first, reason = self.accepted({name: values[:half] for name, values in batch.items()})
        rest, other = self.accepted({name: values[half:] for name, values in batch.items()})
        return np.concatenate([first, rest]), reason or other

    def _once(self, batch: Batch) -> dict[str, np.ndarray]:
        sent = {self._names.inputs.get(name, name): values for name, values in batch.items()}
        unknown = [name for name in sent if self._inputs and name not in self._inputs]
        if unknown:
            raise InvalidInput(
                f"the old server has no input {unknown[0]!r}; it has {list(self._inputs)}. Give its name with "
                "--input OURS=THEIRS",
                field=unknown[0],
            )
        shaped = {name: _as_declared(values, self._inputs.get(name)) for name, values in sent.items()}
        found = self._transport.infer(self.model, shaped)
        ours = {theirs: name for name, theirs in self._names.outputs.items()}
        return {ours.get(name, name): values for name, values in found.items()}


def _as_declared(values: np.ndarray, declared: Mapping[str, Any] | None) -> np.ndarray:
    """Returns an input in the type and the shape that the server declares."""
    if declared is None:
        return values
    kind = KSERVE_TYPES.get(declared["datatype"])
    if kind is not None and kind is not np.object_ and values.dtype != np.dtype(kind):
        values = values.astype(kind)
    shape = [int(size) for size in declared["shape"]]
    if len(shape) == values.ndim + 1 and shape[-1] in (1, -1):
        return values[..., None]
    if len(shape) == values.ndim - 1 and values.shape[-1] == 1:
        return values[..., 0]
    return values


class _Http:
    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    def metadata(self, model: str) -> Any:
        return self._call(f"/v2/models/{urllib.parse.quote(model, safe='')}", None)

    def infer(self, model: str, batch: Batch) -> dict[str, np.ndarray]:
        inputs = [
            {"name": name, "datatype": kserve_type(values), "shape": list(values.shape), "data": _plain(values)}
            for name, values in batch.items()
        ]
        answer = self._call(f"/v2/models/{urllib.parse.quote(model, safe='')}/infer", {"inputs": inputs})
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
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(2000).decode(errors="replace")
            raise InvalidInput(f"{self._url}{path} answered {error.code}: {text[:500]}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"no answer from {self._url}{path}: {getattr(error, 'reason', error)}") from None


class _Grpc:
    def __init__(self, address: str, timeout_s: float) -> None:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        self._address, self._timeout_s, self._error, self._messages = address, timeout_s, grpc.RpcError, service_pb2
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))

    def metadata(self, model: str) -> Any:
        answer = self._call(self._stub.ModelMetadata, self._messages.ModelMetadataRequest(name=model))
        return {
            what: [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in entries]
            for what, entries in (("inputs", answer.inputs), ("outputs", answer.outputs))
        }

    def infer(self, model: str, batch: Batch) -> dict[str, np.ndarray]:
        from loadtest.bodies import grpc_request
        from loadtest.rows import Tensor

        tensors = [Tensor(name, kserve_type(values), np.ascontiguousarray(values)) for name, values in batch.items()]
        answer = self._call(self._stub.ModelInfer, grpc_request(model, tensors))
        return {
            entry.name: np.frombuffer(raw, KSERVE_TYPES[entry.datatype]).reshape(list(entry.shape))
            for entry, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except self._error as error:
            text = f"grpc://{self._address} answered {error.code().name}: {error.details()}"
            if error.code().name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise Unavailable(text) from None
            raise InvalidInput(text) from None


def _plain(values: np.ndarray) -> list[Any]:
    flat = values.reshape(-1).tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in flat]
