"""Feedback by request id: who may send it, what comes of it, and the canaries that it decides about."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import Conflict
from tests.integration.serving.http_calls import ask as call
from tests.integration.serving.labelling import FEEDBACK_PATH as PATH
from tests.integration.serving.labelling import visit
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask

OPTIONS: dict[str, Any] = {
    "feature_log_share": 1,
    "feature_log_every_s": 0.05,
    "feedback_share": 1,
    "retain_snapshots": 3,
}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, **OPTIONS) as running:
        running.version()
        yield running


def send(live: Live, content: Any, status: int = 200) -> dict[str, Any]:
    reply = call(live.server.http_port, "POST", PATH, content)
    assert reply.status == status, reply.content
    return dict(reply.json)


def shown(live: Live) -> dict[str, Any]:
    return dict(call(live.server.http_port, "GET", PATH).json)


def score(live: Live, name: str, rows: int = 2) -> list[float]:
    answer = ask(live.repository, [{"user": row, "items": [row + 1]} for row in range(rows)], request_id=name)
    assert live.repository.feedback(NAME).flush(10)
    return [float(value) for value in answer.outputs[0].reshape(-1)]


def test_labels_give_the_live_quality_by_snapshot_and_lie_beside_the_log(live: Live) -> None:
    live.start(feature_log=live.folder / "log")
    scores = [score(live, "a", 3), score(live, "b", 3)]
    assert send(live, {"id": "a", "labels": [1, 0, None]}) == {"labels": 2, "joined": 2}
    assert send(live, {"events": [{"id": "b", "row": 0, "label": 1}, {"id": "b", "row": 1, "label": 0}]})["joined"] == 2
    (quality,) = shown(live)["feedback"]["quality"]
    labelled = [*scores[0][:2], *scores[1][:2]]
    assert (quality["snapshot"], quality["arm"], quality["output"], quality["rows"]) == ("1.0", "main", "score", 4)
    assert quality["calibration"] == pytest.approx(sum(labelled) / 2, rel=1e-5)
    page = urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=10).read().decode()
    of = f'arm="main",model="{NAME}",output="score",snapshot="1.0"'
    assert f"emberline_live_rows{{{of}}} 4\n" in page
    assert f"emberline_live_auc{{{of}}} " in page
    assert f'emberline_feedback_labels_total{{model="{NAME}",outcome="joined"}} 4\n' in page
    live.until(lambda: live.report()["feature_log"]["written_labels"] == 2)
    found = pa.concat_tables(
        [pq.read_table(path) for path in (live.folder / "log" / NAME / "labels").rglob("*.parquet")]
    )
    assert sorted(zip(found["served_id"].to_pylist(), found["served_row"].to_pylist(), strict=True)) == [
        ("a", 0),
        ("b", 0),
    ]
    assert live.report()["feedback"]["labels"]["joined"] == 4


def test_hostile_and_strange_feedback_is_refused_or_counted(live: Live) -> None:
    live.start()
    score(live, "a")
    for wrong in (
        {"id": "", "label": 1},
        {"id": "x" * 1025, "label": 1},
        {"id": 7, "label": 1},
        {"id": "a"},
        {"id": "a", "label": 1, "labels": [1]},
        {"id": "a", "label": "yes"},
        {"id": "a", "labels": [1], "row": 0},
        {"id": "a", "row": -1, "label": 1},
        {"id": "a", "label": 1, "time": -5},
        {"id": "a", "label": 1, "output": "none"},
        {"id": "a", "lable": 1},
        {"events": {"id": "a"}},
        {"events": [7]},
        {"events": [], "id": "a"},
        {"events": [{"id": "a", "label": 1}] * 10_001},
    ):
        assert "error" in send(live, wrong, 400)
    assert call(live.server.http_port, "POST", PATH, b'{"id": "a", "label": NaN}').status == 400
    assert send(live, {"id": "a", "row": 2**31 - 1, "label": 1})["misfit"] == 1
    assert send(live, {"id": "'; drop --\u0000\ud7ff", "label": 1})["early"] == 1
    ahead = send(live, {"id": "a", "label": 1, "time": time.time() + 3600})
    assert ahead["joined"] == 1
    assert send(live, {"id": "a", "label": 1})["twice"] == 1
    known = shown(live)["feedback"]
    assert (known["skewed"], known["early"]) == (1, 1)


def test_feedback_needs_a_role_of_its_own(live: Live) -> None:
    live.start(open_admin=False)
    assert call(live.server.http_port, "POST", PATH, {"id": "a", "label": 1}).status == 401
    live.stop()
    tokens = {name: f"{name}-token-0123456789abcdef" for name in ("asks", "labels", "rules")}
    roles = {"asks": ["predict", "read"], "labels": ["feedback"], "rules": ["admin"]}
    from serving.security.tokens import digest_of

    file = live.folder / "access.yaml"
    entries = [
        {"name": name, "sha256": digest_of(tokens[name]), "roles": roles[name], "models": ["*"]} for name in tokens
    ]
    file.write_text(json.dumps({"tokens": entries}))
    file.chmod(0o600)
    live.start(open_admin=False, access_file=file)
    statuses = {
        name: call(
            live.server.http_port, "POST", PATH, {"id": "a", "label": 1}, {"Authorization": f"Bearer {token}"}
        ).status
        for name, token in tokens.items()
    }
    assert statuses == {"asks": 403, "labels": 200, "rules": 200}
    as_labeller = {"Authorization": f"Bearer {tokens['labels']}"}
    assert call(live.server.http_port, "GET", PATH, None, as_labeller).status == 403


def test_options_of_feedback_hold_as_soon_as_the_configuration_changes(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        first = live.version()
        live.start(feature_log=live.folder / "log")
        live.until(lambda: live.report()["served"] is not None)
        live.world.configure(**OPTIONS)
        live.until(lambda: shown(live)["drift"] is not None)
        assert {each["name"] for each in shown(live)["drift"]["inputs"]} == {"user", "items"}
        score(live, "a")
        assert send(live, {"id": "a", "label": 1})["joined"] == 1
        live.until(lambda: shown(live)["log"]["written_rows"] == 2)
        live.world.configure(**{**OPTIONS, "feature_log_share": 0})
        live.until(lambda: shown(live)["log"] is None)
        score(live, "b")
        logged = [pq.read_table(path) for path in (live.folder / "log").rglob("requests/*.parquet")]
        assert {name for table in logged for name in table["served_id"].to_pylist()} == {"a"}
        live.world.configure()
        live.until(lambda: shown(live)["feedback"] is None)
        assert live.report()["served"]["id"] == first.id


def test_negatives_that_no_score_waits_for_are_refused_by_name(tmp_path: Path) -> None:
    with Live(tmp_path, **OPTIONS) as live:
        live.version()
        live.start()
        live.until(lambda: live.report()["served"] is not None)
        live.world.configure(**OPTIONS, feedback_negative_after_s=7200)
        live.until(lambda: "feedback_negative_after_s: is 7200" in str(live.report()["waiting"]))
        assert live.repository.feedback(NAME).window is not None


def test_a_model_without_feedback_says_so(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        live.version()
        live.start()
        assert "feedback_share" in send(live, {"id": "a", "label": 1}, 409)["error"]
        assert shown(live) == {"model": NAME, "log": None, "drift": None, "feedback": None}


def test_drift_is_shown_once_enough_rows_came(live: Live) -> None:
    live.start()
    assert {each["name"] for each in shown(live)["drift"]["inputs"]} == {"user", "items"}
    rng = np.random.default_rng(0)

    def enough() -> bool:
        rows = [{"user": int(user), "items": [1]} for user in rng.integers(0, 64, 200)]
        ask(live.repository, rows, request_id=f"r{rng.integers(1 << 40)}")
        return all(each["psi"] is not None for each in shown(live)["drift"]["inputs"])

    live.until(enough)


TRIALS: dict[str, Any] = {**OPTIONS, "live_auc_fraction": 0.5, "live_auc_min_labels": 60, "live_auc_max_drop": 0.02}


def judged(live: Live) -> dict[str, Any]:
    return dict(live.report()["live_auc"] or {})


def test_an_update_is_a_canary_first_and_serves_all_when_its_live_auc_is_good(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        first = live.version()
        live.start()
        live.until(lambda: live.report()["served"] is not None)
        assert live.report()["waiting"] is None
        second = live.delta(first)
        live.until(lambda: live.report()["canary"] is not None)
        assert live.report()["canary"]["id"] == second.id
        assert live.report()["served"]["id"] == first.id
        live.until(lambda: judged(live).get("verdict") == "waits")
        for seed in range(200):
            visit(live.server, [live.server], {"1.0": 0.6, "1.1": 0.9}, seed)
            if live.report()["served"]["id"] == second.id:
                break
        live.until(lambda: live.report()["served"]["id"] == second.id)
        assert judged(live)["verdict"] == "passes"
        assert "live AUC of 'score'" in judged(live)["reason"]


def test_a_canary_whose_live_auc_falls_is_held_with_the_reason(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        first = live.version()
        live.start()
        second = live.delta(first)
        live.until(lambda: live.report()["canary"] is not None)
        for seed in range(200):
            visit(live.server, [live.server], {"1.0": 0.95, "1.1": 0.1}, seed)
            if live.states().get("1.1") == "held":
                break
        live.until(lambda: live.states().get("1.1") == "held")
        assert live.report()["served"]["id"] == first.id
        assert judged(live)["verdict"] == "fails"
        page = (
            urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics", timeout=10).read().decode()
        )
        assert f'emberline_live_auc_held_total{{model="{NAME}"}} 1\n' in page
        # It survives a restart, and an operator may decide otherwise.
        live.stop()
        live.start()
        assert live.states()["1.1"] == "held"
        live.repository.resume(NAME)
        live.reaches(second)


def test_a_canary_that_nobody_labels_is_held_when_its_time_is_over(tmp_path: Path) -> None:
    with Live(tmp_path, **{**TRIALS, "live_auc_timeout_s": 0.5}) as live:
        first = live.version()
        live.start()
        live.delta(first)
        live.until(lambda: live.states().get("1.1") == "held")
        assert "no judgement within 0.5 s" in judged(live)["reason"]


def test_an_operator_may_promote_a_canary_that_is_not_judged_yet(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        first = live.version()
        live.start()
        second = live.delta(first)
        live.until(lambda: live.report()["canary"] is not None)
        live.repository.promote(NAME)
        live.reaches(second)


def test_a_shadow_may_run_while_nothing_is_tried_by_live_auc(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        first = live.version()
        live.start()
        second = live.delta(first)
        live.until(lambda: live.report()["canary"] is not None)
        with pytest.raises(Conflict, match="there is a canary; promote or stop it first"):
            live.repository.shadow(NAME, to=first.name, share=1.0, top_k=10)
        live.repository.promote(NAME)
        live.reaches(second)
        live.repository.shadow(NAME, to=first.name, share=1.0, top_k=10)
        assert live.report()["shadow"]["name"] == first.name
        third = live.delta(second)
        live.reaches(third)  # a shadow and a canary exclude each other
        live.repository.stop_shadow(NAME)
        fourth = live.delta(third)
        live.until(lambda: (live.report()["canary"] or {}).get("id") == fourth.id)


def test_who_waits_for_a_canary_is_told_so(tmp_path: Path) -> None:
    with Live(tmp_path, retain_snapshots=3) as live:
        first = live.version()
        live.start()
        live.reaches(live.delta(first))
        live.repository.canary(NAME, fraction=0.5)
        with pytest.raises(Conflict, match="what arrives next is to be a canary; promote or stop it first"):
            live.repository.shadow(NAME, to=first.name, share=1.0, top_k=10)


def test_without_labels_updates_are_not_judged_and_the_report_says_so(tmp_path: Path) -> None:
    with Live(tmp_path, retain_snapshots=3, live_auc_fraction=0.5) as live:
        first = live.version()
        live.start()
        second = live.delta(first)
        live.reaches(second)
        assert "feedback_share" in judged(live)["reason"]
        live.world.configure(**TRIALS)
        live.until(lambda: not judged(live))
        live.world.configure(retain_snapshots=3, live_auc_fraction=0.5)
        live.until(lambda: judged(live).get("verdict") == "off")
        live.world.configure()
        live.until(lambda: not judged(live))


def test_a_version_that_is_loaded_and_asked_for_again_is_tried_too(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        live.world.configure("version_policy { all {} }", **TRIALS)
        first, second = live.version(), live.version()
        live.start()
        live.reaches(second)
        live.until(lambda: live.repository._updater(NAME).model.routes.by_version.keys() == {"1", "2"})
        live.world.configure("version_policy { specific { versions: [1] } }", **TRIALS)
        live.until(lambda: (live.report()["canary"] or {}).get("id") == first.id)
        assert live.report()["served"]["id"] == second.id
        live.repository.promote(NAME)
        live.reaches(first)


def test_without_the_option_the_next_update_is_served_to_all_again(tmp_path: Path) -> None:
    with Live(tmp_path, **TRIALS) as live:
        first = live.version()
        live.start()
        live.until(lambda: live.report()["served"] is not None)
        live.world.configure(**OPTIONS)
        second = live.delta(first)
        live.reaches(second)
        assert live.report()["canary"] is None
