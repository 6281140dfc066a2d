"""Keeps the bytes that a client has sent ahead of its answers, unparsed, and finds where requests in them end."""

from __future__ import annotations

from serving.http.limits import HttpLimits

# The end of a head, and of a body in chunks. A chunk may contain it too.
_END = b"\r\n\r\n"
# The most pieces that are parsed in one iteration of the loop: heads, bodies, and parts of a body in chunks.
PIECES_AT_ONCE = 64


class StopParsing(Exception):  # noqa: N818
    """Ends the parsing of a request that was refused, and with which the connection ends."""


class Unread:
    """Holds the bytes of one connection that are not parsed yet, counted by the limits of its port."""

    __slots__ = ("_limits", "_tail", "data")

    def __init__(self, limits: HttpLimits) -> None:
        self.data = b""
        self._limits = limits
        # The last bytes of the previous read, for an _END that two reads share.
        self._tail = b""

    def keep(self, data: bytes) -> None:
        """Replaces the kept bytes by `data`, which begins with a request or within a body. Raises Overloaded."""
        self._limits.release_unread(len(self.data))
        self.data = self._tail = b""
        if data:
            self._limits.hold_unread(len(data))
            self.data = data

    def consumed(self, data: bytes) -> None:
        """Records that all bytes of `data` were parsed."""
        tail = (self._tail + data[-3:])[-3:]
        if self.data:
            self.keep(b"")
        self._tail = tail

    def piece_end(self, data: bytes, start: int, body_left: int) -> int:
        """Returns where the head or body at `start` ends, so that no piece contains the ends of two requests.

        body_left: bytes left of a body whose length was declared, else 0.
        """
        if body_left:
            return min(len(data), start + body_left)
        if start == 0:
            shared = (self._tail + data[:3]).find(_END)
            if shared >= 0:
                return shared + len(_END) - len(self._tail)
        end = data.find(_END, start)
        return len(data) if end < 0 else end + len(_END)
