"""An explanation says of each id where its row lies and which delta changed it last, as the planted rows say it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tritonclient.grpc import service_pb2

from emberline.cli.explain import command
from tests.integration.serving.guarded import bearer, write_access
from tests.integration.serving.live import Live
from tests.integration.serving.planted import DIM, NAME
from trainer import publish

PATH = f"/v2/repository/models/{NAME}/explain"
METHOD = "/inference.GRPCInferenceService/ModelExplain"


def explain(live: Live, rows: list[dict[str, Any]], row: int = 0, token: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{live.server.http_port}{PATH}",
        json.dumps({"instances": rows, "row": row}).encode(),
        bearer(token),
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def test_an_older_snapshot_than_was_asked_for_is_not_explained(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        first = live.version()
        live.start()
        (last,) = live.chain(first, 1)
        live.reaches(last)
        rows = live.world.rows_of(last, 1)
        url = f"http://127.0.0.1:{live.server.http_port}"
        (tmp_path / "request.json").write_text(json.dumps({"instances": rows}))
        given = [NAME, "--url", url, "--request", str(tmp_path / "request.json"), "--json", "--min-snapshot"]
        for snapshot in ("1.1", "1.0"):
            answer = CliRunner().invoke(command, [*given, snapshot])
            assert json.loads(answer.output)["snapshot"]["name"] == "1.1"
        answer = CliRunner().invoke(command, [*given, "1.2"])
        assert re.search("503: min_snapshot: 1.2 is not served: it has not come", str(answer.exception))
        answer = CliRunner().invoke(command, [*given, "newest"])
        assert "min_snapshot: expected a snapshot's 32 hex digits" in str(answer.exception)
        channel = grpc.insecure_channel(f"127.0.0.1:{live.server.grpc_port}")
        message = service_pb2.ModelInferRequest(model_name=NAME)
        message.parameters["min_snapshot"].string_param = "1.2"
        with channel, pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(METHOD, service_pb2.ModelInferRequest.SerializeToString)(message, timeout=30)
        assert "min_snapshot: 1.2 is not served" in refusal.value.details()


def feature(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in found["features"] if entry["name"] == name)


def test_every_id_is_told_with_its_place_and_its_last_change(tmp_path: Path) -> None:
    with Live(tmp_path, retain_snapshots=2, dram_bytes=200_000) as live:
        first = live.version()
        live.start()
        *_, last = live.chain(first, 5)
        live.reaches(last)
        live.until(lambda: live.states().get("1.3") == "base")  # two snapshots are kept above it
        rows = live.world.rows_of(last, 24)
        names = {generation: f"1.{generation - 1}" for generation in range(1, last.generation + 1)}
        tiers = set()
        for place in range(len(rows)):
            status, found = explain(live, rows, place)
            assert status == 200, found
            assert found["snapshot"]["name"] == "1.5"
            told = [("user", each) for each in feature(found, "user")["ids"]]
            told += [("item", each) for each in feature(found, "items")["ids"]]
            assert [each["id"] for _, each in told] == [rows[place]["user"], *(rows[place]["items"] or ())]
            for table, each in told:
                generation = last.tables[table].get(each["id"])
                tiers.add(each["tier"])
                if generation is None:
                    assert (each["tier"], each["changed"]) == ("absent", None)
                elif each["tier"] == "overlay":
                    assert (each["changed"]["name"], each["changed"]["or_before"]) == (names[generation], False)
                else:
                    assert (each["changed"]["name"], each["changed"]["or_before"]) == ("1.3", True)
                    assert generation <= 4
            # The trace is the weight, the user's row and the sum of the items' rows: a feature adds its own part.
            own = np.array(feature(found, "user")["adds"]["trace"])
            items = np.array(feature(found, "items")["adds"]["trace"])
            total = np.array(found["outputs"]["trace"])
            assert (own[1 : 1 + DIM] == total[1 : 1 + DIM]).all()
            assert (items[1 + DIM :] == total[1 + DIM :]).all()
            assert not items[: 1 + DIM].any()
        assert {"overlay", "absent", "dram"} <= tiers


def test_rows_outside_memory_lie_on_ssd_and_asking_does_not_move_them(tmp_path: Path) -> None:
    with Live(tmp_path, dram_bytes=1) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        user = next(iter(snapshot.tables["user"]))
        item = list(snapshot.tables["item"])[-1]
        for _ in range(2):
            _, found = explain(live, [{"user": user, "items": [item]}])
            assert feature(found, "items")["ids"][0]["tier"] == "ssd"
        assert set(found["times_us"]) == {"features", "lookup", "dense"}


def test_grpc_and_the_command_say_the_same(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        user, item = (next(iter(snapshot.tables[table])) for table in ("user", "item"))
        message = service_pb2.ModelInferRequest(model_name=NAME)
        message.parameters["row"].int64_param = 1
        for name, data, shape in (
            ("user", [user], [1, 1]),
            ("items", [item, item], [2, 1]),
            ("items.lengths", [1, 1], [2, 1]),
        ):
            message.inputs.add(name=name, datatype="INT64", shape=shape).contents.int64_contents.extend(data)
        with grpc.insecure_channel(f"127.0.0.1:{live.server.grpc_port}") as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            answer = call(message, timeout=30)
        by_grpc = json.loads(answer.outputs[0].contents.bytes_contents[0])
        _, by_http = explain(live, [{"user": user, "items": [item]}])
        for found in (by_grpc, by_http):
            del found["times_us"]
        assert by_grpc == by_http

        (tmp_path / "request.json").write_text(json.dumps({"instances": [{"user": user, "items": [item]}]}))
        arguments = [NAME, "--url", f"http://127.0.0.1:{live.server.http_port}", "--request"]
        done = CliRunner().invoke(command, [*arguments, str(tmp_path / "request.json")], catch_exceptions=False)
        assert f"{NAME} 1.0 ({snapshot.id}): score" in done.output
        assert "what each feature adds to score" in done.output
        assert "1.0 or before" in done.output
        done = CliRunner().invoke(
            command, [*arguments, str(tmp_path / "request.json"), "--json"], catch_exceptions=False
        )
        assert json.loads(done.output)["outputs"] == by_http["outputs"]


def test_it_takes_the_roles_for_scores_and_for_looking_at_the_model(tmp_path: Path) -> None:
    access = write_access(
        tmp_path / "access.yaml",
        [
            {"name": "caller", "roles": ["predict"]},
            {"name": "viewer", "roles": ["read"]},
            {"name": "analyst", "roles": ["predict", "read"]},
            {"name": "elsewhere", "roles": ["predict", "read"], "models": ["other"]},
        ],
    )
    with Live(tmp_path) as live:
        snapshot = live.version()
        live.start(open_admin=False, access_file=access)
        rows = live.world.rows_of(snapshot, 2)
        found = {name: explain(live, rows, token=name) for name in ("caller", "viewer", "elsewhere", "analyst", None)}
        assert [found[name][0] for name in ("caller", "viewer", "elsewhere", "analyst", None)] == [
            403,
            403,
            403,
            200,
            401,
        ]
        assert "does not have the role predict and read" in found["viewer"][1]


def test_what_cannot_be_explained_is_refused_by_its_name(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        rows = live.world.rows_of(snapshot, 2)
        assert explain(live, rows, 2) == (400, "row is 2, and the request has the rows 0 to 1")
        assert explain(live, rows, "first")[1] == "'row': expected the number of a row of the request, got 'first'"  # type: ignore[arg-type]
        status, text = explain(live, [{"user": "x"}])
        assert status == 400
        assert "user" in text
        _, text = explain(live, [{"user": 1, "items": list(range(5000))}])
        assert "items" in text or "at most 4,096 are explained" in text


def test_explanations_go_on_while_versions_are_replaced(tmp_path: Path) -> None:
    with Live(tmp_path, version_reuse_share=0) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        rows, stop, found = live.world.rows_of(snapshot, 4), threading.Event(), []

        def ask() -> None:
            while not stop.is_set():
                found.append(explain(live, rows)[0])

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for _ in range(3):
                live.reaches(live.version())
        finally:
            stop.set()
            asking.join()
        assert found
        assert set(found) == {200}


class Masked(torch.nn.Module):
    """Sums the numbers of the ids that are not 0; the ids enter the graph as integers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.history = torch.nn.Embedding(50, 1)
        with torch.no_grad():
            self.history.weight[:, 0] = torch.arange(1.0, 51.0)

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        return (self.history(history).squeeze(2) * (history != 0)).sum(1, keepdim=True)


