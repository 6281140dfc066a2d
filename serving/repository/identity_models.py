"""Serves models with `backend: "identity"`.

They have nothing to publish, load or update; a config.pbtxt says what they take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from serving.engine.statistics import ModelStatistics
from serving.model_config.pbtxt import data_type_name, read_proto, refuse_unknown
from serving.model_config.queue_settings import MAX_BATCH_SIZE, check_range, config_error
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature, OutputSignature, TensorSignature
from serving.repository.identity import IdentityModel
from serving.updates.report import VersionEntry
from storage.checkpoint.versions import is_version
from storage.errors import ConfigError, EmberlineError, NotFound, Unavailable

logger = logging.getLogger("emberline.serving")

BACKEND = "identity"

_FIELDS = ("name", "backend", "max_batch_size", "input", "output", "version_policy", "instance_group", "parameters")
# Triton's identity backend has this parameter too.
_DELAY = "execute_delay_ms"
_MAX_DELAY_MS = 60_000


class IdentityEndpoint(IdentityModel):
    """An identity model that is served, with what an Endpoint reports itself."""

    def __init__(self, signature: ModelSignature, version: int, delay_s: float, proto: Any) -> None:
        super().__init__(signature, version, delay_s, self._note)
        self.name = signature.model
        self.version = str(version)
        #: Its ModelConfig, as the server reports it.
        self.proto = proto
        self.statistics = ModelStatistics()
        self.is_replaced = False

    def answers(self, version: str) -> bool:
        """See Model."""
        return not self.is_replaced

    @property
    def arms(self) -> dict[str, ModelStatistics]:
        """See Endpoint."""
        return {"main": self.statistics}

    @property
    def queued(self) -> int:
        """Always 0, see Endpoint: nothing waits."""
        return 0

    def _note(self, rows: int, took_ns: int) -> None:
        """Counts a request as a batch of its own."""
        self.statistics.executed(rows=rows, queue_ns=[0], input_ns=0, infer_ns=took_ns, output_ns=0)
        self.statistics.finished(took_ns)


class IdentityModels:
    """The identity models of a repository by name.

    Any thread may read; changes are made under the repository's lock.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # Replaced as a whole. A model is None when it is not loaded, for the reason beside it.
        self._models: dict[str, tuple[IdentityEndpoint | None, str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._models

    @property
    def names(self) -> list[str]:
        """Names of all identity models."""
        return list(self._models)

    @property
    def served(self) -> list[IdentityEndpoint]:
        """The models that answer requests."""
        return [endpoint for endpoint, _ in self._models.values() if endpoint is not None]

    def is_one(self, name: str) -> bool:
        """Returns whether the folder of that name holds an identity model; an unreadable one does not count."""
        try:
            return str(read_proto(self._root / name).backend) == BACKEND
        except (ConfigError, OSError):
            return False

    def expect(self, names: Iterable[str]) -> None:
        """Records models that will be loaded."""
        for name in names:
            self._put(name, None, "it is being loaded")

    def load(self, name: str) -> None:
        """Reads the configuration of a model, which answers from now on.

        Raises Unavailable; then the model answers as before, if it did.
        """
        before = self._models.get(name, (None, ""))[0]
        try:
            endpoint = _read(self._root / name)
        except (EmberlineError, OSError) as error:
            self._put(name, before, str(error))
            raise Unavailable(f"model {name!r} is not loaded: {error}") from error
        if before is not None and before.proto == endpoint.proto and before.version == endpoint.version:
            endpoint = before
        self._put(name, endpoint, "")

    def load_all(self, names: Iterable[str]) -> None:
        """Loads several models like `load`; one that fails is UNAVAILABLE with the reason."""
        for name in names:
            try:
                self.load(name)
            except Unavailable as error:
                logger.error("%s", error)

    def unload(self, name: str) -> None:
        """Takes no more requests until it is loaded again."""
        self._put(name, None, "unloaded")

    def forget(self, name: str) -> None:
        """Forgets a model whose folder has gone."""
        self._put(name, None, "")
        self._models = {key: value for key, value in self._models.items() if key != name}

    def get(self, name: str, version: str) -> IdentityEndpoint:
        """Returns the model. Raises NotFound for another version, Unavailable with the reason."""
        endpoint, reason = self._models.get(name, (None, ""))
        if endpoint is None and not reason:  # it has left the repository just now
            raise NotFound(f"Request for unknown model: {name[:200]!r} is not found")
        if endpoint is None:
            raise Unavailable(f"model {name!r} is not ready: {reason}")
        if version not in ("", endpoint.version):
            raise NotFound(f"Request for unknown model: {name!r} version {version[:40]} is not found")
        return endpoint

    def entries(self) -> list[VersionEntry]:
        """See ModelRepository.index."""
        return [
            VersionEntry(name, endpoint.version, "READY", reason)
            if endpoint is not None
            else VersionEntry(name, "", "UNAVAILABLE", reason)
            for name, (endpoint, reason) in self._models.items()
        ]

    def _put(self, name: str, endpoint: IdentityEndpoint | None, reason: str) -> None:
        before = self._models.get(name, (None, ""))[0]
        if before is not None and before is not endpoint:
            before.is_replaced = True
        self._models = {**self._models, name: (endpoint, reason)}


def _read(folder: Path) -> IdentityEndpoint:
    proto = read_proto(folder)
    refuse_unknown(proto, _FIELDS)
    if proto.backend != BACKEND:
        raise config_error("backend", f"is {proto.backend!r} now, and was {BACKEND!r}; restart the server")
    if proto.name not in ("", folder.name):
        raise config_error("name", f"is {proto.name!r}, but the folder is called {folder.name!r}")
    check_range("max_batch_size", proto.max_batch_size, 0, MAX_BATCH_SIZE)
    if not proto.input or len(proto.input) != len(proto.output):
        raise config_error(
            "output", f"has {len(proto.output)} entries for {len(proto.input)} inputs, expected one each"
        )
    inputs: list[TensorSignature] = []
    outputs: list[OutputSignature] = []
    for index, (given, result) in enumerate(zip(proto.input, proto.output, strict=True)):
        dtype, dims = data_type_name(given.data_type), tuple(given.dims)
        if dtype not in WIRE_TYPES:
            raise config_error(f"input[{index}].data_type", f"is {dtype}, expected TYPE_INT64 and the like")
        if (data_type_name(result.data_type), tuple(result.dims)) != (dtype, dims):
            raise config_error(f"output[{index}]", f"is not what input[{index}] is: {dtype} {list(dims)}")
        if not given.name or not result.name or not dims or any(size < 1 and size != -1 for size in dims):
            raise config_error(f"input[{index}]", "needs a name, and dims of 1 or more, or -1")
        inputs.append(TensorSignature(given.name, dtype, dims, False, given.name, "value"))
        outputs.append(OutputSignature(result.name, dtype, dims))
    for what, entries in (("input", inputs), ("output", outputs)):
        names = [entry.name for entry in entries]
        if len(set(names)) < len(names):
            raise config_error(what, "two entries have one name")
    signature = ModelSignature(folder.name, [], outputs, proto.max_batch_size, tensors=inputs)
    found = sorted(int(entry.name) for entry in folder.iterdir() if is_version(entry.name))
    version = found[-1] if found else 1
    proto.name = folder.name
    if not proto.HasField("version_policy"):
        proto.version_policy.latest.num_versions = 1
    return IdentityEndpoint(signature, version, _delay_s(proto), proto)


def _delay_s(proto: Any) -> float:
    for key in proto.parameters:
        if key != _DELAY:
            raise config_error("parameters", f"{key[:100]!r} is not known to {BACKEND}; expected {_DELAY!r}")
    text = proto.parameters[_DELAY].string_value if _DELAY in proto.parameters else "0"
    if not (text.isdecimal() and text.isascii() and len(text) < 10 and int(text) <= _MAX_DELAY_MS):
        raise config_error(f"parameters.{_DELAY}", f"is {text[:40]!r}, expected 0 to {_MAX_DELAY_MS}")
    return int(text) / 1000
