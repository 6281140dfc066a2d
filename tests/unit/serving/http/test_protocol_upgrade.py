"""A request that offers another protocol is an ordinary request, whose body is framed as it says."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.serving.http.test_protocol import Served, post, response, run

OFFERS = {
    "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    "websocket": "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "foo": "Connection: keep-alive, Upgrade\r\nUpgrade: foo/2",
}
# What a proxy takes for a body must not be taken for a request here.
SMUGGLED = post("/smuggled", b"s")
JAVA = """
import java.net.URI;
import java.net.http.*;

class Post {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        for (var body : new String[] {"first", "second"}) {
            var request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
            var response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
        }
    }
}
"""


def framed(body: bytes, framing: str) -> tuple[str, bytes]:
    """Returns the header that frames a body, and the bytes of the body."""
    if framing == "length":
        return f"Content-Length: {len(body)}\r\n", body
    if framing == "chunked":
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]))
        return "Transfer-Encoding: chunked\r\n", chunks + b"0\r\nLast: 1\r\n\r\n"
    return "", b""


@pytest.mark.parametrize("pieces", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("path", ["/a", "/none"])
@pytest.mark.parametrize("framing", ["length", "chunked", "no body"])
@pytest.mark.parametrize("offer", OFFERS)
def test_the_body_stays_a_body(offer: str, framing: str, path: str, pieces: bool) -> None:
    header, body = framed(SMUGGLED, framing)
    request = f"POST {path} HTTP/1.1\r\nHost: h\r\n{OFFERS[offer]}\r\n{header}\r\n".encode() + body
    sent = request + post("/b", b"2") + request + post("/c", b"3")

    async def test(served: Served) -> None:
        reader, writer = await served.connect()
        for part in [sent[at : at + 7] for at in range(0, len(sent), 7)] if pieces else [sent]:
            writer.write(part)
            await asyncio.sleep(0)
        for after in (b"/b||2", b"/c||3"):
            status, head, content = await response(reader)
            assert b"upgrade" not in head.lower()
            if path == "/none":
                assert status == 404
                if framing == "chunked":
                    assert b"connection: close" in head  # its pieces are not read
                    assert await reader.read() == b""
                    break
            else:
                assert (status, content) == (200, b"/a||" + (SMUGGLED if framing != "no body" else b""))
            assert (await response(reader))[2] == after
        assert served.limits._held == 0

    run(test)


@pytest.mark.parametrize(
    ("framing", "expected"), [("Transfer-Encoding: foo", 501), ("Transfer-Encoding: chunked, foo", 400)]
)
def test_framing_that_nobody_can_read_is_refused_all_the_same(framing: str, expected: int) -> None:
    async def test(served: Served) -> None:
        head = f"POST /a HTTP/1.1\r\nHost: h\r\n{OFFERS['h2c']}\r\n{framing}\r\n\r\n"
        reader, _ = await served.connect(head.encode() + SMUGGLED)
        status, head_bytes, _ = await response(reader)
        assert status == expected
        assert b"connection: close" in head_bytes
        assert await reader.read() == b""
        assert not served.app.headers

    run(test)


def test_a_body_behind_an_offer_is_bounded() -> None:
    async def test(served: Served) -> None:
        head = f"POST /a HTTP/1.1\r\nHost: h\r\n{OFFERS['h2c']}\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, _ = await served.connect(head.encode() + b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert (await response(reader))[0] == 413
        assert await reader.read() == b""
        assert served.limits._held == 0

    run(test, max_body_bytes=4000)


def test_a_tunnel_is_refused_and_what_comes_through_it_is_no_request() -> None:
    async def test(served: Served) -> None:
        reader, _ = await served.connect(b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n" + SMUGGLED)
        status, head, content = await response(reader)
        assert status == 501
        assert b"connection: close" in head
        assert b"CONNECT" in content
        assert await reader.read() == b""
        assert not served.app.headers

    run(test)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_offers_http_2_and_gets_its_answer() -> None:
    async def test(served: Served) -> None:
        url = f"http://127.0.0.1:{served.port}/a"
        curl = ("curl", "--silent", "--show-error", "--max-time", "20", "--http2", "--data", SMUGGLED.decode())
        asked = await asyncio.create_subprocess_exec(*curl, url, "--next", *curl[1:], url, stdout=subprocess.PIPE)
        content, _ = await asked.communicate()
        assert asked.returncode == 0
        assert content == 2 * (b"/a||" + SMUGGLED)
        assert served.app.headers[0][b"upgrade"] == b"h2c"

    run(test)


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK is installed")
def test_javas_client_offers_http_2_and_gets_its_answer(tmp_path: Path) -> None:
    program = tmp_path / "Post.java"
    program.write_text(JAVA)

    async def test(served: Served) -> None:
        url = f"http://127.0.0.1:{served.port}/a"
        asked = await asyncio.create_subprocess_exec("java", str(program), url, stdout=subprocess.PIPE)
        content, _ = await asked.communicate()
        assert content == b"200 /a||first\n200 /a||second\n"
        assert served.app.headers[0][b"upgrade"] == b"h2c"

    run(test)
