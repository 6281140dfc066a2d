"""`emberline prove` against real servers: one of ours over HTTP and gRPC, and Triton where it is installed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton import TritonProcess
from emberline.cli.frame import main
from emberline.proving.proof_text import body
from tests.support.server_process import ServerProcess
from trainer import publish

USERS, ITEMS, DIM = 60, 60, 4
TRITON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        import json

        import torch
        from safetensors.torch import load_file

        parameters = json.loads(args["model_config"])["parameters"]
        self.torch = torch
        self.weights = load_file(parameters["weights"]["string_value"])
        self.fault = parameters["fault"]["string_value"]

    def execute(self, requests):
        torch = self.torch
        responses = []
        for request in requests:
            user, item, dense = (
                torch.from_numpy(pb_utils.get_input_tensor_by_name(request, name).as_numpy().copy())
                for name in ("INPUT__0", "INPUT__1", "INPUT__2")
            )
            tables = [self.weights["user.weight"], self.weights["item.weight"]]
            if self.fault == "swap":
                tables = tables[::-1]
            if self.fault == "shift":
                item = item + 1
            rows = []
            for table, ids in zip(tables, (user[:, 0].long(), item[:, 0].long())):
                known = (ids >= 0) & (ids < len(table))
                default = 0.5 if self.fault == "default" else 0.0
                rows.append(torch.where(known[:, None], table[torch.where(known, ids, 0)], default))
            x = torch.cat([*rows, dense], 1)
            score = torch.sigmoid(x @ self.weights["head.weight"].T + self.weights["head.bias"])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT__0", score.numpy())]))
        return responses
"""


class Ranker(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.user, self.item = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM)
        self.head = nn.Linear(2 * DIM + 2, 1)

    def forward(self, user: Tensor, item: Tensor, dense: Tensor) -> Tensor:
        return torch.sigmoid(self.head(torch.cat([self.user(user), self.item(item), dense], 1)))


