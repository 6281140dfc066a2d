"""The real clients against the real server: what they send, what they understand, what they raise."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from serving import Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

MODEL = "ranker"


@pytest.fixture(scope="module", params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def api(kind: str) -> Any:
    return triton_http if kind == "http" else triton_grpc


@pytest.fixture(scope="module")
def client(api: Any, kind: str, server: Server) -> Iterator[Any]:
    port = server.http_port if kind == "http" else server.grpc_port
    with api.InferenceServerClient(f"127.0.0.1:{port}") as made:
        yield made


def field(answer: Any, name: str) -> Any:
    return answer[name] if isinstance(answer, dict) else getattr(answer, name)


def tensors(api: Any, rows: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Makes a request's inputs from raw rows: padded lists with lengths and validity."""

    def tensor(name: str, dtype: str, values: np.ndarray) -> Any:
        made = api.InferInput(name, list(values.shape), dtype)
        made.set_data_from_numpy(values, **options)
        return made

    def padded(name: str, dtype: str, filler: Any) -> list[Any]:
        lists = [row[name] or [] for row in rows]
        width = max(map(len, lists))
        values = np.array(
            [values + [filler] * (width - len(values)) for values in lists], object if dtype == "BYTES" else np.int64
        ).reshape(len(rows), width)
        lengths = np.array([[len(values)] for values in lists], np.int32)
        valid = np.array([[row[name] is not None] for row in rows])
        return [
            tensor(name, dtype, values),
            tensor(f"{name}.lengths", "INT32", lengths),
            tensor(f"{name}.valid", "BOOL", valid),
        ]

    return [
        tensor("price", "FP32", np.array([row["price"] for row in rows], np.float32)),
        tensor("item", "INT64", np.array([[row["item"]] for row in rows], np.int64)),
        tensor("user", "INT64", np.array([[row["user"]] for row in rows], np.int64)),
        *padded("history", "INT64", 0),
        *padded("tags", "BYTES", "x"),
    ]


def simple(api: Any, batch: int = 2, **changes: Any) -> list[Any]:
    arrays: dict[str, Any] = {
        "user": np.array([[7]], np.int64),
        "item": np.arange(batch, dtype=np.int64).reshape(-1, 1),
        "price": np.zeros((batch, 2), np.float32),
    }
    arrays.update(changes)
    names = {np.dtype(np.int64): "INT64", np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32"}
    made = []
    for name, values in arrays.items():
        if values is not None:
            made.append(api.InferInput(name, list(values.shape), names[values.dtype]))
            made[-1].set_data_from_numpy(values)
    return made


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("nope")
    metadata = client.get_server_metadata()
    assert field(metadata, "name") == "emberline"
    assert "binary_tensor_data" in list(field(metadata, "extensions"))
    model = client.get_model_metadata(MODEL)
    shapes = {field(e, "name"): list(map(int, field(e, "shape"))) for e in field(model, "inputs")}
    assert shapes["price"] == [-1, 2]
    assert shapes["history"] == [-1, -1]
    assert [field(e, "datatype") for e in field(model, "outputs")] == ["FP32", "FP32"]
    if isinstance(model, dict):  # over HTTP the inputs also name the training columns that feed them
        named = {entry["name"]: entry["parameters"] for entry in model["inputs"] if "parameters" in entry}
        assert named == {"item": {"column": "item_id", "column_type": "integer"}}


def test_model_config(client: Any) -> None:
    config = client.get_model_config(MODEL)
    config = config if isinstance(config, dict) else config.config
    assert field(config, "max_batch_size") == 64
    price = next(e for e in field(config, "input") if field(e, "name") == "price")
    assert list(field(price, "dims")) == [2]


def test_every_way_gives_the_scores_of_the_module(api: Any, kind: str, client: Any, published: Any) -> None:
    rows = published.random_rows(40, 11)
    expected = published.score(rows)
    ways: list[dict[str, Any]] = [{}] if kind == "grpc" else [{"binary_data": True}, {"binary_data": False}]
    for options in ways:
        for wanted in (
            None,
            [api.InferRequestedOutput("like", **options), api.InferRequestedOutput("score", **options)],
        ):
            result = client.infer(MODEL, tensors(api, rows, **options), outputs=wanted, request_id="r7")
            for name, values in expected.items():
                assert np.abs(result.as_numpy(name) - values).max() <= 1e-6
            response = result.get_response()
            assert field(response, "id") == "r7"
            assert field(response, "model_version") == "1"
            snapshot = field(response, "parameters")["snapshot"]
            assert len(snapshot if kind == "http" else snapshot.string_param) == 32


def test_asynchronous_requests_each_get_their_own_rows(api: Any, kind: str, client: Any, published: Any) -> None:
    rows = published.random_rows(30, 13)
    expected = published.score(rows)["score"]
    results: dict[int, Any] = {}
    if kind == "http":
        handles = [client.async_infer(MODEL, tensors(api, [row])) for row in rows]
        results = {index: handle.get_result() for index, handle in enumerate(handles)}
    else:
        import threading

        ended = threading.Semaphore(0)

        def note(index: int, result: Any, error: Any) -> None:
            results[index] = error or result
            ended.release()

        for index, row in enumerate(rows):
            client.async_infer(MODEL, tensors(api, [row]), lambda result, error, i=index: note(i, result, error))
        for _ in rows:
            assert ended.acquire(timeout=20)
    for index in range(len(rows)):
        assert np.abs(results[index].as_numpy("score") - expected[index]).max() <= 1e-6


def test_an_empty_batch_gets_empty_outputs(api: Any, client: Any) -> None:
    result = client.infer(MODEL, simple(api, batch=0))
    assert result.as_numpy("score").shape == (0, 1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"item": None}, "'item'"),
        ({"itme": np.zeros((2, 1), np.int64)}, "did you mean 'item'"),
        ({"item": np.zeros((2, 1), np.float32)}, "'item': expected datatype INT64, got FP32"),
        ({"item": np.zeros((2, 3), np.int64)}, "'item'"),
        ({"user": np.zeros((3, 1), np.int64)}, "'user' has a batch of 3"),
        ({"price": np.zeros((1, 2), np.float32)}, "'price' has a batch of 1"),
        ({"price": np.zeros((2, 3), np.float32)}, "'price'"),
        (
            {"history": np.zeros((2, 2), np.int64), "history.lengths": np.full((2, 1), 3, np.int32)},
            "'history.lengths'",
        ),
        ({"history": np.zeros((1, 65), np.int64)}, "history"),
    ],
)
def test_bad_inputs_raise_with_the_name(
    api: Any, kind: str, client: Any, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InferenceServerException, match=expected.replace("(", r"\(")) as raised:
        client.infer(MODEL, simple(api, **changes))
    assert raised.value.status() == ("400" if kind == "http" else "StatusCode.INVALID_ARGUMENT")


