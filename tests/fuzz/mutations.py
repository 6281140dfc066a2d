"""Makes small changes to good inputs: to bytes, and to JSON values.

Every choice comes from the generator that is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

# Values that decoders have got wrong, here and elsewhere: edges of types, counts that overflow, invalid text.
INTEGERS = (
    *(0, 1, -1, 2, 3, 7, 64, 65, 127, 128, 255, 256, 65_535, 65_536, 10**6),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1),
    *(2**64, 2**64 + 1, 10**30, -(10**30)),
)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.5, 1e-45, 1e-308, 3.4e38, 1e39, 1.7e308, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    *(
        "",
        " ",
        "a",
        "true",
        "null",
        "0",
        "-1",
        "1e5",
        "..",
        "../../etc/passwd",
        "/",
        "\x00",
        "\n",
        '"',
        "\\",
        "{",
        "[]",
    ),
    *("\u00e9", "\ud800", "\U0001f600", "%s%n", "a" * 300, "a" * 5000, "name.lengths", "user.valid", "latest", "1.0"),
)
WORDS = (
    *("inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "instances", "signature_name"),
    *("binary_data", "binary_data_size", "binary_data_output", "classification", "timeout", "priority", "routing_key"),
    *("min_snapshot", "sequence_id", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "b64"),
    *("BOOL", "INT8", "INT32", "INT64", "UINT64", "FP16", "BF16", "FP32", "FP64", "BYTES", "TYPE_STRING"),
    *("user", "item", "price", "tags", "history", "history.lengths", "tags.valid", "score", "like", "ranker", "1"),
)
_PIECES = (
    b"\x00",
    b"\xff",
    b"\r\n",
    b"\r\n\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\u0000",
    b"NaN",
    b"1e999",
)
MAX_BYTES = 200_000


def scalar(rng: Random) -> Any:
    """Returns a JSON value that is neither a list nor an object."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(INTEGERS)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice((None, True, False))
    return rng.getrandbits(rng.randrange(1, 70))


def value(rng: Random) -> Any:
    """Returns a JSON value of any kind, mostly small; sometimes deep or long."""
    kind = rng.randrange(12)
    if kind < 8:
        return scalar(rng)
    if kind == 8:
        return [scalar(rng) for _ in range(rng.randrange(5))]
    if kind == 9:
        return {rng.choice(WORDS): scalar(rng) for _ in range(rng.randrange(4))}
    if kind == 10:
        deep: Any = scalar(rng)
        for _ in range(rng.choice((2, 9, 60))):
            deep = [deep] if rng.random() < 0.7 else {"data": deep}
        return deep
    return [rng.choice((None, 0, 1.5, "x", []))] * rng.choice((100, 1000, 5000))


def mutate_json(rng: Random, tree: Any) -> Any:
    """Returns a tree with one change. The given tree may be changed, too."""
    holders = _holders(tree)
    if not holders or rng.random() < 0.02:
        return value(rng)
    holder, key = rng.choice(holders)
    kind = rng.randrange(8)
    if kind < 3:
        holder[key] = value(rng)
    elif kind == 3:
        del holder[key]
    elif kind == 4:
        # A value from another place is of the right kind more often than a random one.
        other, place = rng.choice(holders)
        holder[key] = json.loads(json.dumps(other[place]))
    elif kind == 5:
        _near(rng, holder, key)
    elif kind == 6 and isinstance(holder, dict):
        holder[rng.choice(WORDS)] = value(rng)
    elif kind == 6:
        holder.insert(rng.randrange(len(holder) + 1), value(rng))
    elif isinstance(holder, list):
        holder.extend(holder[: rng.choice((1, 2, 50))])
    else:
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"data": holder[key]}
    return tree


def mutate_bytes(rng: Random, data: bytes, pieces: Sequence[bytes] = _PIECES) -> bytes:
    """Returns bytes with one change."""
    if not data:
        return rng.randbytes(rng.randrange(1, 20))
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 1, 2, 4, 8, 40)))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:start] + bytes([data[start] ^ (1 << rng.randrange(8))]) + data[start + 1 :]
    if kind == 1:
        return data[:start] + rng.randbytes(end - start) + data[end:]
    if kind == 2:
        return data[:start] + data[end:]
    if kind == 3:
        return data[:start]
    if kind == 4:
        return data[:start] + rng.choice(pieces) + data[start:]
    if kind == 5:
        return (data[:end] + data[start:end] * rng.choice((1, 2, 100)) + data[end:])[:MAX_BYTES]
    if kind == 6:
        return data[:start] + _number(rng) + data[start:]
    return data[:start] + _number(rng) + data[end:]


def dump(rng: Random, tree: Any) -> bytes:
    """Encodes a tree as some client might write it; invalid text is encoded as a faulty client would."""
    text = json.dumps(tree, separators=(",", ":") if rng.random() < 0.8 else None, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def _holders(tree: Any, limit: int = 400) -> list[tuple[Any, Any]]:
    """Returns every place of a tree, as the container and the key in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < limit:
        holder = waiting.pop()
        if isinstance(holder, dict):
            keys: Sequence[Any] = list(holder)
        elif isinstance(holder, list):
            keys = range(min(len(holder), 12))
        else:
            continue
        for key in keys:
            found.append((holder, key))
            waiting.append(holder[key])
    return found


def _near(rng: Random, holder: Any, key: Any) -> None:
    """Returns a value that is almost the given one."""
    now = holder[key]
    if type(now) is int:
        holder[key] = rng.choice((now + 1, now - 1, -now, now * 2, float(now), str(now), now + 2**64))
    elif isinstance(now, str):
        holder[key] = rng.choice((now[:-1], now + "x", now.upper(), now.lower(), now + ".lengths", now + ".valid"))
    elif isinstance(now, list):
        holder[key] = rng.choice((now[:-1], now[1:], [now], [*now, None], list(reversed(now))))
    else:
        holder[key] = value(rng)


def _number(rng: Random) -> bytes:
    number = rng.choice(INTEGERS)
    if rng.random() < 0.5:
        return str(number).encode()
    size = rng.choice((1, 2, 4, 8))
    return (number % 256**size).to_bytes(size, rng.choice(("little", "big")))
