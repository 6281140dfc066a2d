"""Reasons why a peer of the HTTP campaign answers otherwise than this server, by the change that shows it and the peer.

Measured with uvicorn 0.54 on httptools 0.8 and granian 2.8. A reason holds for its change alone; a request with more
than one change has the reasons of each.
"""

from __future__ import annotations

UVICORN, GRANIAN = "uvicorn", "granian"

_NO_CHECK = "it leaves the check to the application; RFC 9112 asks the server to refuse"
_BOUND = "it bounds the head less closely; ours are 16 KiB of a target, 64 KiB of a head and 128 headers"
_FRAMEWORK = "it has read the broken body when its application stops, and says 500; ours refuses the framing"
_CODING = "it knows of no status for it; RFC 9112 6.1 has 501"
_VERSION_400 = "it says 400; RFC 9110 15.6.6 has 505"
_VERSION_200 = "it takes any version; RFC 9110 15.6.6 has 505"
_OFFER = (
    "it refuses the offer of another protocol, which Java's client and curl make; RFC 9110 7.8 lets a server ignore it"
)
_SLASH = "it decodes the slash before the path is divided; ours keeps a name whole"

REASONS: dict[str, dict[str, str]] = {
    "CONNECT": {
        UVICORN: "it reads what follows as another protocol and gives up; ours says 501 and ends",
        GRANIAN: "it hands the method to the application, and goes on with HTTP behind it; ours ends the connection",
    },
    "a method in small letters": {GRANIAN: "any word is a method for it; httptools knows the registered ones"},
    "an unknown method": {GRANIAN: "any word is a method for it; httptools knows the registered ones"},
    "an encoded slash": {UVICORN: _SLASH, GRANIAN: _SLASH},
    "a target of 20 kB": {UVICORN: _BOUND, GRANIAN: _BOUND},
    "a target of 100 kB": {
        UVICORN: "its parser of URLs ends at 64 KiB, and it says 400; RFC 9110 15.5.15 has 414",
        GRANIAN: "it says 414 as well, but finds other mistakes of the head first",
    },
    "a target without a slash": {GRANIAN: "it takes it for a path; RFC 9112 3.2 has no such form"},
    "HTTP/0.9": {UVICORN: _VERSION_200, GRANIAN: _VERSION_400},
    "HTTP/2.0": {UVICORN: _VERSION_200, GRANIAN: _VERSION_400},
    "HTTP/1.7": {UVICORN: "it says 400, and no such version was ever made", GRANIAN: _VERSION_400},
    "no version": {UVICORN: "it takes HTTP/0.9", GRANIAN: _VERSION_400},
    "HTTP/1.0": {
        UVICORN: "it takes chunks of HTTP/1.0, which has none; RFC 9112 6.1 says that such framing is faulty",
        GRANIAN: "it takes chunks of HTTP/1.0, which has none; RFC 9112 6.1 says that such framing is faulty",
    },
    "no Host": {UVICORN: _NO_CHECK, GRANIAN: _NO_CHECK},
    "two Hosts": {UVICORN: _NO_CHECK, GRANIAN: _NO_CHECK},
    "a Host with a path": {UVICORN: _NO_CHECK, GRANIAN: _NO_CHECK},
    "a trailer Content-Length": {GRANIAN: "it drops the trailer; httptools refuses one that is about framing"},
    "a space behind the size": {GRANIAN: "it takes the space, which RFC 9112 7.1.1 calls bad; a proxy may not"},
    "a size that is none": {GRANIAN: _FRAMEWORK},
    "a size with 0x": {GRANIAN: _FRAMEWORK},
    "a negative size": {GRANIAN: _FRAMEWORK},
    "a size of 2**64": {GRANIAN: _FRAMEWORK},
    "a chunk longer than said": {GRANIAN: _FRAMEWORK},
    "equal lengths": {GRANIAN: "it takes one of the two, which RFC 9112 6.3 allows; ours refuses any second length"},
    "both framings": {GRANIAN: "it takes the chunks and ends, which RFC 9112 6.1 allows; ours refuses"},
    "an unknown coding": {UVICORN: _CODING, GRANIAN: _CODING},
    "chunked twice": {GRANIAN: "it reads it as once; RFC 9112 6.1 forbids it"},
    "gzip, chunked": {
        UVICORN: "it hands on what is still compressed; RFC 9112 6.1 has 501 for a coding that is not understood",
        GRANIAN: "it hands on what is still compressed; RFC 9112 6.1 has 501 for a coding that is not understood",
    },
    "identity": {UVICORN: _CODING, GRANIAN: _CODING},
    "an offer of h2c": {UVICORN: _OFFER},
    "an offer of websocket": {UVICORN: _OFFER, GRANIAN: "it answers it as one, by ASGI's websockets; ours has none"},
    "an offer of foo": {UVICORN: _OFFER},
    "150 headers": {UVICORN: _BOUND, GRANIAN: "it says 431 as well, but before other mistakes of the head"},
    "a header of 100 kB": {UVICORN: _BOUND, GRANIAN: _BOUND},
    "bare line feeds": {
        GRANIAN: "it takes them, which RFC 9112 2.2 allows; two readers may see two heads, so ours does not"
    },
    "HEAD": {UVICORN: "it sends content with the error of a head that it cannot read"},
}
TWO_MISTAKES = "two mistakes in one request, and each reports the one that it sees first"


def reason(names: list[str], who: str, *, mistakes: int) -> str:
    """Returns why `who` differs on a request with these changes, "" for no reason.

    mistakes: how many of the changes are refused.
    """
    found = next((f"{name}: {REASONS[name][who]}" for name in names if who in REASONS.get(name, {})), "")
    return found or (TWO_MISTAKES if mistakes > 1 else "")
