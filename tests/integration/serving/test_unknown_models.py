"""A request for an unknown model is answered with the names of the models that its caller is allowed to see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.integration.serving.guarded import SERVICE, Process, bearer, call, serve, write_access
from tests.integration.serving.http_calls import ask

pytestmark = pytest.mark.slow

TOKENS: list[dict[str, Any]] = [
    {"name": "all", "roles": ["predict", "read", "admin"]},
    {"name": "ours", "roles": ["predict", "read", "admin"], "models": ["our-*"]},
    {"name": "nothing", "roles": ["predict", "read", "admin"], "models": ["their-?"]},
]
SAID = "Request for unknown model: 'our-x' is not found"
INPUT = {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1]}
HTTP_CALLS = [
    ("GET", "/v2/models/our-x", None),
    ("GET", "/v2/models/our-x/config", None),
    ("GET", "/v2/models/our-x/stats", None),
    ("GET", "/v1/models/our-x", None),
    ("POST", "/v2/models/our-x/infer", {"inputs": [INPUT]}),
    ("POST", "/v2/models/our-x/versions/1/infer", {"inputs": [INPUT]}),
    ("POST", "/v1/models/our-x:predict", {"instances": [{"user": 1}]}),
    ("GET", "/v2/repository/models/our-x/snapshots", None),
    ("POST", "/v2/repository/models/our-x/rollback", {}),
]


@pytest.fixture(scope="module")
def guarded(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    place = tmp_path_factory.mktemp("unknown")
    for name in ("our-b", "our-a", "secret"):
        shutil.copytree(version_dir, place / "models" / name / "1")
    access = write_access(place / "access.yaml", TOKENS)
    with serve(place / "models", place, "--access-file", str(access)) as process:
        yield process


@pytest.mark.parametrize(
    ("token", "names"),
    [("all", "; there are 'our-a', 'our-b', 'secret'"), ("ours", "; there are 'our-a', 'our-b'"), ("nothing", None)],
)
def test_over_http(guarded: Process, token: str, names: str | None) -> None:
    for method, path, body in HTTP_CALLS:
        # Who is not allowed to ask for a name at all is refused before anything is looked up.
        path = path.replace("our-x", "their-x") if names is None else path
        reply = ask(guarded.port, method, path, body, bearer(token))
        said = SAID.replace("our-x", "their-x") if names is None else SAID + names
        assert (reply.status, reply.json) == (404, {"error": said}), path
        assert "emberline-known-models" not in reply.headers


@pytest.mark.parametrize(("token", "names"), [("all", "'our-a', 'our-b', 'secret'"), ("ours", "'our-a', 'our-b'")])
def test_over_grpc(guarded: Process, token: str, names: str) -> None:
    expected = (grpc.StatusCode.NOT_FOUND, f"{SAID}; there are {names}")
    assert call(guarded.grpc, "ModelMetadata", service_pb2.ModelMetadataRequest(name="our-x"), token) == expected
    assert call(guarded.grpc, "ModelConfig", service_pb2.ModelConfigRequest(name="our-x"), token) == expected
    infer = service_pb2.ModelInferRequest(model_name="our-x")
    assert call(guarded.grpc, "ModelInfer", infer, token) == expected
    with grpc.insecure_channel(guarded.grpc) as channel:
        answers = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")(
            iter([infer.SerializeToString()]), timeout=30, metadata=[("authorization", f"Bearer {token}")]
        )
        (answer,) = [service_pb2.ModelStreamInferResponse.FromString(data) for data in answers]
    assert answer.error_message == expected[1]


def test_a_refusal_by_scope_names_no_model(guarded: Process) -> None:
    reply = ask(guarded.port, "GET", "/v2/models/secret", None, bearer("ours"))
    assert reply.status == 403
    assert "our-a" not in json.dumps(reply.json)
