"""The decoders that take bytes from outside: each as a function of bytes that may raise EmberlineError only."""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from serving.http.model_control import VERBS
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import read_model_config
from serving.protocol.columns import to_columns
from serving.protocol.json_text import parse_object
from serving.protocol.proto_tensors import decode_proto_request, encode_proto_response, proto_parameters
from serving.protocol.regions import RegionPart
from serving.protocol.routing import routing_of_parameters
from serving.protocol.signature import ModelSignature, OutputSignature
from serving.protocol.tensors import InferRequest
from serving.protocol.v1 import decode_predict, encode_predict
from serving.protocol.v2 import decode_request, encode_response, read_header
from serving.security.access_file import parse_access_file
from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.manifest import Manifest
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.tensors import TensorFile
from storage.checkpoint.weight_difference import DIFFERENCE, read_difference, write_difference
from storage.errors import EmberlineError, InvalidInput
from storage.features import FeatureEngine, FeatureSpec
from tests.fuzz import valid
from tests.fuzz.messages import mutate_message
from tests.fuzz.mutations import dump, mutate_bytes, mutate_json
from tests.integration.serving.conftest import SPEC

# Number of bytes at the front of an input that hold the length of the JSON before the tensors of a v2 request.
LENGTH_BYTES = 3
_ALL_JSON = 256**LENGTH_BYTES - 1
_MAX_BATCH = 64
_HEX = "0123456789abcdef"


@dataclass(frozen=True)
class Entry:
    """One decoder and its inputs."""

    name: str
    #: Decodes bytes; raises EmberlineError for what is wrong, and no other error.
    call: Callable[[bytes], None]
    #: Returns a good input.
    make: Callable[[Random], bytes]
    #: Returns an input with one change.
    mutate: Callable[[Random, bytes], bytes]


class _OneRegion:
    """One region of shared memory, `r`, of sixteen bytes."""

    is_stale = False
    is_empty = False
    max_read = 64

    def check(self, part: RegionPart) -> None:
        """Implements Regions.check."""
        if part.region != "r" or part.offset + part.size > 16:
            raise InvalidInput("no such part", field="shared_memory_region")

    async def refresh(self) -> None:
        """Does nothing: the region never changes."""

    def read(self, part: RegionPart) -> memoryview:
        """Implements Regions.read."""
        self.check(part)
        return memoryview(bytes(part.size))

    def write(self, part: RegionPart, data: bytes) -> None:
        """Implements Regions.write."""
        if part.region != "r" or len(data) > part.size:
            raise InvalidInput("no such part", field="shared_memory_region")


_SPEC = FeatureSpec.model_validate(SPEC)
_SIGNATURE = ModelSignature(
    "ranker",
    _SPEC.inputs,
    [OutputSignature("score", "FP32", (1,)), OutputSignature("like", "FP32", (1,))],
    _MAX_BATCH,
)
# Released before the interpreter exits: native code complains about objects that outlive it.
_ENGINES = [FeatureEngine(_SPEC)]
atexit.register(_ENGINES.clear)
_REGIONS = _OneRegion()
_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-config-")) / "ranker"


def run_guarded(entry: Entry, data: bytes) -> str:
    """Runs one input; returns "taken", or the name of the error that it was refused with. Raises all other errors."""
    try:
        entry.call(data)
    except EmberlineError as error:
        return type(error).__name__
    return "taken"


# inference


def _v2(data: bytes) -> None:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    header = read_header(data[LENGTH_BYTES:], None if length == _ALL_JSON else length)
    routing_of_parameters(header.parameters)
    request = decode_request(_SIGNATURE, header, _REGIONS)
    outputs = _answers(request)
    encode_response(_SIGNATURE, "1", request, outputs, {"snapshot": "x"}, _REGIONS)


def _proto(data: bytes) -> None:
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    given = proto_parameters(message)
    routing_of_parameters(given)
    request = decode_proto_request(_SIGNATURE, message, given, _REGIONS)
    encode_proto_response(_SIGNATURE, "1", request, _answers(request), {"snapshot": "x"}, _REGIONS)


def _predict(data: bytes) -> None:
    columns, batch, by_rows = decode_predict(_SIGNATURE, data)
    assert 0 <= batch <= _MAX_BATCH
    features = _ENGINES[0].run(columns, batch)
    assert all(len(ids.offsets) == batch + 1 for ids in features.ids.values())
    encode_predict(_SIGNATURE, [np.zeros((batch, 1), np.float32)] * 2, by_rows)


def _answers(request: InferRequest) -> list[np.ndarray]:
    """Runs the decoded request through the native features, and returns an answer of its batch size."""
    columns, batch = to_columns(_SIGNATURE, request.tensors)
    assert 0 <= batch <= _MAX_BATCH
    features = _ENGINES[0].run(columns, batch)
    assert all(len(ids.offsets) == batch + 1 for ids in features.ids.values())
    return [np.zeros((batch, 1), np.float32)] * 2


def _make_v2(rng: Random) -> bytes:
    request = valid.v2_request(rng, region="r")
    text = json.dumps(request.header).encode()
    length = len(text) if request.tail else _ALL_JSON
    return length.to_bytes(LENGTH_BYTES, "little") + text + request.tail


