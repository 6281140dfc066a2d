"""A replica that gets no answer from the object store says what it last knew of its fleet, since when, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emberline.cli import fleet
from serving.fleet.reading import ANSWER_S
from storage.errors import Unavailable
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.planted import NAME
from tests.support.faulty_proxy import Fault, FaultyProxy, proxy_of_store


@pytest.fixture
def replicas(store_url: str, tmp_path: Path) -> Iterator[Replicas]:
    replicas = Replicas(store_url, tmp_path)
    yield replicas
    replicas.stop()


@pytest.fixture
def proxy(replicas: Replicas) -> Iterator[FaultyProxy]:
    with proxy_of_store() as running:
        yield running


def ask(replicas: Replicas, name: str, *options: str) -> Result:
    url = f"http://127.0.0.1:{replicas.servers[name].http_port}"
    variables = {"COLUMNS": "200", "NO_COLOR": "1"}
    return CliRunner().invoke(fleet.command, [NAME, "--url", url, *options], env=variables, catch_exceptions=False)


def view(replicas: Replicas, name: str) -> Any:
    return replicas.servers[name].repository.fleet_view(NAME)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "why"), [("403", "AccessDenied"), ("hang", f"no answer within {ANSWER_S:g} s")])
def test_a_replica_that_is_cut_off_says_what_it_last_knew(
    replicas: Replicas, proxy: FaultyProxy, fault: Fault, why: str
) -> None:
    first, second = replicas.serve("one", deltas=1)
    replicas.start_behind(proxy, "two")
    replicas.reach(second)
    whole = view(replicas, "two")
    assert (whole["asked"], whole["store"]["url"]) == ("two", replicas.model.url)
    assert whole["store"]["error"] == ""
    assert [each["serves"]["id"] for each in whole["replicas"]] == [second.id] * 2

    with proxy.failing(fault, lambda method, path: True):
        replicas.servers["one"].repository.rollback(NAME)
        cut_off_ms = time.time() * 1000
        asked = ask(replicas, "two")
        assert time.time() * 1000 - cut_off_ms < (ANSWER_S + 10) * 1000
        assert asked.exit_code == fleet.LAST_KNOWN
        assert "two has not been able to read the object store for " in asked.output
        assert why in asked.output
        assert f"all served {second.name} ({second.id})" in asked.output
        assert "the other replicas are as they were read " in asked.output
        assert f"emberline fleet {replicas.model.url}" in asked.output

        # What is read for one caller is not waited for anew by the next.
        again = time.monotonic()
        known = ask(replicas, "two", "--json")
        assert time.monotonic() - again < ANSWER_S - 1
        assert known.exit_code == fleet.LAST_KNOWN
        state = json.loads(known.stdout)
        assert why in state["store"]["error"]
        assert state["store"]["answered_unix_ms"] < cut_off_ms
        assert state["store"]["replicas_unix_ms"] <= whole["store"]["replicas_unix_ms"]
        assert state["served"] == {"id": second.id, "name": second.name}
        # What another one serves meanwhile, that one says itself, to both.
        replicas.until(lambda: any(each["behind"] for each in view(replicas, "one")["replicas"]))
        served = {"one": ("ready", first.id), "two": ("ready", second.id)}
        for seen in (state, view(replicas, "one")):
            assert {each["id"]: (each["health"], each["serves"]["id"]) for each in seen["replicas"]} == served
        assert view(replicas, "one")["served"]["id"] == first.id
        from_one = ask(replicas, "one")
        assert from_one.exit_code == 0
        assert f"all should serve {first.name} ({first.id})" in from_one.output
        assert "ready: serves something else than the others" in from_one.output

    replicas.reach(first)
    replicas.until(lambda: view(replicas, "two")["store"]["error"] == "")
    healed = ask(replicas, "two")
    assert healed.exit_code == 0
    assert f"all serve {first.name}" in healed.output
    assert "not been able" not in healed.output


def test_a_replica_that_has_read_of_no_other_shows_itself(replicas: Replicas, proxy: FaultyProxy) -> None:
    (first,) = replicas.serve("one")
    replicas.start_behind(proxy, "two")
    replicas.reach(first)
    with proxy.failing("403", lambda method, path: True):
        asked = ask(replicas, "two")
        assert asked.exit_code == fleet.LAST_KNOWN
        assert "the other replicas are not known here" in asked.output
        (own,) = view(replicas, "two")["replicas"]
        assert (own["id"], own["serves"]["id"], own["health"]) == ("two", first.id, "ready")


def test_a_replica_that_was_started_while_it_is_cut_off_knows_nothing_and_says_why(
    replicas: Replicas, proxy: FaultyProxy
) -> None:
    (first,) = replicas.serve("one")
    replicas.start_behind(proxy, "two")
    replicas.reach(first)
    replicas.stop("two")
    with proxy.failing("403", lambda method, path: True):
        replicas.start_behind(proxy, "two")
        with pytest.raises(Unavailable, match=r"what the other replicas serve is not known yet.*AccessDenied"):
            view(replicas, "two")


def test_the_object_store_itself_is_asked_without_a_server(replicas: Replicas) -> None:
    (first,) = replicas.serve("one")
    found = CliRunner().invoke(fleet.command, [replicas.model.url, "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    state = json.loads(found.stdout)
    assert (state["asked"], state["store"]["error"], state["served"]["id"]) == ("", "", first.id)
    assert state["store"]["replicas_unix_ms"] > 0
