"""A topic of Kafka, read by the offsets of its partitions.

Partitions are assigned and never subscribed to, and no offset is committed to a broker: the position has the next
offset of each partition. Partitions take turns of some messages each, and one whose end is reached is passed over. The
position also has whose turn it is, so the order of the rows follows from what lies in the topic and not from when
brokers answer.
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
from storage.data.streams.kafka_client import KafkaClient
from storage.data.streams.messages import Messages, without_damaged
from storage.data.streams.start import CLOCKS_MS, Start
from storage.errors import ConfigError, InvalidInput

logger = logging.getLogger("emberline.data")

SCHEMES = ("kafka",)
# Messages of a turn, and those that are taken from librdkafka at once.
_TURN, _AT_ONCE = 64, 512
# Of a partition that are held ahead of its turn. Beyond it is paused, after which librdkafka fetches anew: that takes
# half a second, so this is for partitions that are far ahead of others.
_HELD, _HELD_BYTES = 8_192, 16 << 20
_TIMEOUT_S = 10.0
_PARTITIONS_EVERY_S = 30.0


class KafkaSource:
    """The messages of a topic. See `StreamSource`."""

    def __init__(self, url: str, wanted: Wanted, options: DataOptions, credentials: Credentials) -> None:
        address = Address.of(url, ("value",), dotted=True)
        self._topic = address.path
        if not self._topic:
            raise ConfigError(
                f"kafka://{address.hosts}: names no topic; expected kafka://BROKER:9092/TOPIC", field="follow"
            )
        given = dict(address.options)
        self._form = given.pop("value", "arrow")
        self._name = f"kafka://{address.hosts}/{self._topic}"
        if self._form not in ("arrow", "json"):
            raise ConfigError(f"{self._name}: value is {self._form!r}, expected arrow or json", field="follow")
        self._messages = Messages(wanted, options)
        self._skips = options.on_damaged == "skip"
        self._client = KafkaClient(address, given, self._name, credentials)
        self._kafka, self._consumer = self._client.kafka, self._client.consumer
        self._next: dict[int, int] = {}
        self._row = 0
        self._turn = self._taken = 0
        self._held: dict[int, deque[Any]] = {}
        self._held_bytes: dict[int, int] = {}
        self._paused: set[int] = set()
        # Partitions of which everything was fetched.
        self._ended: set[int] = set()
        self._pieces: deque[Piece] = deque()
        self._looked_at = time.monotonic()

    @property
    def name(self) -> str:
        """The URL without credentials and options."""
        return self._name

    @property
    def is_expecting(self) -> bool:
        """True while a partition may have messages that were not fetched yet, as when brokers cannot be reached."""
        return self._client.is_failing or len(self._ended) < len(self._next) or any(self._held.values())

    def waiting(self) -> tuple[int, str]:
        """Returns the number of messages behind the last ones that were read."""
        count = 0
        for number, offset in list(self._next.items()):
            _, high = self._consumer.get_watermark_offsets(self._partition(number), cached=True)
            count += max(0, high - offset)
        return count, "messages"

    def close(self) -> None:
        """Ends the connections."""
        self._consumer.close()

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        """Continues behind a position. Raises ConfigError when no broker answers, or there is no such topic."""
        there = {number: self._bounds(number) for number in self._partitions()}
        begin = self._begin(there, start) if position is None else {}
        known = {} if position is None else {int(number): int(at) for number, at in position["offsets"].items()}
        if position is not None:
            self._turn, self._taken, self._row = position["turn"], position["taken"], position["row"]
        for number in sorted({*there, *known}):
            low, high = there.get(number, (0, 0))
            at = known.get(number, begin.get(number, low))
            if low <= at <= high:
                self._next[number] = at
                continue
            text = f"{self._name}: partition {number} was read up to the offset {at:,}, and "
            text += f"it holds {low:,} to {high:,}" if number in there else "it is not there any more"
            text += f"; {low - at:,} messages were removed before they were read" if at < low else "; it was made anew"
            if not skip_lost:
                raise ConfigError(
                    f"{text}. Keep messages longer (retention.ms); to go on without them, give --skip-lost (skip_lost)",
                    field="follow",
                )
            logger.warning("going on without the rows that were lost: %s", text)
            self._next[number] = low
            if number == self._turn:
                self._row = 0
        self._assign()
        return self._position()

    def _begin(self, there: dict[int, tuple[int, int]], start: Start) -> dict[int, int]:
        """Returns the offset of each partition to begin with."""
        if start == "earliest":
            return {}
        if start == "latest":
            return {number: high for number, (_, high) in there.items()}
        asked = [self._partition(number, start - CLOCKS_MS) for number in there]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=_TIMEOUT_S)
        except self._kafka.KafkaException as error:
            raise self._client.unreadable(error) from None
        offsets = {}
        for partition in found:
            low, high = there[partition.partition]
            offsets[partition.partition] = partition.offset
            if partition.offset < 0:  # no message is that new, or the broker cannot tell
                is_old = high == low or self._newest_ms(partition.partition, high) < start - CLOCKS_MS
                offsets[partition.partition] = high if is_old else low
                if not is_old:
                    logger.warning("%s: the brokers find no message by its time; reading from the oldest", self._name)
        return offsets

    def _newest_ms(self, number: int, high: int) -> int:
        """Returns the time of the last message of a partition."""
        self._consumer.assign([self._partition(number, high - 1)])
        for message in self._consumer.consume(1, _TIMEOUT_S):
            if message.error() is None:
                return int(message.timestamp()[1])
        return 1 << 62

    def read(self, rows: int) -> Piece | None:
        """Returns the rows of the next messages of a partition; None also while brokers cannot be reached."""
        if self._pieces:
            return self._pieces.popleft()
        if not any(self._held.values()):
            self._fetch(0.0)
        numbers = sorted(self._next)
        for _ in numbers:
            if self._turn not in self._next:
                self._turn, self._taken = numbers[0], 0
            if not self._held[self._turn] and self._turn not in self._ended:
                self._fetch(0.1)
            if self._held[self._turn]:
                self._take(numbers)
                if self._pieces:
                    return self._pieces.popleft()
                continue
            if self._turn not in self._ended:
                return None
            self._turn, self._taken = numbers[(numbers.index(self._turn) + 1) % len(numbers)], 0
        self._look_for_partitions()
        return None

    def _take(self, numbers: list[int]) -> None:
        """Makes pieces of the messages of the partition whose turn it is."""
        number, held = self._turn, self._held[self._turn]
        messages = [held.popleft() for _ in range(min(len(held), _TURN - self._taken))]
        self._held_bytes[number] -= sum(map(len, messages))
        if number in self._paused and not self._is_full(number, 2):
            self._paused.discard(number)
            self._consumer.resume([self._partition(number)])
        before, ends = self._position(), []
        for message in messages:
            self._next[number] = message.offset() + 1
            self._taken += 1
            self._row = 0
            if self._taken == _TURN:
                self._turn, self._taken = numbers[(numbers.index(number) + 1) % len(numbers)], 0
            ends.append(self._position())
        if self._form == "json":
            self._add_objects(messages, ends)
            return
        for message, end in zip(messages, ends, strict=True):
            self._add_batch(message, before, end)
            before = end

    def _add_objects(self, messages: list[Any], ends: list[Position]) -> None:
        def table_of(chosen: list[int]) -> Any:
            values = [self._value(messages[row]) for row in chosen]
            return self._messages.objects(values, lambda row: self._place(messages[chosen[row]]))

        found = without_damaged(table_of, len(messages), skips=self._skips)
        if found is not None:
            table, kept = found
            self._pieces.append(
                Piece(
                    table,
                    lambda rows: ends[-1] if rows == len(kept) else ends[kept[rows - 1]],
                    lambda row: self._place(messages[kept[row]]),
                )
            )

    def _add_batch(self, message: Any, before: Position, end: Position) -> None:
        place = self._place(message)
        try:
            table = self._messages.batches(self._value(message), place)
        except InvalidInput as error:
            if not self._skips:
                raise
            logger.warning("left out as damaged: %s", error)
            return
        piece = slice_piece(table, before, end, place)
        if piece is not None:
            self._pieces.append(piece)

    def _value(self, message: Any) -> bytes:
        value = message.value()
        if value is None:
            raise InvalidInput(f"{self._place(message)}: has no value", field="follow")
        return bytes(value)

    def _place(self, message: Any) -> str:
        return f"{self._name}: partition {message.partition()}, offset {message.offset()}"

    def _position(self) -> Position:
        offsets = {str(number): at for number, at in self._next.items()}
        return {"offsets": offsets, "turn": self._turn, "taken": self._taken, "row": self._row}

    def _fetch(self, timeout: float) -> None:
        """Takes what has come from the brokers, and holds it by partition."""
        errors = self._kafka.KafkaError
        for message in self._consumer.consume(_AT_ONCE, timeout):
            error, number = message.error(), message.partition()
            if error is None:
                self._client.reached()
                self._ended.discard(number)
                held = self._held[number]
                if message.offset() < (held[-1].offset() + 1 if held else self._next[number]):
                    continue
                held.append(message)
                self._held_bytes[number] += len(message)
                if self._is_full(number) and number not in self._paused:
                    self._paused.add(number)
                    self._consumer.pause([self._partition(number)])
            elif error.code() == errors._PARTITION_EOF:
                self._client.reached()
                self._ended.add(number)
            elif error.code() in (
                self._kafka.KafkaError._AUTO_OFFSET_RESET,
                self._kafka.KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                raise ConfigError(
                    f"{self._name}: partition {number}: messages behind the offset {self._next[number]:,} were removed "
                    f"before they were read ({error.str()}). Keep messages longer (retention.ms); to go on without "
                    "them, give --skip-lost (skip_lost)",
                    field="follow",
                )
            else:
                self._client.failed(error)
        self._client.check(self._partition(number) for number in self._next)

    def _is_full(self, number: int, divisor: int = 1) -> bool:
        return len(self._held[number]) * divisor >= _HELD or self._held_bytes[number] * divisor >= _HELD_BYTES

    def _partition(self, number: int, offset: int = -1001) -> Any:
        return self._kafka.TopicPartition(self._topic, number, offset)

    def _partitions(self) -> list[int]:
        try:
            topic = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S).topics[self._topic]
        except self._kafka.KafkaException as error:
            raise self._client.unreadable(error) from None
        if topic.error is not None:
            raise ConfigError(f"{self._name}: {topic.error.str()}", field="follow")
        return sorted(topic.partitions)

    def _bounds(self, number: int) -> tuple[int, int]:
        try:
            low, high = self._consumer.get_watermark_offsets(self._partition(number), timeout=_TIMEOUT_S)
        except self._kafka.KafkaException as error:
            raise self._client.unreadable(error) from None
        return int(low), int(high)

    def _assign(self) -> None:
        self._held = {number: deque() for number in self._next}
        self._held_bytes = dict.fromkeys(self._next, 0)
        self._ended, self._paused = set(), set()
        self._consumer.assign([self._partition(number, at) for number, at in self._next.items()])

    def _look_for_partitions(self) -> None:
        """Begins to read partitions that were added to the topic, from their oldest message on."""
        now = time.monotonic()
        if now - self._looked_at < _PARTITIONS_EVERY_S or self._client.is_failing:
            return
        self._looked_at = now
        try:
            new = [number for number in self._partitions() if number not in self._next]
            self._next |= {number: self._bounds(number)[0] for number in new}
        except ConfigError as error:
            logger.warning("%s", error)
            return
        if new:
            logger.warning("%s: has new partitions: %s", self._name, ", ".join(map(str, new)))
            self._assign()