def test_a_batch_over_the_limit_is_refused(api: Any, client: Any) -> None:
    with pytest.raises(InferenceServerException, match="batch-size must be <= 64"):
        client.infer(MODEL, simple(api, batch=65))


def test_unknown_models_versions_and_outputs_raise(api: Any, kind: str, client: Any) -> None:
    not_found = "404" if kind == "http" else "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="nope") as raised:
        client.infer("nope", simple(api))
    assert raised.value.status() == not_found
    with pytest.raises(InferenceServerException, match="version 9"):
        client.infer(MODEL, simple(api), model_version="9")
    with pytest.raises(InferenceServerException, match="nope"):
        client.get_model_metadata("nope")
    with pytest.raises(InferenceServerException, match="did you mean 'score'"):
        client.infer(MODEL, simple(api), outputs=[api.InferRequestedOutput("scores")])


def test_the_index_names_version_and_state(client: Any) -> None:
    index = client.get_model_repository_index()
    entries = index if isinstance(index, list) else list(index.models)
    assert [(field(e, "name"), field(e, "version"), field(e, "state")) for e in entries] == [(MODEL, "1", "READY")]


def test_statistics_count_what_was_done(api: Any, kind: str, client: Any) -> None:
    def read() -> dict[str, int]:
        answer = client.get_inference_statistics(MODEL)
        entry = field(answer, "model_stats")[0]
        stats = field(entry, "inference_stats")
        counts = {name: int(field(field(stats, name), "count")) for name in ("success", "queue", "fail", "cache_hit")}
        return {**counts, "rows": int(field(entry, "inference_count")), "batches": int(field(entry, "execution_count"))}

    before = read()
    for _ in range(3):
        client.infer(MODEL, simple(api, batch=5))
    after = read()
    assert {name: after[name] - before[name] for name in after} == {
        "success": 3,
        "queue": 3,
        "fail": 0,
        "cache_hit": 0,
        "rows": 15,
        "batches": 3,
    }


def test_trace_and_log_settings_are_what_they_are(kind: str, client: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trace = client.get_trace_settings() if kind == "http" else client.get_trace_settings(as_json=True)["settings"]
    assert trace["trace_level"] == (["OFF"] if kind == "http" else {"value": ["OFF"]})
    assert client.get_trace_settings("ranker")
    log = client.get_log_settings() if kind == "http" else client.get_log_settings(as_json=True)["settings"]
    assert log["log_info"] == (True if kind == "http" else {"bool_param": True})
    with pytest.raises(InferenceServerException, match="nobody"):
        client.get_trace_settings("nobody")
