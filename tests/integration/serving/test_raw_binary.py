"""A body without any JSON (Inference-Header-Content-Length: 0)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from serving import Server, ServerConfig
from tests.integration.serving.http_calls import Reply, ask
from tests.integration.serving.identity_models import write_identity


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("raw")
    write_identity(folder / "models", "free", {"A": ("FP32", [-1])})
    write_identity(folder / "models", "batched", {"A": ("INT64", [4])}, max_batch=8)
    write_identity(folder / "models", "text", {"A": ("BYTES", [1])}, max_batch=8)
    write_identity(folder / "models", "two", {"A": ("FP32", [2]), "B": ("FP32", [2])})
    write_identity(folder / "models", "image", {"A": ("FP32", [-1, -1])})
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=folder / "models", store=folder / "store", open_admin=True, **ports)
    running = Server(config).start()
    yield running
    running.stop()


def raw(server: Server, model: str, body: bytes) -> Reply:
    headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    return ask(server.http_port, "POST", f"/v2/models/{model}/infer", body, headers)


@pytest.mark.parametrize(
    ("model", "body", "shape"),
    [
        ("free", np.arange(5, dtype=np.float32).tobytes(), [5]),
        ("batched", np.arange(4, dtype=np.int64).tobytes(), [1, 4]),
    ],
)
def test_the_body_is_the_input_and_the_answer_is_binary(
    server: Server, model: str, body: bytes, shape: list[int]
) -> None:
    answer = raw(server, model, body)
    assert answer.status == 200, answer
    length = int(answer.headers["inference-header-content-length"])
    assert answer.content[length:] == body
    assert f'"shape":{shape}'.replace(" ", "").encode() in answer.content[:length]


def test_a_string_has_no_length_before_it(server: Server) -> None:
    answer = raw(server, "text", b"a string of its own")
    length = int(answer.headers["inference-header-content-length"])
    assert answer.content[length:] == (19).to_bytes(4, "little") + b"a string of its own"


@pytest.mark.parametrize(
    ("model", "body", "said"),
    [
        ("two", bytes(8), "2; send JSON"),
        ("batched", bytes(31), "needs 32 bytes"),
        ("free", bytes(7), "needs 4 bytes"),
        ("image", bytes(8), "are free"),
    ],
)
def test_what_cannot_be_one_input_is_400(server: Server, model: str, body: bytes, said: str) -> None:
    answer = raw(server, model, body)
    assert answer.status == 400
    assert said.split(";")[0] in str(answer.content)
