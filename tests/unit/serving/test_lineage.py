"""Tests which snapshot is taken next.

Covers chains, cumulative deltas, holds and their release, and versions, in every order of arrival.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.updates.catalog import Catalog, Found
from serving.updates.lineage import Decision, Refuse, Situation, Take, Wait, decide
from serving.updates.state import SavedSnapshot
from storage.errors import ConfigError, IntegrityError, LineageError
from tests.support.examples import examples


def ident(text: str) -> str:
    return text.encode().hex().rjust(32, "0")


def delta(sequence: int, applies_to: str, version: int = 1, **options: Any) -> Found:
    """Makes a delta.

    applies_to: names of snapshots, the parent last; the delta's own name is "d<sequence>".
    """
    names = [ident(name) for name in applies_to.split()]
    name = options.pop("snapshot", f"d{sequence}")
    return Found(
        Path(f"{version}/deltas/{sequence:06d}"),
        f"key-{name}",
        version,
        sequence,
        ident(name),
        names[-1],
        options.pop("base", ident(f"v{version}")),
        frozenset(names),
        **options,
    )


def version(number: int, *deltas: Found, made_from: str = "", equals: str = "", **options: Any) -> Found:
    names = [ident(name) for name in made_from.split()]
    return Found(
        Path(str(number)),
        f"key-v{number}",
        number,
        snapshot=ident(f"v{number}"),
        parent=names[-1] if names else None,
        ancestors=frozenset([*names, *([ident(equals)] if equals else [])]),
        equals=ident(equals) if equals else None,
        deltas=deltas,
        **options,
    )


def catalog(*versions: Found) -> Catalog:
    return Catalog({each.version: each for each in versions})


def served(name: str, number: int = 1, sequence: int | None = None, **options: Any) -> Situation:
    if sequence is None:
        sequence = int(name[1:]) if name.startswith("d") else 0
    held = frozenset(ident(each) for each in options.pop("held", "").split())
    abandoned = frozenset(ident(each) for each in options.pop("abandoned", "").split())
    return Situation(SavedSnapshot(id=ident(name), version=number, sequence=sequence), held, abandoned, **options)


def taken(decision: Decision) -> str:
    assert isinstance(decision.action, Take), decision
    return decision.action.found.name


def test_the_newest_version_is_taken_at_the_start() -> None:
    assert taken(decide(catalog(version(1), version(3), version(2)), Situation(None))) == "3.0"


def test_a_chain_is_taken_link_by_link_and_then_nothing_is_waited_for() -> None:
    there = catalog(version(1, delta(1, "v1"), delta(2, "d1"), delta(3, "d2")))
    for name, expected in (("v1", "1.1"), ("d1", "1.2"), ("d2", "1.3")):
        assert taken(decide(there, served(name))) == expected
    assert decide(there, served("d3")).action == Wait("")


def test_of_several_the_one_that_reaches_furthest_is_taken() -> None:
    there = catalog(
        version(1, delta(1, "v1"), delta(2, "v1 d1"), delta(3, "d2"), delta(4, "v1 d1 d2 d3"), delta(5, "d3"))
    )
    for name in ("v1", "d1", "d2"):
        assert taken(decide(there, served(name))) == "1.4"
    assert taken(decide(there, served("d3"))) == "1.5"


def test_a_delta_that_continues_something_else_is_waited_with_and_named() -> None:
    decision = decide(catalog(version(1, delta(2, "d1"))), served("v1"))
    assert isinstance(decision.action, Wait)
    assert "1.2" in decision.action.reason
    assert ident("d1") in decision.action.reason


def test_a_missing_link_may_come_later() -> None:
    late = delta(2, "d1")
    assert taken(decide(catalog(version(1, delta(1, "v1"), late)), served("v1"))) == "1.1"


def test_an_older_sequence_never_comes_back_so_no_circle_is_possible() -> None:
    circle = delta(2, "d3", snapshot="v1")
    assert decide(catalog(version(1, circle, delta(3, "v1"))), served("d3")).action == Wait("")


def test_a_delta_of_another_version_of_that_number_is_refused() -> None:
    decision = decide(catalog(version(1, delta(1, "v1", base=ident("other")))), served("v1"))
    assert isinstance(decision.action, Refuse)
    assert isinstance(decision.action.error, LineageError)


def test_an_unreadable_manifest_is_refused_once() -> None:
    broken = replace(delta(1, "v1"), error=IntegrityError("digest"), snapshot="", ancestors=frozenset())
    there = catalog(version(1, broken, delta(2, "v1")))
    decision = decide(there, served("v1"))
    assert isinstance(decision.action, Refuse)
    assert taken(decide(there, served("v1", refused=lambda found: found is broken))) == "1.2"
    old = decide(catalog(version(1, broken)), served("d5"))
    assert old.action == Wait("")


# ---- holds


def test_what_was_rolled_back_and_what_was_made_from_it_is_held() -> None:
    there = catalog(version(1, delta(1, "v1"), delta(2, "d1"), delta(3, "d2"), delta(4, "d3")))
    decision = decide(there, served("d1", held="d2"))
    assert isinstance(decision.action, Wait)
    assert "held" in decision.action.reason
    assert decision.held == {ident(name) for name in ("d2", "d3", "d4")}


def test_a_cumulative_delta_past_what_is_held_is_held_too() -> None:
    there = catalog(version(1, delta(2, "d1"), delta(3, "v1 d1 d2")))
    decision = decide(there, served("d1", held="d2"))
    assert isinstance(decision.action, Wait)
    assert decision.held == {ident("d2"), ident("d3")}


def test_a_delta_that_arrives_later_from_a_held_one_is_held_though_its_parent_has_gone() -> None:
    first = decide(catalog(version(1, delta(3, "d2"))), served("d1", held="d2"))
    assert first.held == {ident("d2"), ident("d3")}
    second = decide(catalog(version(1, delta(4, "v1 d1 d2 d3"))), Situation(served("d1").served, first.held))
    assert ident("d4") in second.held


def test_a_delta_on_the_served_snapshot_ends_the_hold() -> None:
    there = catalog(version(1, delta(2, "d1"), delta(3, "d2"), delta(4, "d1")))
    decision = decide(there, served("d1", held="d2"))
    assert decision.action == Take(there.versions[1].deltas[2], clears_holds=True)


def test_a_cumulative_delta_of_the_new_line_ends_the_hold_too() -> None:
    there = catalog(version(1, delta(2, "d1"), delta(5, "v1 d1 d4")))
    decision = decide(there, served("d1", held="d2"))
    assert isinstance(decision.action, Take)
    assert decision.action.clears_holds


def test_an_older_delta_that_was_passed_over_does_not_end_the_hold() -> None:
    # d2 held the changes of d1 too, so d1 was never taken; then d2 was rolled back.
    decision = decide(catalog(version(1, delta(1, "v1"), delta(2, "v1 d1"))), served("v1", held="d2"))
    assert isinstance(decision.action, Wait)
    assert "1.1 is held: it is older than a snapshot that was rolled back" in decision.action.reason
    # The same holds when the repository has lost d2.
    situation = served("v1", held="d2", held_sequence=2)
    assert isinstance(decide(catalog(version(1, delta(1, "v1"))), situation).action, Wait)
    there = catalog(version(1, delta(1, "v1"), delta(2, "v1 d1"), delta(3, "v1")))
    assert taken(decide(there, situation)) == "1.3"


def test_an_older_version_that_was_passed_over_does_not_end_the_hold() -> None:
    there = catalog(version(1), version(2, made_from="v1"), version(3, made_from="v1 v2"))
    decision = decide(there, served("v1", held="v3"))
    assert isinstance(decision.action, Wait)
    assert "version 3 is held: it was rolled back" in decision.action.reason


def test_what_was_abandoned_is_named_and_can_be_tried_by_name() -> None:
    there = catalog(version(1, delta(1, "v1"), delta(2, "d1")), version(2, made_from="v1 d1"))
    decision = decide(there, served("v1", abandoned="d1"))
    assert isinstance(decision.action, Wait)
    assert "version 2 was made from what was set aside" in decision.action.reason
    assert "--to 2" in decision.action.reason
    assert taken(decide(there, served("v1", abandoned="d1", canary_to="2"))) == "2.0"
    assert taken(decide(there, served("v1", abandoned="d1", canary_to="1.1"))) == "1.1"


def test_what_was_abandoned_is_not_taken_at_a_second_rollback() -> None:
    there = catalog(version(1, delta(2, "d1"), delta(3, "v1 d1 d2"), delta(4, "d1")))
    decision = decide(there, served("d1", held="d4", abandoned="d2"))
    assert isinstance(decision.action, Wait)
    assert decision.abandoned == {ident("d2"), ident("d3")}
    assert taken(decide(there, served("d1", abandoned="d2"))) == "1.4"


def test_the_served_snapshot_itself_is_never_held() -> None:
    decision = decide(catalog(version(1, delta(2, "d1"), delta(3, "d2"))), served("d2", held="d1"))
    assert ident("d2") not in decision.held


def test_a_held_delta_can_be_tried_as_a_canary() -> None:
    there = catalog(version(1, delta(2, "d1")))
    assert taken(decide(there, served("d1", held="d2", canary_to="1.2"))) == "1.2"
    assert taken(decide(there, served("d1", held="d2", canary_to=ident("d2")))) == "1.2"


def test_a_stop_is_a_reason_to_wait_only_when_something_is_there() -> None:
    there = catalog(version(1, delta(1, "v1")))
    decision = decide(there, served("v1", stopped="paused until resume"))
    assert decision.action == Wait("1.1 waits: paused until resume")
    assert decide(there, served("d1", stopped="paused until resume")).action == Wait("")


# ---- versions


def test_a_newer_version_precedes_deltas() -> None:
    there = catalog(version(1, delta(1, "v1")), version(2))
    assert taken(decide(there, served("v1"))) == "2.0"


def test_deltas_that_lead_to_the_rows_of_a_version_go_first_but_not_past_them() -> None:
    deltas = (delta(1, "v1"), delta(2, "d1"), delta(3, "v1 d1 d2"))
    there = catalog(version(1, *deltas), version(2, made_from="v1 d1 d2", equals="d2"))
    assert taken(decide(there, served("v1"))) == "1.1"
    assert taken(decide(there, served("d1"))) == "1.2"
    assert taken(decide(there, served("d2"))) == "2.0"
    assert taken(decide(there, served("d3"))) == "2.0"


def test_a_refused_version_is_passed_over() -> None:
    there = catalog(version(1), version(2), version(3))
    assert taken(decide(there, Situation(None, refused=lambda found: found.version == 3))) == "2.0"
    assert decide(there, served("v2", 2, refused=lambda found: found.version == 3)).action == Wait("")


def test_a_version_made_from_what_is_held_is_held() -> None:
    there = catalog(version(1, delta(2, "d1")), version(2, made_from="v1 d1 d2"))
    decision = decide(there, served("d1", held="d2"))
    assert isinstance(decision.action, Wait)
    assert "version 2 is held: it was made from a snapshot that was rolled back" in decision.action.reason
    assert ident("v2") in decision.held


def test_a_version_made_from_the_served_snapshot_ends_the_hold() -> None:
    there = catalog(version(1, delta(2, "d1")), version(2, made_from="v1 d1"))
    decision = decide(there, served("d1", held="d2"))
    assert decision.action == Take(there.versions[2], clears_holds=True)


def test_a_version_that_has_nothing_to_do_with_it_is_taken_and_ends_no_hold() -> None:
    there = catalog(version(1, delta(2, "d1")), version(2))
    assert decide(there, served("d1", held="d2")).action == Take(there.versions[2])


def test_deltas_of_a_held_version_are_held() -> None:
    there = catalog(version(1), version(2, delta(1, "v2", version=2), made_from="v1"))
    decision = decide(there, served("v1", held="v2"))
    assert decision.held == {ident("v2"), ident("d1")}


def test_a_version_that_waits_for_a_word_leaves_the_deltas_going() -> None:
    there = catalog(version(1, delta(1, "v1")), version(2))
    assert taken(decide(there, served("v1", awaiting={2: "version 2 waits"}))) == "1.1"
    assert decide(there, served("d1", awaiting={2: "version 2 waits"})).action == Wait("version 2 waits")


def test_the_policy_chooses_and_may_go_back() -> None:
    there = catalog(version(1), version(2), version(3))
    both = decide(there, served("v3", 3, choose=lambda found: sorted(found)[-2:]))
    assert both.action == Wait("")
    assert both.side == (2,)
    assert taken(decide(there, served("v3", 3, choose=lambda found: [1]))) == "1.0"

    def absent(found: list[int]) -> list[int]:
        raise ConfigError("version 9 is not in the folder")

    assert decide(there, served("v3", 3, choose=absent)).action == Wait("version 9 is not in the folder")


def test_a_served_version_whose_folder_has_gone_stays() -> None:
    assert decide(catalog(version(1)), served("v2", 2)).action == Wait("")


def anew(name: str, number: int, **options: Any) -> Situation:
    """Returns a situation in which a version with the snapshot v<number>, published at 100, is served."""
    return served(name, number, version_snapshot=ident(f"v{number}"), published_unix_ms=100, **options)


def test_another_version_under_the_served_number_is_taken() -> None:
    other = replace(version(1), snapshot=ident("w1"), key="key-w1")
    for name in ("v1", "d3"):
        assert decide(catalog(other), anew(name, 1)).action == Take(other)
    assert decide(catalog(version(1)), anew("d3", 1)).action == Wait("")
    stopped = decide(catalog(other), anew("v1", 1, stopped="pinned to 1.0 until resume"))
    assert stopped.action == Wait("1.0 waits: pinned to 1.0 until resume")
    newer = decide(catalog(other, version(2)), anew("v1", 1))
    assert taken(newer) == "2.0"


def test_another_version_under_the_served_number_that_is_refused_is_named() -> None:
    other = replace(version(1), snapshot=ident("w1"), key="key-w1")
    action = decide(catalog(other), anew("v1", 1, refused=lambda found: True)).action
    assert isinstance(action, Wait)
    assert "is not in the folder any more" in action.reason
    broken = replace(version(1), error=IntegrityError("digest"), snapshot="")
    assert isinstance(decide(catalog(broken), anew("v1", 1)).action, Refuse)


def test_a_smaller_number_is_taken_only_when_it_was_published_later() -> None:
    older, later = (replace(version(1), published_unix_ms=when) for when in (99, 101))
    assert decide(catalog(older), anew("v2", 2)).action == Wait("")
    assert decide(catalog(later), anew("v2", 2)).action == Take(later)
    assert decide(catalog(older), anew("v2", 2, other_folder=True)).action == Take(older)
    assert decide(catalog(version(2), later), anew("v2", 2, other_folder=True)).action == Wait("")


def test_a_held_version_under_the_served_number_stays_held() -> None:
    other = replace(version(1), snapshot=ident("w1"), key="key-w1")
    action = decide(catalog(other), anew("v1", 1, held="w1")).action
    assert isinstance(action, Wait)
    assert "held" in action.reason


def test_a_broken_newer_version_is_refused_and_an_older_one_is_not_looked_at() -> None:
    broken = replace(version(2), error=IntegrityError("digest"), snapshot="")
    assert isinstance(decide(catalog(version(1), broken), served("v1")).action, Refuse)
    assert decide(catalog(broken, version(3)), served("v3", 3)).action == Wait("")


# ---- every order


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_what_is_taken_follows_and_never_was_held(data: st.DataObject) -> None:
    """Draws random trees of deltas, some cumulative, arriving in any order, with a rollback somewhere."""
    count = data.draw(st.integers(1, 10))
    parents = [data.draw(st.integers(0, n)) for n in range(count)]  # The parent of delta n + 1; 0 is the version.
    lines: list[list[int]] = [[]]
    deltas = []
    for number, parent in enumerate(parents, 1):
        line = [*lines[parent], parent]
        lines.append(line)
        reach = line[-data.draw(st.integers(1, len(line))) :]
        deltas.append(delta(number, " ".join(f"d{each}" if each else "v1" for each in reach)))
    order = data.draw(st.permutations(range(count)))
    now, held, abandoned = 0, frozenset[str](), frozenset[str]()
    bad: set[int] = set()
    arrived: list[int] = []
    for index in order:
        arrived.append(index)
        for _ in range(count + 1):
            there = catalog(version(1, *(deltas[each] for each in sorted(arrived))))
            situation = served(f"d{now}" if now else "v1")
            decision = decide(there, replace(situation, held=held, abandoned=abandoned))
            held, abandoned = decision.held, decision.abandoned
            if not isinstance(decision.action, Take):
                break
            found = decision.action.found
            assert ident(f"d{now}" if now else "v1") in found.ancestors
            now = found.sequence
            if decision.action.clears_holds:
                abandoned, held = abandoned | held, frozenset()
            assert not bad & {now, *lines[now]}
        if now and not bad and data.draw(st.booleans()):
            bad = {now}
            held = frozenset({ident(f"d{now}")})
            now = lines[now][-1]
