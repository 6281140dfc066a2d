"""A stream of Redis or Valkey, read by the ids of its entries.

Nothing is acknowledged, and there is no consumer group: the position is the id of the last entry and how many entries
the stream had been given up to it. The count shows whether entries behind the position were trimmed before they were
read. It takes `entries-added` of XINFO STREAM, which Redis 7 and Valkey have.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from storage.data.columns import Wanted
from storage.data.options import DataOptions
from storage.data.streams.address import Address
from storage.data.streams.base import Credentials, Piece, Position, slice_piece
from storage.data.streams.messages import Messages, without_damaged
from storage.data.streams.start import CLOCKS_MS, Start
from storage.errors import ConfigError, InvalidInput

logger = logging.getLogger("emberline.data")

SCHEMES = ("redis", "rediss")
_OPTIONS = ("stream", "json", "arrow")
# Entries of fields that are read at once, and entries that hold batches.
_ENTRIES, _BATCH_ENTRIES = 2_000, 8
_TIMEOUT_S = 10.0
_RETRY_S, _RETRY_AT_MOST_S = 0.1, 10.0
_ZERO = "0-0"
# The number of entries up to a position that was found by a time, until the end of the stream is reached.
_UNKNOWN = -1


class RedisSource:
    """The entries of a stream. See `StreamSource`."""

    def __init__(self, url: str, wanted: Wanted, options: DataOptions, credentials: Credentials) -> None:
        address = Address.of(url, _OPTIONS)
        self._key = address.options.get("stream", "")
        if not self._key:
            raise ConfigError(
                f"{address.scheme}://{address.hosts}: names no stream; expected redis://HOST:PORT/0?stream=NAME",
                field="follow",
            )
        forms = [name for name in ("json", "arrow") if name in address.options]
        if len(forms) > 1:
            raise ConfigError(f"{address.hosts}: json and arrow both name the field of the rows", field="follow")
        self._form = forms[0] if forms else "fields"
        self._field = address.options[forms[0]].encode() if forms else b""
        database = address.path or "0"
        if not database.isdigit():
            raise ConfigError(f"{address.hosts}/{database}: expected the number of a database, as /0", field="follow")
        self._name = f"{address.scheme}://{address.hosts}/{database}?stream={self._key}"
        self._messages = Messages(wanted, options)
        self._skips = options.on_damaged == "skip"
        self._redis = _client(address, int(database), credentials)
        self._position: dict[str, Any] = {"id": _ZERO, "count": 0, "row": 0}
        self._pieces: deque[Piece] = deque()
        # The entry at the position, if it is there.
        self._same: Any = None
        self._added = self._length = 0
        self._wait_s = 0.0
        self._again_at = 0.0

    @property
    def name(self) -> str:
        """The URL without credentials and options."""
        return self._name

    @property
    def is_expecting(self) -> bool:
        """True while the server cannot be reached."""
        return self._wait_s > 0.0

    def waiting(self) -> tuple[int, str]:
        """Returns the number of entries behind the last one that was read."""
        count = int(self._position["count"])
        return max(0, self._added - count) if count != _UNKNOWN else self._length, "entries"

    def close(self) -> None:
        """Ends the connection."""
        self._redis.close()

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        """Continues behind an entry. Raises ConfigError when the server cannot be reached."""
        import redis

        try:
            _, there = self._fetch(_ZERO if position is None else str(position["id"]), 1)
        except redis.RedisError as error:
            raise ConfigError(f"{self._name}: cannot be read: {error}", field="follow") from None
        if position is not None:
            self._position = dict(position)
            try:
                self._check(there)
            except ConfigError as error:
                if not skip_lost:
                    raise
                logger.warning("going on without the rows that were lost: %s", error)
                self._begin(there, "earliest")
        else:
            self._begin(there, start)
        return self._position

    def _before(self, start: int) -> bytes | None:
        """Returns the id of the last entry that is older than a time; None without one."""
        import redis

        try:
            found = self._redis.xrevrange(self._key, f"({max(0, start - CLOCKS_MS)}-0", "-", 1)
        except redis.RedisError as error:
            raise ConfigError(f"{self._name}: cannot be read: {error}", field="follow") from None
        return found[0][0] if found else None

    def _begin(self, there: dict[str, Any] | None, start: Start) -> None:
        if there is not None and start == "latest":
            self._position = {"id": there["last-generated-id"].decode(), "count": there["entries-added"], "row": 0}
        elif there is not None and isinstance(start, int) and (before := self._before(start)) is not None:
            self._position = {"id": before.decode(), "count": _UNKNOWN, "row": 0}
        elif there is not None:
            self._position = {"id": _ZERO, "count": there["entries-added"] - there["length"], "row": 0}

    def read(self, rows: int) -> Piece | None:
        """Returns the rows of the next entries; None also while the server cannot be reached."""
        import redis

        if self._pieces:
            return self._pieces.popleft()
        if time.monotonic() < self._again_at:
            return None
        try:
            self._take(_ENTRIES if self._form != "arrow" else _BATCH_ENTRIES)
        except (redis.AuthenticationError, redis.ResponseError) as error:
            raise ConfigError(f"{self._name}: {error}", field="follow") from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            if not self._wait_s:
                logger.warning("%s: cannot be reached (%s); trying again", self._name, error)
            self._wait_s = min(_RETRY_AT_MOST_S, 2 * self._wait_s or _RETRY_S)
            self._again_at = time.monotonic() + self._wait_s
            return None
        if self._wait_s:
            logger.warning("%s: is reached again", self._name)
            self._wait_s = 0.0
        return self._pieces.popleft() if self._pieces else None

    def _take(self, count: int) -> None:
        """Reads entries behind the position, into pieces."""
        last = str(self._position["id"])
        entries, there = self._fetch(last, count)
        self._check(there)
        if there is None or not entries:
            return
        ids = [entry[0].decode() for entry in entries]
        count = int(self._position["count"])
        counts = [_UNKNOWN if count == _UNKNOWN else count + number + 1 for number in range(len(ids))]
        if ids[-1] == there["last-generated-id"].decode():
            counts[-1] = there["entries-added"]  # entries in between were deleted one by one
        ends = [{"id": name, "count": number, "row": 0} for name, number in zip(ids, counts, strict=True)]
        if self._form == "arrow":
            self._take_batches(entries, ids, ends)
        else:
            self._take_rows(entries, ids, ends)
        self._position = ends[-1]

    def _take_rows(self, entries: list[Any], ids: list[str], ends: list[Position]) -> None:
        decode: Any = self._messages.fields if self._form == "fields" else self._messages.objects

        def table_of(chosen: list[int]) -> Any:
            values = [entries[row][1] if self._form == "fields" else self._value(*entries[row]) for row in chosen]
            return decode(values, lambda row: self._place(ids[chosen[row]]))

        found = without_damaged(table_of, len(ids), skips=self._skips)
        if found is None:
            return
        table, kept = found

        def after(rows: int) -> Position:
            return ends[-1] if rows == len(kept) else ends[kept[rows - 1]]

        self._pieces.append(Piece(table, after, lambda row: self._place(ids[kept[row]])))

    def _take_batches(self, entries: list[Any], ids: list[str], ends: list[Position]) -> None:
        before = self._position
        for name, (_, fields), end in zip(ids, entries, ends, strict=True):
            place = self._place(name)
            try:
                table = self._messages.batches(self._value(name.encode(), fields), place)
            except InvalidInput as error:
                if not self._skips:
                    raise
                logger.warning("left out as damaged: %s", error)
                before = end
                continue
            piece = slice_piece(table, before, end, place)
            if piece is not None:
                self._pieces.append(piece)
            before = end

    def _value(self, entry: bytes, fields: dict[bytes, bytes]) -> bytes:
        if self._field not in fields:
            there = ", ".join(sorted(field.decode(errors="replace") for field in fields))
            raise InvalidInput(
                f"{self._place(entry.decode())}: has no field {self._field.decode()!r}; it has {there}", field="follow"
            )
        return fields[self._field]

    def _place(self, name: str) -> str:
        return f"{self._name}: entry {name}"

    def _fetch(self, last: str, count: int) -> tuple[list[Any], dict[str, Any] | None]:
        """Returns entries behind an id, and what the server says of the stream at that moment; None without one."""
        import redis

        with self._redis.pipeline(transaction=True) as calls:
            calls.xread({self._key: last}, count)
            calls.xinfo_stream(self._key)
            calls.xrange(self._key, last, last)
            found, there, self._same = calls.execute(raise_on_error=False)
        for answer in (found, there, self._same):
            if isinstance(answer, redis.RedisError) and "no such key" not in str(answer):
                raise answer
        if isinstance(there, Exception):
            return [], None
        if "entries-added" not in there:
            raise ConfigError(
                f"{self._name}: the server does not say how many entries were added; expected Redis 7 or later, or "
                "Valkey",
                field="follow",
            )
        self._added, self._length = int(there["entries-added"]), int(there["length"])
        return [entry for _, entries in found or () for entry in entries], there

    def _check(self, there: dict[str, Any] | None) -> None:
        """Raises ConfigError when entries behind the position are not there any more."""
        last, count = str(self._position["id"]), int(self._position["count"])
        if there is None or self._same:
            return  # the last one read is still there, and streams are trimmed from their oldest entry on
        if count == _UNKNOWN:
            raise ConfigError(
                f"{self._name}: the entry {last}, the last one read, was trimmed before the end of the stream was "
                "reached, and entries behind it may be gone. Keep more of the stream (XADD MAXLEN, MINID); to go on "
                "without them, give --skip-lost",
                field="follow",
            )
        if there["entries-added"] < count:
            raise ConfigError(
                f"{self._name}: was made anew: {count:,} entries had been added up to the last one read ({last}), and "
                f"the stream says {there['entries-added']:,}. Follow it under another name (stream=), or go back "
                "(--at)",
                field="follow",
            )
        gone = there["entries-added"] - there["length"] - count
        if gone > 0:
            raise ConfigError(
                f"{self._name}: {gone:,} entries behind {last}, the last one read, were trimmed before they were read. "
                "Keep more of the stream (XADD MAXLEN, MINID); to go on without them, give --skip-lost",
                field="follow",
            )


def _client(address: Address, database: int, credentials: Credentials) -> Any:
    try:
        import redis
    except ImportError:
        raise ConfigError("follow: redis:// needs a package: pip install 'emberline[redis]'", field="follow") from None
    host, _, port = address.hosts.rpartition(":")
    if not host:
        host, port = address.hosts, "6379"
    if not port.isdigit():
        raise ConfigError(f"{address.hosts}: expected HOST:PORT", field="follow")
    return redis.Redis(
        host=host.strip("[]"),
        port=int(port),
        db=database,
        username=address.user or credentials.user,
        password=address.password or credentials.password,
        ssl=address.scheme == "rediss",
        protocol=2,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
    )
