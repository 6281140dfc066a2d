"""Asks a server that speaks KServe v2, over HTTP or gRPC: Triton, KServe, TorchServe, or one of ours."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emberline.proving.batches import KSERVE_TYPES, Batch, merged_outputs, rows_of
from emberline.proving.transports import Access, Grpc, Http, Refused
from storage.errors import ConfigError, InvalidInput
from storage.features.strict_model import did_you_mean


@dataclass(frozen=True)
class Names:
    """The old server's names for our inputs and outputs, where they differ."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


class OldServer:
    """A model of a server. address: HOST:PORT, http://HOST:PORT or https://HOST:PORT for HTTP, grpc://HOST:PORT or
    grpcs://HOST:PORT for gRPC.

    batch_rows: rows that are sent at once. Raises ConfigError for another address and for unknown names, and the errors
    of `transports.Http`.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        names: Names | None = None,
        batch_rows: int = 64,
        timeout_s: float = 30.0,
        access: Access | None = None,
    ) -> None:
        self.address, parts = read_address(address)
        self.model, access = model, access or Access()
        self._names = names or Names()
        self._batch_rows = batch_rows
        self._transport: Http | Grpc
        if parts.scheme in ("grpc", "grpcs"):
            self._transport = Grpc(parts.netloc, timeout_s, access, parts.scheme == "grpcs")
        else:
            self._transport = Http(self.address, timeout_s, access)
        metadata = self._transport.metadata(model)
        try:
            self._inputs = {entry["name"]: entry for entry in metadata["inputs"]}
            outputs = [entry["name"] for entry in metadata["outputs"]]
        except (KeyError, TypeError) as error:
            raise InvalidInput(
                f"{self.address}: not a model's metadata of KServe v2 ({error!r})", field="OLD"
            ) from None
        for what, given, known in (
            ("input", self._names.inputs, list(self._inputs)),
            ("output", self._names.outputs, outputs),
        ):
            for name in given.values() if known else ():
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise ConfigError(f"the old server has no {what} {name!r}{hint}; it has {known}", field=what)

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
        except Refused as error:
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
        shaped = {name: as_declared(values, self._inputs.get(name)) for name, values in sent.items()}
        found = self._transport.infer(self.model, shaped)
        missing = [theirs for theirs in self._names.outputs.values() if theirs not in found]
        if missing:
            raise InvalidInput(f"the old server gives no output {missing[0]!r}, but {list(found)}", field="output")
        paired = {name: found[theirs] for name, theirs in self._names.outputs.items()}
        rest = {name: found[name] for name in found if name not in self._names.outputs.values()}
        return {**rest, **paired}


def read_address(address: str) -> tuple[str, urllib.parse.SplitResult]:
    """Returns an address with its scheme, and its parts. Raises ConfigError naming what is expected."""
    text = (address if "://" in address else f"http://{address}").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(text)
        is_good = parts.scheme in ("http", "https", "grpc", "grpcs") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path:
        raise ConfigError(
            f"{address!r}: expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT (https://, grpcs:// over TLS)",
            field="OLD",
        )
    return text, parts


def _converted(values: np.ndarray, kind: np.dtype[Any], declared: Mapping[str, Any]) -> np.ndarray:
    """Returns values in another type. Raises InvalidInput where whole numbers would become others."""
    kinds = {values.dtype.kind, kind.kind}
    with np.errstate(invalid="ignore", over="ignore"):
        found = values.astype(kind)
        # Also of ids that are sent as floats: float32 holds those up to 2^24.
        back = found.astype(values.dtype) if kind.kind == "f" else found
    if kinds <= set("iuf") and kinds & set("iu") and not np.array_equal(back, values):
        wrong = values[back != values].reshape(-1)[0]
        name, datatype = declared["name"], declared["datatype"]
        raise InvalidInput(f"input {name!r}: the old server takes {datatype}, which cannot hold {wrong}", field=name)
    return found


def as_declared(values: np.ndarray, declared: Mapping[str, Any] | None) -> np.ndarray:
    """Returns an input in the type and the shape that the server declares."""
    if declared is None:
        return values
    kind = KSERVE_TYPES.get(declared["datatype"])
    if kind is not None and kind is not np.object_ and values.dtype != np.dtype(kind):
        values = _converted(values, np.dtype(kind), declared)
    shape = [int(size) for size in declared["shape"]]
    if len(shape) == values.ndim + 1 and shape[-1] in (1, -1):
        return values[..., None]
    if len(shape) == values.ndim - 1 and values.shape[-1] == 1:
        return values[..., 0]
    return values
