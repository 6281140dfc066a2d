"""An output may be asked for with only the inputs that it needs: the user's tower of two, apart from the item's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving import Server, ServerConfig
from tests.integration.serving.http_calls import ask
from trainer import publish

PATH = "/v2/models/towers/infer"


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 8), nn.Embedding(60, 8)
        self.user, self.item = nn.Linear(8 + 2, 4), nn.Linear(8, 4)

    def forward(self, user: Tensor, past: Tensor, age: Tensor, item: Tensor) -> dict[str, Tensor]:
        rows = self.users(user) + (self.items(past) * (past != 0).unsqueeze(-1)).sum(1)
        of_user = self.user(torch.cat([rows, age], dim=1))
        of_item = self.item(self.items(item))
        return {"score": (of_user * of_item).sum(1), "user_embedding": of_user, "item_embedding": of_item}


def sample(rows: int) -> tuple[Tensor, ...]:
    past = torch.randint(0, 60, (rows, 3))
    return torch.randint(0, 40, (rows,)), past, torch.rand(rows, 2), torch.randint(0, 60, (rows,))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Towers, Server]]:
    folder = tmp_path_factory.mktemp("towers")
    torch.manual_seed(2)
    module = Towers().eval()
    publish(module, sample(20), folder / "models", name="towers", user_inputs=["user", "past", "age"])
    config = ServerConfig(
        model_repository=folder / "models", store=folder / "store", http_port=0, grpc_port=0, metrics_port=0
    )
    with Server(config) as server:
        yield module, server


def tensor(name: str, values: Tensor) -> dict[str, Any]:
    rows = values.reshape(values.shape[0], -1)
    dtype = "FP32" if values.is_floating_point() else "INT64"
    return {"name": name, "datatype": dtype, "shape": list(rows.shape), "data": rows.flatten().tolist()}


def test_the_users_tower_needs_the_users_inputs_alone_over_http(served: tuple[Towers, Server]) -> None:
    module, server = served
    user, past, age, item = sample(3)
    own = [tensor("user", user), tensor("past", past), tensor("age", age)]
    reply = ask(server.http_port, "POST", PATH, {"inputs": own, "outputs": [{"name": "user_embedding"}]})
    assert reply.status == 200, reply.content
    with torch.no_grad():
        wanted = module(user, past, age, item)
    np.testing.assert_allclose(reply.json["outputs"][0]["data"], wanted["user_embedding"].flatten(), atol=1e-5)
    reply = ask(
        server.http_port, "POST", PATH, {"inputs": [tensor("item", item)], "outputs": [{"name": "item_embedding"}]}
    )
    np.testing.assert_allclose(reply.json["outputs"][0]["data"], wanted["item_embedding"].flatten(), atol=1e-5)


def test_an_output_that_needs_an_input_names_it_and_those_that_do_not(served: tuple[Towers, Server]) -> None:
    _, server = served
    user, past, age, _ = sample(3)
    own = [tensor("user", user), tensor("past", past), tensor("age", age)]
    for outputs in ([{"name": "score"}, {"name": "user_embedding"}], []):
        reply = ask(server.http_port, "POST", PATH, {"inputs": own, "outputs": outputs})
        assert reply.status == 400
        needing = "['score']" if outputs else "['score', 'item_embedding']"
        assert "input 'item' (INT64) is missing" in reply.json["error"]
        assert f"the outputs {needing} need it, a request for ['user_embedding'] alone does not" in reply.json["error"]
    reply = ask(server.http_port, "POST", PATH, {"inputs": own[:2], "outputs": [{"name": "user_embedding"}]})
    assert reply.status == 400
    assert "input 'age' (FP32) is missing" in reply.json["error"]


def test_the_users_tower_needs_the_users_inputs_alone_over_grpc(served: tuple[Towers, Server]) -> None:
    module, server = served
    user, past, age, item = sample(5)
    message = service_pb2.ModelInferRequest(model_name="towers")
    for name, values in (("user", user), ("past", past), ("age", age)):
        rows = values.reshape(5, -1).numpy()
        message.inputs.add(name=name, datatype="FP32" if rows.dtype.kind == "f" else "INT64", shape=rows.shape)
        message.raw_input_contents.append(rows.tobytes())
    message.outputs.add(name="user_embedding")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(message, timeout=20)
        del message.outputs[:]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message, timeout=20)
    with torch.no_grad():
        wanted = module(user, past, age, item)["user_embedding"]
    got = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(5, 4)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "input 'item' (INT64) is missing" in caught.value.details()


def test_one_user_and_many_items_are_answered_from_one_row_of_the_user(served: tuple[Towers, Server]) -> None:
    module, server = served
    user, past, age, _ = sample(1)
    item = torch.randint(0, 60, (6,))
    inputs = [tensor("user", user), tensor("past", past), tensor("age", age), tensor("item", item)]
    reply = ask(server.http_port, "POST", PATH, {"inputs": inputs, "outputs": [{"name": "score"}]})
    with torch.no_grad():
        wanted = module(user.expand(6), past.expand(6, 3), age.expand(6, 2), item)["score"]
    np.testing.assert_allclose(reply.json["outputs"][0]["data"], wanted, atol=1e-5)