def test_integers_are_told_by_their_values_and_left_out_as_zeros(tmp_path: Path) -> None:
    publish(Masked(), {"history": torch.randint(0, 50, (8, 4))}, tmp_path / "models", name=NAME)
    with Live(tmp_path) as live:
        live.world.repository = tmp_path / "models"
        live.start()
        status, found = explain(live, [{"history": [7, 0, 9, 0]}])
    assert status == 200, found
    assert found["outputs"] == {"score": [8 + 10]}
    integers = feature(found, "history.integers")
    assert integers == {
        "name": "history.integers",
        "inputs": ["history"],
        "values": [7, 0, 9, 0],
        "adds": {"score": [18]},
    }
    assert feature(found, "history")["adds"] == {"score": [18]}


@pytest.mark.parametrize("rows", [1, 3])
def test_live_requests_are_not_counted(tmp_path: Path, rows: int) -> None:
    with Live(tmp_path) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        (loaded,) = live.repository.loaded()
        before = dict(loaded.store_stats().hits)
        explain(live, live.world.rows_of(snapshot, rows))
        assert dict(loaded.store_stats().hits) == before


def test_a_request_with_binary_tensors_is_explained_as_its_json(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        snapshot = live.version()
        live.start()
        live.reaches(snapshot)
        users = list(snapshot.tables["user"])[:2]
        items = list(snapshot.tables["item"])[:2]
        tensors = {"user": (users, [2, 1]), "items": (items, [2, 1]), "items.lengths": ([1, 1], [2, 1])}
        parts = {name: np.array(values, np.int64).tobytes() for name, (values, _) in tensors.items()}
        header = {
            "row": 1,
            "inputs": [
                {
                    "name": name,
                    "datatype": "INT64",
                    "shape": shape,
                    "parameters": {"binary_data_size": len(parts[name])},
                }
                for name, (_, shape) in tensors.items()
            ],
        }
        text = json.dumps(header).encode()

        def post(length: str) -> Any:
            request = urllib.request.Request(
                f"http://127.0.0.1:{live.server.http_port}{PATH}",
                text + b"".join(parts.values()),
                {"Inference-Header-Content-Length": length, **bearer(None)},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())

        found = post(str(len(text)))
        _, wanted = explain(live, [{"user": users[0], "items": [items[0]]}, {"user": users[1], "items": [items[1]]}], 1)
        for key in ("outputs", "features"):
            assert found[key] == wanted[key]
        with pytest.raises(urllib.error.HTTPError) as refused:
            post("many")
        assert refused.value.code == 400
        assert "Inference-Header-Content-Length must be a number of bytes" in refused.value.read().decode()