def _mutate_v2(rng: Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    body = data[LENGTH_BYTES:]
    end = len(body) if length == _ALL_JSON else length
    text, tail = body[:end], body[end:]
    kind = rng.random()
    if kind < 0.6:
        text = _mutate_text(rng, text)
    elif kind < 0.8:
        tail = mutate_bytes(rng, tail)
    else:
        return mutate_bytes(rng, data)
    end = len(text) if length != _ALL_JSON or tail else _ALL_JSON
    if rng.random() < 0.05:
        end = rng.choice((0, 1, max(0, len(text) - 1), len(text) + 1, len(text) + len(tail)))
    return min(end, _ALL_JSON).to_bytes(LENGTH_BYTES, "little") + text + tail


def _mutate_text(rng: Random, text: bytes) -> bytes:
    if rng.random() < 0.15:
        return mutate_bytes(rng, text)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, text)
    return dump(rng, mutate_json(rng, tree))


def _mutate_proto(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return mutate_bytes(rng, data)
    mutate_message(rng, message)
    return bytes(message.SerializeToString())


# what is published


def _manifest(data: bytes) -> None:
    Manifest.from_bytes(data)


def _delta_manifest(data: bytes) -> None:
    DeltaManifest.from_bytes(data)


def _hex(rng: Random, count: int) -> str:
    return "".join(rng.choice(_HEX) for _ in range(count))


def _make_manifest(rng: Random) -> bytes:
    shard = "tables/user.00000-of-00001.safetensors"
    paths = ("dense.pt2", "dense.safetensors", "features.json", "golden.safetensors", shard)
    entry = {"name": "dense", "kind": "dense", "source": "dense", "shape": [-1, 2], "dtype": "FP32", "placeholder": "p"}
    content: dict[str, Any] = {
        "format": "emberline-checkpoint-1",
        "snapshot": _hex(rng, 32),
        "parent": None,
        "equals": None,
        "descends_from": [],
        "version": 1,
        "created_unix": 1,
        "created_unix_ms": 1000,
        "max_batch_size": 64,
        "files": [{"path": path, "size": 10, "sha256": _hex(rng, 64)} for path in paths],
        "tables": [{"name": "user", "dim": 8, "row_type": "fp32", "rows": 5, "shards": [shard], "fingerprint": ""}],
        "graph": {
            "inputs": [entry],
            "outputs": [{"name": "s", "shape": [-1, 1], "dtype": "FP32"}],
            "torch_version": "2",
        },
        "dense_fingerprint": "",
        "golden": {"batch": 4, "tolerance": 1e-5},
        "metadata": {"note": "x"},
    }
    return _signed(content)


def _make_delta_manifest(rng: Random) -> bytes:
    base, shard = _hex(rng, 32), "tables/user.00000-of-00001.safetensors"
    paths = ("dense.safetensors", "golden.safetensors", "removed.safetensors", shard)
    table = {"name": "user", "dim": 8, "row_type": "fp32", "rows": 5, "removed": 0, "shards": [shard]}
    content: dict[str, Any] = {
        "format": "emberline-delta-1",
        "snapshot": _hex(rng, 32),
        "parent": base,
        "applies_to": [base],
        "version": 1,
        "base": base,
        "sequence": 1,
        "from_sequence": 0,
        "created_unix_ms": 1000,
        "files": [{"path": path, "size": 10, "sha256": _hex(rng, 64)} for path in paths],
        "tables": [{**table, "fingerprint": _hex(rng, 16)}],
        "dense_fingerprint": _hex(rng, 16),
        "golden": {"batch": 4, "tolerance": 1e-5},
        "metadata": {},
    }
    return _signed(content)


def _signed(content: Any) -> bytes:
    return canonical_json({**content, "digest": digest_of(content)})


def _mutate_manifest(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    try:
        content = mutate_json(rng, json.loads(data))
        # The digest is right, so that the code behind that check is reached.
        return _signed(content) if isinstance(content, dict) and rng.random() < 0.7 else dump(rng, content)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)


def _tensors(data: bytes) -> None:
    for array in TensorFile.from_bytes("golden.safetensors", data).arrays.values():
        array.tobytes()


def _make_tensors(rng: Random) -> bytes:
    header = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
        "c": {"dtype": "BOOL", "shape": [0], "data_offsets": [40, 40]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + rng.randbytes(40)


_WEIGHTS: dict[str, np.ndarray] = {
    "state.a": np.random.default_rng(0).standard_normal((30, 20), np.float32),
    "state.b": np.arange(999, dtype=np.uint16),
    "constant.c": np.zeros(16, np.bool_),
}


def _difference(data: bytes) -> None:
    for name, array in read_difference(data, _WEIGHTS).items():
        assert (array.dtype, array.shape) == (_WEIGHTS[name].dtype, _WEIGHTS[name].shape)


def _make_difference(rng: Random) -> bytes:
    after = {name: array.copy() for name, array in _WEIGHTS.items()}
    after["constant.c"][rng.randrange(16)] = True
    for array in (after["state.a"].reshape(-1), after["state.b"]):
        array[rng.randrange(len(array)) :: rng.choice((1, 7, 100))] += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DIFFERENCE
        written = write_difference(path, _WEIGHTS, after)
        return _make_tensors(rng) if written is None else path.read_bytes()


def _mutate_tensors(rng: Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.4 or length > len(data):
        return mutate_bytes(rng, data)
    text = _mutate_text(rng, data[8 : 8 + length])
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _features(data: bytes) -> None:
    FeatureEngine(FeatureSpec.parse(data))


# what operators write


def _config(data: bytes) -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER / "config.pbtxt").write_bytes(data)
    read_model_config(_FOLDER)


_CONFIG = b"""name: "ranker" backend: "emberline" max_batch_size: 64
input [ { name: "user" data_type: TYPE_INT64 dims: [ 1 ] optional: true } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 8, 16 ] max_queue_delay_microseconds: 100 priority_levels: 2
  default_priority_level: 1 default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5
  allow_timeout_override: true max_queue_size: 9 } priority_queue_policy { key: 1 value { max_queue_size: 3 } } }
version_policy { specific { versions: [ 1, 2 ] } }
parameters { key: "dram_bytes" value { string_value: "512MiB" } }
parameters { key: "cpus" value { string_value: "0-1" } }
parameters { key: "timeout_ms" value { string_value: "1e3" } }
model_warmup [ { name: "w" batch_size: 4 count: 1
  inputs { key: "user" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } } ]
"""
_CONFIG_WORDS = tuple(
    word.encode()
    for word in (
        *(
            "{ }",
            "[ ]",
            "-1 ",
            "9999999999 ",
            "inf ",
            '"\\377" ',
            "# x\n",
            "TYPE_STRING ",
            "KIND_GPU ",
            "nan ",
            "0x10 ",
        ),
        *("latest { num_versions: 0 } ", "all { } ", "optimization { } ", "sequence_batching { } ", "true ", '"" '),
        *("backend: 'identity' ", "timeout_action: REJECT ", 'string_value: "nan" ', 'key: "share" ', "dims: -1 "),
    )
)


def _options(data: bytes) -> None:
    pairs = [line.partition("=") for line in data.decode("utf-8", "replace").split("\n")]
    ModelOptions.parse({key: value for key, _, value in pairs})


def _access(data: bytes) -> None:
    parse_access_file(data, Path("access.yaml"))


def _body(data: bytes) -> None:
    verb = sorted(VERBS)[data[0] % len(VERBS)] if data else "load"
    VERBS[verb][0].parse(parse_object(data[1:], what="the request"))


_BODIES = (
    *(
        {"to": "1.0"},
        {"steps": 2},
        {"fraction": 0.5, "to": ""},
        {"promote": True},
        {"dram_bytes": "2GiB"},
        {"count": 4},
    ),
    *({"version": 3, "inputs": ["a"]}, {"parameters": {"unload_dependents": True}}, {"parameters": {"config": "{}"}}),
)
_ACCESS = {
    "anonymous": {"roles": ["predict"], "models": ["*"]},
    "tokens": [{"name": "ci", "sha256": "ab" * 32, "roles": ["read"], "models": ["a*"], "expires": "2030-01-01"}],
}
_OPTION_LINES = (
    b"dram_bytes=512MiB\ntimeout_ms=5\ncpus=0-1,1\npick=key\nrunners=eager,script\nshare=2\nlive_guard=false"
)
_OPTION_WORDS = (b"=", b"\n", b"nan", b"inf", b"-1", b"1e400", b"9" * 30, b"0-9999", b"TiB", b"true", b"\xc2\xb2")


def entries() -> list[Entry]:
    """Returns every decoder."""
    return [
        Entry("v2", _v2, _make_v2, _mutate_v2),
        Entry("predict", _predict, lambda rng: json.dumps(valid.v1_request(rng)).encode(), _mutate_text),
        Entry("proto", _proto, lambda rng: bytes(valid.proto_request(rng).SerializeToString()), _mutate_proto),
        Entry("manifest", _manifest, _make_manifest, _mutate_manifest),
        Entry("delta", _delta_manifest, _make_delta_manifest, _mutate_manifest),
        Entry("tensors", _tensors, _make_tensors, _mutate_tensors),
        Entry("difference", _difference, _make_difference, _mutate_tensors),
        Entry("features", _features, lambda _: json.dumps(SPEC).encode(), _mutate_text),
        Entry("config", _config, lambda _: _CONFIG, lambda rng, data: mutate_bytes(rng, data, _CONFIG_WORDS)),
        Entry("options", _options, lambda _: _OPTION_LINES, lambda rng, data: mutate_bytes(rng, data, _OPTION_WORDS)),
        Entry("access", _access, lambda _: yaml.safe_dump(_ACCESS).encode(), mutate_bytes),
        Entry(
            "body",
            _body,
            lambda rng: bytes([rng.randrange(256)]) + json.dumps(rng.choice(_BODIES)).encode(),
            lambda rng, data: data[:1] + _mutate_text(rng, data[1:]),
        ),
    ]
