"""The short form of the fuzzers, with fixed seeds; `make fuzz` runs them for ten minutes each."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import campaign as campaigns
from tests.fuzz import decoders, grpc, http, native
from tests.fuzz.campaign import Campaign
from tests.fuzz.entries import Entry, entries, run_guarded
from tests.fuzz.served import Served
from tests.support.examples import examples

pytestmark = pytest.mark.slow

SEED = 20_261_122


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("fuzz") / "served") as running:
        yield running


def run(transport: str, fuzz: Callable[[Campaign], None], *, inputs: int = 0, seconds: float = 5.0) -> Campaign:
    campaign = Campaign(transport, seconds, inputs, SEED)
    fuzz(campaign)
    assert not campaign.findings, "\n".join(campaign.findings)
    return campaign


def test_the_http_port_stands_anything(served: Served) -> None:
    done = run("http", lambda campaign: http.run(campaign, served), inputs=examples(3000))
    assert {"200", "400", "404", "405", "raw ended"} <= done.answers.keys()


def test_the_native_server_answers_as_python_does(served: Served) -> None:
    done = run("native", lambda campaign: native.run(campaign, served), inputs=examples(1500))
    assert {"200", "400", "404"} <= done.answers.keys()


def test_every_grpc_call_stands_anything(served: Served) -> None:
    done = run("grpc", lambda campaign: grpc.run(campaign, served), inputs=examples(3000))
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "stream OK"} <= done.answers.keys()


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="the extra `fuzz` is not installed")
def test_the_openapi_document_is_kept_to(served: Served) -> None:
    from tests.fuzz import openapi

    done = run("openapi", lambda campaign: openapi.run(campaign, served), seconds=5.0)
    assert {"200", "400"} <= done.answers.keys()


def test_the_decoders_refuse_or_take_anything() -> None:
    inputs = examples(8000)
    done = run("decoders", decoders.run_plain, inputs=inputs)
    for entry in entries():
        assert done.answers[f"{entry.name} taken"] > 0
        assert sum(count for name, count in done.answers.items() if name.startswith(f"{entry.name} ")) > inputs / 16


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_what_a_decoder_is_given_at_first_is_good(entry: Entry) -> None:
    for number in range(5):
        assert run_guarded(entry, entry.make(random.Random(number))) == "taken" or entry.name in ("body", "v2")


def test_every_fuzzer_that_is_spoken_of_is_there() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "fuzzing.md").read_text()
    loop = re.search(r"^fuzz:.*\n\t@code=0; for name in ([a-z ]+);", (root / "Makefile").read_text(), re.MULTILINE)
    assert loop is not None
    named = {*re.findall(r"python -m tests\.fuzz\.(\w+)", page), *loop[1].split()}
    assert named == {"http", "native", "grpc", "decoders", "openapi"}
    assert all((root / "tests" / "fuzz" / f"{name}.py").exists() for name in named)


def test_a_finding_is_saved_and_says_how_to_run_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(campaigns, "FOLDER", tmp_path)
    entry = Entry("v2", broken, lambda rng: b"x" * rng.randrange(1, 9), lambda rng, data: data)
    monkeypatch.setattr("tests.fuzz.entries.entries", lambda: [entry])
    campaign = Campaign("decoders", 5.0, 3, SEED)
    decoders.run_plain(campaign)
    assert len(campaign.findings) == 3
    found = re.search(r"python -m tests\.fuzz\.decoders --replay build/fuzz/(decoders-v2-\w+)", campaign.findings[0])
    assert found is not None
    assert set((tmp_path / found[1]).read_bytes()) == {ord("x")}
    assert "KeyError" in campaign.findings[0]
    assert campaign.finish() == 1
