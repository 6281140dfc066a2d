"""HTTP on which servers disagree: what this one answers, natively and by its Python path, whole and in pieces."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from serving import Server
from serving.http.native_server import NativeHttpServer
from tests.external import http_smuggling
from tests.external.http_smuggling import PLACES, Prober, Unexpected, findings
from tests.external.http_vectors import Vector
from tests.integration.serving.conftest import Published
from tests.support.examples import examples


@pytest.fixture(scope="module")
def native(server: Server) -> NativeHttpServer:
    assert server.native is not None
    return server.native


@pytest.fixture(scope="module")
def prober(server: Server, published: Published) -> Prober:
    return Prober(server.http_port, published)


def test_native_code_answers_the_plain_ones_and_no_others(native: NativeHttpServer, prober: Prober) -> None:
    lines = {vector: prober.line() for vector in prober.vectors}
    with ExitStack() as opened:
        for vector, line in lines.items():
            opened.enter_context(line)
            before = native.native.answered
            prober.ask(line, vector, [vector.data], is_led=True, is_followed=True)
            # The one behind it is answered where the one before it was.
            behind = int(vector.end == "open" and vector.native == len(vector.statuses))
            assert native.native.answered == before + 1 + vector.native + behind, vector.name
        answered = native.native.answered
        with ThreadPoolExecutor(http_smuggling.THREADS) as threads:
            list(threads.map(lambda vector: prober.check_rest(lines[vector], vector), lines))
        assert native.native.answered == answered


@pytest.mark.slow
def test_every_vector_is_answered_as_the_rfc_asks_whole_and_in_pieces(prober: Prober) -> None:
    # With more, a connection may wait for its turn on a busy machine for longer than the server waits for its client.
    _, wrong = findings(prober, prober.vectors, examples(4), 16, places=examples(len(PLACES)))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["plain", "plain, GET, plain, chunks, plain", "CL.TE", "TE.CL", "quoted chunk extensions", "trailers"]
)
def test_requests_are_cut_at_every_byte(prober: Prober, name: str) -> None:
    """With fewer examples of properties, at every few bytes."""
    (vector,) = [vector for vector in prober.vectors if vector.name == name]
    places = range(1, len(vector.data), len(vector.data) // examples(len(vector.data)))

    def send(place: int) -> None:
        pieces = [vector.data[:place], vector.data[place:]]
        prober.check(vector, pieces, is_led=place % 2 == 0, is_followed=place % 3 == 0)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(send, places))


def test_a_vector_that_is_answered_otherwise_is_a_finding(prober: Prober, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_smuggling, "TIMEOUT_S", 1.0)  # for the answers that never come
    plain = prober.vectors[0].data
    for statuses, end in (((400,), "open"), ((200, 200), "open"), ((200,), "closed"), ((200,), "inside"), ((), "open")):
        with pytest.raises(Unexpected):
            prober.check(Vector("wrong", plain, statuses, end), [plain], is_led=False, is_followed=end == "inside")
