"""Tests what masks mean while overlays are added and dropped, and when the memory of a dropped one is reused."""

from __future__ import annotations

import threading

import pytest

from storage.errors import StoreError
from storage.tiers.overlays import MOST_OVERLAYS, Overlay, Overlays


def shown(book: Overlays, snapshot: str = "s") -> Overlay:
    overlay = book.reserve(snapshot)
    book.show(overlay)
    return overlay


def ignore(_: Overlay) -> None:
    pass


def test_numbers_rise_while_slots_come_back() -> None:
    book = Overlays()
    slots = set()
    for number in range(200):
        overlay = shown(book)
        assert overlay.number == number
        assert book.view.slots(1 << number) == 1 << overlay.slot
        slots.add(overlay.slot)
        book.drop(overlay, ignore, merged=number % 2 == 0)
    assert len(slots) == 1
    assert book.view.slots(0b101) == 0
    with pytest.raises(StoreError, match=r"\[1, 3\]"):
        book.view.slots(0b1111)
    with pytest.raises(StoreError, match=r"\[200\]"):
        book.view.slots(1 << 200)
    with pytest.raises(StoreError, match="discarded or never staged"):
        book.view.slots(-1)


def test_an_overlay_that_is_not_shown_yet_is_in_no_mask() -> None:
    book = Overlays()
    below = shown(book)
    hidden = book.reserve("h")
    assert [overlay.number for overlay in book.view.live] == [0]
    with pytest.raises(StoreError, match=r"\[1\]"):
        book.view.slots(0b11)
    book.show(hidden)
    assert book.view.slots(0b11) == 1 << below.slot | 1 << hidden.slot


def test_a_slot_is_free_only_when_no_lookup_is_inside() -> None:
    book = Overlays()
    overlays = [shown(book) for _ in range(MOST_OVERLAYS)]
    book.turn()  # A plan that is not in a lookup is not waited for.
    inside = book.turn()
    inside.inside = True  # Its mask was translated by a view with overlay 0.
    cleared = threading.Event()

    def drop() -> None:
        book.drop(overlays[0], lambda _: cleared.set(), merged=True)

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    assert not cleared.wait(0.2)
    assert overlays[0] not in book.view.live  # Later lookups are translated without it.
    with pytest.raises(StoreError, match="63 overlays"):
        book.reserve("next")
    inside.over += 1  # The plan is at once in the next lookup.
    thread.join(30)
    assert cleared.is_set()
    assert book.reserve("next").slot == overlays[0].slot


def test_while_it_is_merged_and_after_it_is_gone_an_overlay_is_not_dropped() -> None:
    book = Overlays()
    overlay = shown(book)
    with book.merging(0), pytest.raises(StoreError, match="being merged"):
        book.drop(overlay, ignore, merged=False)
    book.drop(overlay, ignore, merged=False)
    with pytest.raises(StoreError, match="dropped already"):
        book.drop(overlay, ignore, merged=False)
    with pytest.raises(StoreError, match="no overlay 0"):
        book.get(0)


def test_turns_of_plans_that_are_gone_are_not_waited_for() -> None:
    book = Overlays()
    overlay = shown(book)
    turn = book.turn()
    turn.inside = True
    del turn
    book.drop(overlay, ignore, merged=True)
