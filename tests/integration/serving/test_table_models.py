"""Tables as models: MODEL.TABLE takes ids and answers with rows of exactly one snapshot."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server
from storage.errors import NotFound, Unavailable
from storage.features import column_from_numpy
from tests.integration.serving.conftest import DIM, Published
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_ids_are_answered_with_rows_and_whether_there_are_any(
    server: Server, published: Published, module: Any
) -> None:
    port = server.http_port if module is triton_http else server.grpc_port
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    extremes = [-1, 0, 2**63 - 1, -(2**63)]
    ids = np.array([*published.items, *extremes], np.int64)
    tensor = module.InferInput("ids", ids.shape, "INT64")
    tensor.set_data_from_numpy(ids)
    answer = client.infer("ranker.item", [tensor])
    rows, found = answer.as_numpy("rows"), answer.as_numpy("found")
    assert (rows.shape, found.shape, found.dtype) == ((len(ids), DIM), (len(ids),), np.bool_)
    for id_, row, there in zip(ids.tolist(), rows, found, strict=True):
        assert bool(there) == (id_ in published.rows["item"])
        np.testing.assert_array_equal(row, published.rows["item"].get(id_, np.zeros(DIM, np.float32)))
    wrong = module.InferInput("ids", [1], "FP32")
    wrong.set_data_from_numpy(np.zeros(1, np.float32))
    with pytest.raises(InferenceServerException, match="expected datatype INT64"):
        client.infer("ranker.item", [wrong])
    with pytest.raises(InferenceServerException, match=r"no table 'itme'.*did you mean 'item'"):
        client.infer("ranker.itme", [tensor])
    assert client.is_model_ready("ranker.item")
    assert not client.is_model_ready("ranker.nothing")
    client.close()


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}") as answer:
        return json.loads(answer.read())


def test_a_table_describes_itself_and_is_no_model_of_the_repository(server: Server) -> None:
    described = get(server, "/v2/models/ranker.user")
    assert described["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, 1]}
    assert described["outputs"] == [
        {"name": "rows", "datatype": "FP32", "shape": [-1, DIM]},
        {"name": "found", "datatype": "BOOL", "shape": [-1]},
    ]
    assert get(server, "/v2/models/ranker.user/config")["name"] == "ranker.user"
    assert get(server, "/v2/models/ranker.user/stats")["model_stats"][0]["name"] == "ranker.user"
    assert [entry.model for entry in server.repository.index()] == ["ranker"]
    for name in ("ranker.", ".item", "nobody.item", "ranker.item.x", "ranker..item"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            get(server, f"/v2/models/{name}")
        raised.value.close()
        assert raised.value.code == 404, name
    with pytest.raises(NotFound):
        server.repository.unload("ranker.user")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        yield running


def rows_of(live: Live, ids: np.ndarray, **options: Any) -> Any:
    table = live.repository.get(f"{NAME}.item")
    columns = {"ids": column_from_numpy("INT64", ids)}
    return asyncio.run(table.infer(columns, len(ids), **options))


def check(result: Any, ids: np.ndarray, snapshots: dict[str, Planted]) -> Planted:
    snapshot = snapshots[result.snapshot.id]
    for id_, row, found in zip(ids.tolist(), *result.outputs, strict=True):
        assert bool(found) == (id_ in snapshot.tables["item"])
        np.testing.assert_array_equal(row, snapshot.row("item", id_))
    return snapshot


def test_rows_are_those_of_the_snapshot_that_is_named(live: Live) -> None:
    start = live.version()
    live.start()
    ids = np.array([*start.tables["item"], 10**15], np.int64)
    assert check(rows_of(live, ids), ids, live.snapshots) is start
    delta = live.delta(start)
    assert check(rows_of(live, ids, min_snapshot=delta.id), ids, live.snapshots) is delta
    live.repository.rollback(NAME)
    assert check(rows_of(live, ids), ids, live.snapshots) is start
    live.repository.resume(NAME)
    # A version of its own: the table goes over with the model.
    after = live.version()
    live.reaches(after)
    assert check(rows_of(live, ids), ids, live.snapshots) is after
    live.repository.unload(NAME)
    with pytest.raises(Unavailable, match="not loaded"):
        rows_of(live, ids)


def test_a_table_waits_and_shares_cores_as_its_model_does(live: Live) -> None:
    base = live.version()
    live.start().reaches(base)
    model, table = live.repository.get(NAME), live.repository.get(f"{NAME}.item")
    assert table.group._parts.account is model.group._parts.account
    assert table.queue_settings.levels == model.queue_settings.levels
    assert table.queue_settings.max_wait_us == model.queue_settings.max_wait_us
    assert table.queue_settings.merge
