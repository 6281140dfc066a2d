"""Loading, refusing, overload, deadlines, cancelled clients, stopping."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving import Server, ServerConfig
from serving.protocol.v1 import decode_predict
from storage.errors import ConfigError, DeadlineExceeded, NotFound, Overloaded, Unavailable
from tests.integration.serving.conftest import append_config, loaded_model

ROOT = Path(__file__).parents[3]
BODY = b'{"instances": [{"user": 1, "item": 2, "price": [0, 1], "history": [1, 2], "tags": ["war"]}]}'


@pytest.fixture
def running(start_server: Callable[..., Server], repository: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(**options: Any) -> Server:
        started.append(start_server(repository, tmp_path / "store", **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def states(server: Server) -> list[tuple[str, str, str]]:
    return [(entry.model, entry.version, entry.state) for entry in server.repository.index()]


def test_a_changed_byte_makes_the_model_unavailable_and_the_server_stays_up(
    running: Callable[..., Server], repository: Path, published: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(repository / "ranker", repository / "good")
    (repository / "good" / "config.pbtxt").unlink()
    table = next((repository / "ranker" / "1" / "tables").iterdir())
    data = bytearray(table.read_bytes())
    data[-1] ^= 1
    table.write_bytes(data)
    with caplog.at_level(logging.INFO, "emberline.serving"):
        server = running()
    assert states(server) == [("good", "1", "READY"), ("ranker", "1", "UNAVAILABLE")]
    assert table.name in server.repository.index()[1].reason
    assert any("UNAVAILABLE" in record.message and table.name in record.message for record in caplog.records)
    assert not server.repository.is_ready()
    assert server.repository.is_model_ready("good")
    with pytest.raises(Unavailable, match="sha256"):
        server.repository.get("ranker")


def test_scores_that_are_not_the_trainers_are_refused_and_the_version_before_is_served(
    running: Callable[..., Server], repository: Path, published: Any
) -> None:
    published.publish(repository / "ranker", wrong_by=1e-3)
    server = running()
    assert states(server) == [("ranker", "1", "READY"), ("ranker", "2", "UNAVAILABLE")]
    assert "golden requests: output" in server.repository.index()[1].reason
    assert server.repository.is_ready()
    assert server.repository.get("ranker").version == "1"
    with pytest.raises(Unavailable, match="golden requests"):
        server.repository.get("ranker", "2")
    with pytest.raises(NotFound):
        server.repository.get("ranker", "3")


def test_the_newest_version_is_served_and_other_folders_are_not_looked_at(
    running: Callable[..., Server], repository: Path, published: Any, tmp_path: Path
) -> None:
    published.publish(repository / "ranker", version=10)
    for name in (".publish-x", "notes", "99x", "007"):
        (repository / "ranker" / name).mkdir()
    (repository / ".hidden").mkdir()
    (tmp_path / "store" / "ranker" / "1").mkdir(parents=True)
    server = running()
    assert states(server) == [("ranker", "10", "READY")]
    assert sorted(p.name for p in (tmp_path / "store" / "ranker").iterdir()) == [
        "10",
        "LOCK",
        "state.json",
        "state.json.copy",
        "versions",
    ]


def test_a_version_policy_serves_several(running: Callable[..., Server], repository: Path, published: Any) -> None:
    published.publish(repository / "ranker")
    append_config(repository, "version_policy { all { } }\n")
    server = running()
    assert states(server) == [("ranker", "1", "READY"), ("ranker", "2", "READY")]
    newest = loaded_model(server)
    assert newest.version == "2"
    assert loaded_model(server, "1").snapshot != newest.snapshot


def test_a_bad_config_is_a_reason_in_the_index(running: Callable[..., Server], repository: Path) -> None:
    append_config(repository, 'parameters { key: "dram_byts" value { string_value: "1" } }\n')
    assert "did you mean 'dram_bytes'" in running().repository.index()[0].reason


def test_a_small_dram_budget_gives_the_same_scores(
    running: Callable[..., Server], repository: Path, published: Any
) -> None:
    append_config(repository, 'parameters { key: "dram_bytes" value { string_value: "2KiB" } }\n')
    model = loaded_model(running())
    rows = published.random_rows(64, 23)
    expected = published.score(rows)["score"]
    for _ in range(5):
        columns, batch, _ = decode_predict(model.signature, __import__("json").dumps({"instances": rows}).encode())
        result = asyncio.run(model.infer(columns, batch))
        assert abs(result.outputs[0] - expected).max() <= 1e-6
        assert result.unresolved == 0
    assert model.store_stats().hits["ssd"] > 0


@pytest.fixture
def stuck(running: Callable[..., Server], repository: Path) -> Iterator[Any]:
    """Starts a model whose queue holds two requests and whose sessions do not take them."""
    append_config(
        repository,
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n",
    )
    model = loaded_model(running())
    model.group._queues[0].native.pause()
    yield model
    model.group._queues[0].native.resume()


async def ask(model: Any, timeout_us: int = 0) -> Any:
    columns, batch, _ = decode_predict(model.signature, BODY)
    return await model.infer(columns, batch, timeout_us)


def test_a_full_queue_is_answered_at_once_and_cancelling_frees_a_place(stuck: Any) -> None:
    async def run() -> None:
        first, second = asyncio.ensure_future(ask(stuck)), asyncio.ensure_future(ask(stuck))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await ask(stuck)
        assert stuck.queued == 2
        for waiting in (first, second):
            waiting.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert stuck.queued == 0

    asyncio.run(run())
    assert stuck.statistics.rejected == 1


def test_a_request_whose_deadline_passes_in_the_queue_is_answered_then(stuck: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        asyncio.run(ask(stuck, timeout_us=10_000))
    assert stuck.queued == 0


def test_a_client_that_goes_away_frees_its_place(stuck: Any, running: Callable[..., Server]) -> None:
    server = next(cell.cell_contents for cell in running.__closure__ or () if isinstance(cell.cell_contents, list))[0]
    request = b"POST /v1/models/ranker:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    plain = socket.create_connection(("127.0.0.1", server.http_port))
    plain.sendall(request + BODY)
    wait_until(lambda: stuck.queued == 1)
    plain.close()
    wait_until(lambda: stuck.queued == 0)
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
    message = service_pb2.ModelInferRequest(model_name="ranker")
    for name, dtype, shape, raw in (
        ("user", "INT64", [1, 1], bytes(8)),
        ("item", "INT64", [1, 1], bytes(8)),
        ("price", "FP32", [1, 2], bytes(8)),
    ):
        message.inputs.add(name=name, datatype=dtype, shape=shape)
        message.raw_input_contents.append(raw)
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(message)
    wait_until(lambda: stuck.queued == 1)
    call.cancel()
    wait_until(lambda: stuck.queued == 0)
    with pytest.raises(grpc.RpcError) as raised:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=0.2)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: stuck.queued == 0)
    channel.close()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_typed_contents_and_raw_contents_give_the_same_and_not_both(running: Callable[..., Server]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{running().grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        typed = service_pb2.ModelInferRequest(model_name="ranker", id="t")
        typed.inputs.add(name="user", datatype="INT64", shape=[1, 1]).contents.int64_contents.append(-1)
        typed.inputs.add(name="item", datatype="UINT64", shape=[1, 1]).contents.uint64_contents.append(2**64 - 1)
        typed.inputs.add(name="price", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
        typed.inputs.add(name="tags", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"war")
        answer = stub.ModelInfer(typed)
        assert answer.id == "t"
        raw = service_pb2.ModelInferRequest(model_name="ranker")
        payloads = [b"\xff" * 8, b"\xff" * 8, b"\0\0\x80\x3f\0\0\0\x40", b"\3\0\0\0war"]
        for entry, payload in zip(typed.inputs, payloads, strict=True):
            raw.inputs.add(name=entry.name, datatype=entry.datatype, shape=entry.shape)
            raw.raw_input_contents.append(payload)
        assert stub.ModelInfer(raw).raw_output_contents == answer.raw_output_contents
        both = service_pb2.ModelInferRequest()
        both.CopyFrom(typed)
        both.raw_input_contents.extend(payloads)
        short = service_pb2.ModelInferRequest()
        short.CopyFrom(raw)
        del short.raw_input_contents[-1]
        wrong = service_pb2.ModelInferRequest(model_name="ranker")
        wrong.inputs.add(name="user", datatype="INT64", shape=[2**40, 13]).contents.int64_contents.append(1)
        field = service_pb2.ModelInferRequest(model_name="ranker")
        field.inputs.add(name="user", datatype="INT64", shape=[1, 1]).contents.int_contents.append(1)
        for bad, text in ((both, "both"), (short, "raw_input_contents"), (wrong, "'user'"), (field, "int64_contents")):
            with pytest.raises(grpc.RpcError) as raised:
                stub.ModelInfer(bad)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert text in raised.value.details()


def test_a_port_in_use_is_said_before_anything_is_loaded(repository: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for field in ("http_port", "grpc_port", "metrics_port"):
            ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, field: taken.getsockname()[1]}
            config = ServerConfig(model_repository=repository, store=tmp_path / "store", **ports)
            with pytest.raises(ConfigError, match="in use") as raised:
                Server(config).start()
            assert raised.value.field == field
    assert not (tmp_path / "store").exists()


def test_a_missing_repository_or_model_and_a_store_inside_are_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a folder"):
        Server(ServerConfig(model_repository=tmp_path / "nothing"))
    with pytest.raises(NotFound, match="did you mean 'ranker'"):
        Server(ServerConfig(model_repository=repository, models=("rankr",)))
    with pytest.raises(ConfigError, match="inside the model repository"):
        Server(ServerConfig(model_repository=repository, store=repository / "store"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0(repository: Path, tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import logging, signal, sys; from pathlib import Path; from serving import ServerConfig, serve;"
        "logging.basicConfig(level=logging.INFO);"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a background job of a shell ignores it
        "serve(ServerConfig(model_repository=Path(sys.argv[1]), store=Path(sys.argv[2]), http_port=0, grpc_port=0,"
        " metrics_port=0))"
    )
    command = [sys.executable, "-c", script, str(repository), str(tmp_path / "store")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "model versions ready" in line:
                break
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(30) == 0, rest
    assert any("HTTP     http://127.0.0.1:" in line for line in lines)
    assert "stopped" in rest
    assert "leaked" not in rest
    assert "Traceback" not in rest
