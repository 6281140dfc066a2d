"""The history of bytes of the simulated GPU, beside one that remembers every access to every byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated_gpu.ordering import History, Operation, Stream, joined
from tests.support.examples import examples

SIZE, STREAMS = 20, 3


class Touched:
    """Remembers every access, one after the other."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, int, bool, Operation]] = []

    def conflicts(self, begin: int, end: int, is_write: bool, stream: Stream) -> bool:
        return any(
            begin < b and a < end and (is_write or wrote) and operation.stream is not stream
            for a, b, wrote, operation in self.accesses
            if not operation.is_known(stream.before)
        )


accesses = st.tuples(
    st.integers(0, STREAMS - 1), st.integers(0, SIZE - 1), st.integers(1, SIZE), st.booleans(), st.integers(0, 5)
)


@settings(max_examples=examples(300))
@given(st.lists(accesses, max_size=60))
def test_histories_know_every_conflict(program: list[tuple[int, int, int, bool, int]]) -> None:
    streams = [Stream(None, number, str(number), 1.0) for number in range(STREAMS)]
    history, touched = History(), Touched()
    for number, begin, size, is_write, then in program:
        stream, end = streams[number], min(begin + size, SIZE)
        found = history.conflict(begin, end, is_write, stream)
        assert (found is not None) == touched.conflicts(begin, end, is_write, stream)
        if found is None:
            operation = Operation(stream, 0, "access", "", ())
            stream.put += 1
            history.add(begin, end, is_write, operation)
            touched.accesses.append((begin, end, is_write, operation))
        other = streams[then % STREAMS]
        if then < STREAMS:
            other.follow(stream.clock(), 0)
        elif then == STREAMS:
            # All wait for this stream: what it has seen can race with nothing any more.
            known = stream.clock()
            for each in streams:
                each.follow(known, 0)
            history.forget(known)
            left = [each for each in touched.accesses if not each[3].is_known(known)]
            assert (history.unknown(known) is None) == (not left)


@given(*[st.dictionaries(st.integers(0, 4), st.integers(1, 9))] * 3)
def test_clocks_are_joined(one: dict[int, int], other: dict[int, int], third: dict[int, int]) -> None:
    both = joined(one, other)
    assert both == {key: max(one.get(key, 0), other.get(key, 0)) for key in {*one, *other}}
    assert joined(both, other) is both
    assert joined(joined(one, other), third) == joined(one, joined(third, other))


def test_histories_forget_in_time() -> None:
    history, stream = History(), Stream(None, 0, "s", 1.0)
    for at in range(1000):
        operation = Operation(stream, 0, "access", "", ())
        stream.put += 1
        history.add(2 * at, 2 * at + 1, False, operation)
        if history.is_long():
            history.forget({0: stream.put - 10})
            assert not history.is_long()
    assert history.unknown({0: stream.put - 1}) is operation
    assert history.unknown({0: stream.put}) is None
    history.forget({0: stream.put})
    assert history.conflict(0, 2000, True, Stream(None, 1, "t", 1.0)) is None
