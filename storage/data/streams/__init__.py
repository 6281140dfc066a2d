"""Sources of rows that go on: each gives the rows that have come, and the position behind every one of them."""

from __future__ import annotations

from storage.data.streams.base import Credentials, Piece, Position, StreamSource
from storage.data.streams.join_log import JoinLog
from storage.data.streams.join_options import JoinOptions, KindOptions
from storage.data.streams.joined import JoinedSource
from storage.data.streams.opening import open_stream
from storage.data.streams.start import Start, start_of

__all__ = [
    "Credentials",
    "JoinLog",
    "JoinOptions",
    "JoinedSource",
    "KindOptions",
    "Piece",
    "Position",
    "Start",
    "StreamSource",
    "open_stream",
    "start_of",
]
