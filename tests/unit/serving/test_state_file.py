"""Tests the state file of a model: decisions are read as they were written, or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.updates import state_file
from serving.updates.state import ModelState, SavedSnapshot, StoreState
from serving.updates.state_file import COPY, STATE, StateFile
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.errors import ReadError, StoreError

# Written by an earlier server.
WRITTEN = (
    b'{"abandoned":[],"allowed":{},"budget":null,"canary":null,"default":"1","digest":"ab4383bdbdf8fe7f4c1'
    b'c8dfa9c613c11bf138d89acbc148d1163d6e342a318f1","format":"emberline-state-2","held":["000000000000000'
    b'00000000000000002"],"lines":[{"base":{"kind":"same","origin":"models/m/1","published_unix_ms":170000'
    b'0000000,"snapshot":{"id":"00000000000000000000000000000000","sequence":0,"version":1},"visible_ms":0'
    b'.0},"chain":[{"kind":"delta","origin":"models/m/1/deltas/000001","published_unix_ms":1700000000001,"'
    b'snapshot":{"id":"00000000000000000000000000000001","sequence":1,"version":1},"visible_ms":12.5}],"co'
    b'ntent":1,"content_snapshot":"00000000000000000000000000000000","covered":[{"id":"0000000000000000000'
    b'0000000000000","sequence":0,"version":1},{"id":"00000000000000000000000000000007","sequence":7,"vers'
    b'ion":1}],"folder":"1","served":"00000000000000000000000000000001"}],"paused":false,"pinned":false,"q'
    b'uarantine":{},"repository":"/models/m","sessions":null}\n'
)


def name(number: int) -> SavedSnapshot:
    return SavedSnapshot(id=f"{number:032x}", version=1, sequence=number)


def held_state(*held: int) -> ModelState:
    base, first = (name(n).model_copy(update={"origin": "x"}) for n in (0, 1))
    line = StoreState(folder="1", content=1, base=base, chain=(first,), served=first.id, covered=(name(0),))
    return ModelState(lines=(line,), default="1", held=tuple(name(n).id for n in held), allowed={"2": ("user",)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes the folder of a model whose snapshot 2 is held; snapshot 3 was held before."""
    file = StateFile(tmp_path / "model")
    file.write(held_state(3))
    file.write(held_state(2))
    return tmp_path / "model"


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "model")
    assert file.read() == ModelState()
    file.write(held_state(2))
    assert file.read() == held_state(2)
    assert StateFile(tmp_path / "model").read().lines[0].chain[0].name == "1.1"
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [STATE, COPY]


def test_a_file_stays_as_it_was_written_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(WRITTEN)
    state = StateFile(tmp_path).read()
    (line,) = state.lines
    assert [each.name for each in (*line.snapshots, *line.covered)] == ["1.0", "1.1", "1.0", "1.7"]
    assert (line.base.kind, line.chain[0].kind, line.chain[0].visible_ms) == ("same", "delta", 12.5)
    assert line.chain[0].origin == "models/m/1/deltas/000001"
    StateFile(tmp_path / "again").write(state)
    assert (tmp_path / "again" / STATE).read_bytes() == WRITTEN


def test_a_file_from_before_digests_is_read(tmp_path: Path) -> None:
    old = {**held_state(2).model_dump(mode="json"), "format": "emberline-state-1"}
    (tmp_path / STATE).write_text(json.dumps(old))
    assert StateFile(tmp_path).read() == held_state(2)


@pytest.mark.parametrize("with_copy", [True, False])
def test_no_damage_to_a_byte_changes_what_was_decided(folder: Path, with_copy: bool) -> None:
    good = (folder / STATE).read_bytes()
    for place in range(len(good)):
        for flip in (1, 0x80):
            (folder / STATE).write_bytes(good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :])
            if with_copy:
                assert StateFile(folder).read() == held_state(2)
            else:
                (folder / COPY).unlink(missing_ok=True)
                with pytest.raises(StoreError, match=STATE):
                    StateFile(folder).read()


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "other"}', b'{"unknown": 1}', b"\xff", b"[]"])
def test_a_damaged_state_without_a_copy_says_what_to_do_and_stays(folder: Path, content: bytes) -> None:
    (folder / STATE).write_bytes(content)
    for damage in (content, None):
        if damage is None:
            (folder / COPY).unlink()
        else:
            (folder / COPY).write_bytes(damage)
        with pytest.raises(StoreError, match=r"damaged.*delete state\.json and state\.json\.copy"):
            StateFile(folder).read()
        assert (folder / STATE).read_bytes() == content


def test_a_state_that_is_missing_is_read_from_its_copy(folder: Path) -> None:
    (folder / STATE).unlink()
    assert StateFile(folder).read() == held_state(2)
    (folder / COPY).unlink()
    assert StateFile(folder).read() == ModelState()


@pytest.mark.parametrize("field", [{"new_field": 1}, {"format": "emberline-state-3"}])
def test_the_state_of_a_newer_server_is_not_read_and_its_copy_neither(folder: Path, field: dict[str, Any]) -> None:
    content = {**json.loads((folder / STATE).read_bytes()), **field}
    content["digest"] = digest_of(content)
    (folder / STATE).write_bytes(canonical_json(content))
    with pytest.raises(StoreError, match="newer server"):
        StateFile(folder).read()
    assert json.loads((folder / STATE).read_bytes()) == content


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_a_state_that_cannot_be_read_now_is_read_at_the_next_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", fail)
        with pytest.raises(ReadError, match=os.strerror(number)):
            StateFile(folder).read()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert StateFile(folder).read() == held_state(2)


def _calls(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """Returns, for each kind of step of a write, a function that makes its n-th call fail."""

    def failing(module: Any, function: str) -> Callable[[int], None]:
        real = getattr(module, function)

        def arm(number: int) -> None:
            left = number

            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(errno.EIO, "the disk failed")
                return real(*arguments, **options)

            monkeypatch.setattr(module, function, call)

        return arm

    return [failing(os, "fsync"), failing(os, "replace"), failing(state_file, "sync_directory"), failing(io, "open")]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_write_that_fails_anywhere_leaves_the_state_from_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: int, number: int
) -> None:
    file = StateFile(folder)
    file.read()
    with monkeypatch.context() as patch:
        _calls(patch)[kind](number)
        try:
            file.write(held_state())
        except StoreError:
            expected = held_state(2)
        else:
            expected = held_state()
    assert StateFile(folder).read() == expected
    (folder / STATE).write_bytes(b"damaged")  # The copy holds no other decision.
    try:
        assert StateFile(folder).read() == expected
    except StoreError:
        assert not (folder / COPY).exists()


def test_a_state_that_cannot_be_written_is_an_error_and_the_old_one_stays(folder: Path) -> None:
    file = StateFile(folder)
    (folder / ".state.json.new").mkdir()
    with pytest.raises(StoreError, match=r"state\.json"):
        file.write(ModelState())
    assert file.read() == held_state(2)


class _Killed(BaseException):
    pass


def test_a_crash_between_the_two_files_leaves_one_state_in_force(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == STATE:
            raise _Killed
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(_Killed):
            StateFile(folder).write(held_state())
    assert StateFile(folder).read() == held_state(2)
    # The first file was in force: the copy, which is newer, must not bring its own state back later.
    (folder / STATE).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="damaged"):
        StateFile(folder).read()