def sample() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    user, item = (torch.randint(2, 58, (64,), generator=random) for _ in range(2))
    return {"user": user, "item": item, "dense": torch.rand(64, 2, generator=random)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model `ranker`, and `old`: the same with two tables swapped."""
    folder = tmp_path_factory.mktemp("prove")
    module = Ranker().eval()
    publish(module, sample(), folder / "models", name="ranker")
    save_file(module.state_dict(), folder / "weights.safetensors")
    module.user.weight, module.item.weight = module.item.weight, module.user.weight
    publish(module, sample(), folder / "models", name="old")
    asked = {name: values.numpy() for name, values in sample().items()}
    np.savez(folder / "known.npz", **asked)  # type: ignore[arg-type]
    asked["item"] = np.where(np.arange(64) % 3 == 0, 1000 + np.arange(64), asked["item"])
    np.savez(folder / "unknown.npz", **asked)  # type: ignore[arg-type]
    return folder


def prove(*arguments: str) -> int:
    try:
        main(["prove", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repository / "models", repository / "store", repository / "server.log") as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_of_ours_is_compared(
    protocol: str, served: ServerProcess, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{served.http_port}" if protocol == "http" else f"grpc://{served.grpc}"
    assert prove(address, str(repository / "models" / "ranker"), "--report", str(repository / "report.json")) == 0
    assert "equal: " in capsys.readouterr().out
    assert json.loads((repository / "report.json").read_text())["equal"] is True
    asked = ["--model", "old", "--requests", str(repository / "known.npz"), "--output", "score=score"]
    assert prove(address, str(repository / "models" / "ranker"), *asked) == 1
    assert "explained: the old server has the tables user and item swapped; 64 rows differed" in capsys.readouterr().out


def test_requests_that_the_old_server_refuses_are_named_last_and_make_the_exit_code_1(
    served: ServerProcess, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {name: values.numpy() for name, values in sample().items()}
    wrong = {name: values[:3] for name, values in asked.items()} | {"dense": np.zeros((3, 5), np.float32)}
    bodies = [json.dumps(body(batch)) for batch in (asked, wrong)]
    (tmp_path / "asked.jsonl").write_text("\n".join(bodies))
    arguments = [str(repository / "models" / "ranker"), "--requests", str(tmp_path / "asked.jsonl")]
    assert prove(served.url, *arguments) == 1
    told = capsys.readouterr().out.splitlines()
    assert any(line.startswith("equal: 64 rows") for line in told)
    assert told[-1].startswith("NOT compared: 3 of 67 rows, which the old server refuses (")
    assert prove(served.url, *arguments, "--output", "scores=score") == 1
    assert "the model has no output 'scores'; did you mean 'score'?" in capsys.readouterr().err


def test_an_import_is_compared_with_the_server_that_it_replaces(
    served: ServerProcess, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Ranker().eval()).save(str(tmp_path / "ranker.pt"))
    command = [
        "import",
        "torchscript",
        str(tmp_path / "ranker.pt"),
        "--sample",
        str(repository / "known.npz"),
        "--quiet",
    ]
    command += ["--repository", str(tmp_path / "models"), "--name", "ranker", "--prove", f"grpc://{served.grpc}"]
    main(command)
    told = capsys.readouterr().out
    assert "table item: 60 rows of 4, read by item" in told
    assert "equal: 64 rows" in told
    with pytest.raises(SystemExit, match="1"):
        main([*command, "--prove-model", "old"])
    assert "the old server has the tables user and item swapped" in capsys.readouterr().out


def test_tables_around_a_module_are_compared_by_their_golden_requests(
    served: ServerProcess, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made.py").write_text(
        "from safetensors.torch import load_file\n"
        "from tests.integration.serving.test_prove import Ranker, sample\n\n\n"
        "def made():\n"
        f"    module, weights = Ranker().eval(), load_file({str(repository / 'weights.safetensors')!r})\n"
        "    module.head.load_state_dict({'weight': weights['head.weight'], 'bias': weights['head.bias']})\n"
        "    return module, sample()\n"
    )
    command = ["import", "state-dict", str(repository / "weights.safetensors"), "--only", "user", "--only", "item"]
    command += ["--module", f"{tmp_path / 'made.py'}:made", "--repository", str(tmp_path / "models"), "--quiet"]
    main([*command, "--name", "ranker", "--prove", served.url])
    assert "equal: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        main([*command, "--name", "ranker", "--prove", served.url, "--prove-model", "old"])
    assert "every difference is explained" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--name", "ranker", "--prove", served.url, "--delta"])
    assert "--prove compares with a version; after a --delta, run `emberline prove`" in capsys.readouterr().err


def test_who_does_not_answer_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prove("127.0.0.1:1", str(repository / "models" / "ranker")) == 1
    assert "no answer from http://127.0.0.1:1/v2/models/ranker" in capsys.readouterr().err
    assert prove("127.0.0.1:1/infer", str(repository / "models" / "ranker")) == 1
    assert "'127.0.0.1:1/infer': expected HOST:PORT, http://HOST:PORT or grpc://HOST:PORT" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "requests", "code", "text"),
    [
        ("none", "unknown", 0, "equal: 64 rows"),
        ("shift", "known", 1, "reads the row of id + 1 for each id of item; 64 rows differed, with that 0 do"),
        ("swap", "known", 1, "has the tables user and item swapped; 64 rows differed, with that 0 do"),
        ("default", "unknown", 1, "reads ids without a row in table item as 0.5 in every place"),
    ],
)
def test_a_fault_of_a_model_in_triton_is_named(
    fault: str,
    requests: str,
    code: int,
    text: str,
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = "".join(
        f'input [{{ name: "INPUT__{place}" data_type: {kind} dims: [{size}] }}]\n'
        for place, (kind, size) in enumerate([("TYPE_INT64", 1), ("TYPE_INT32", 1), ("TYPE_FP32", 2)])
    )
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (("weights", repository / "weights.safetensors"), ("fault", fault))
    )
    config = 'backend: "python" max_batch_size: 64\noutput [{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [1] }]\n'
    model = tmp_path / "triton" / "ranker_v3"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(TRITON_MODEL)
    (model / "config.pbtxt").write_text(config + inputs + parameters)
    names = [f"--input={ours}=INPUT__{place}" for place, ours in enumerate(("user", "item", "dense"))]
    try:
        server = TritonProcess(tmp_path, tmp_path / "triton", "ranker_v3")
    except PeerMissingError as error:
        pytest.skip(f"Triton cannot run here: {error}")
    with server:
        address = f"grpc://127.0.0.1:{server.grpc_port}"
        asked = ["--model", "ranker_v3", "--requests", str(repository / f"{requests}.npz"), *names]
        assert prove(address, str(repository / "models" / "ranker"), *asked) == code
    told = capsys.readouterr().out
    assert text in told, told
