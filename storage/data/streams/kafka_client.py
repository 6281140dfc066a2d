"""A consumer of librdkafka, which says once that brokers cannot be reached, and when they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from storage.data.streams.address import Address
from storage.data.streams.base import Credentials
from storage.errors import ConfigError

logger = logging.getLogger("emberline.data")
# Gets what librdkafka says. It says FAIL for each try to connect, many times a second: one warning of ours is enough.
_librdkafka = logging.getLogger("emberline.data.librdkafka")
_librdkafka.addFilter(lambda record: not record.getMessage().startswith("FAIL"))

# Between two looks whether brokers are back, and for how long one may wait.
_LOOK_EVERY_S, _LOOK_S = 1.0, 0.2


class KafkaClient:
    """Has the consumer, and the module it is from.

    given: properties of librdkafka. name: what errors call the topic. Raises ConfigError.
    """

    def __init__(self, address: Address, given: dict[str, str], name: str, credentials: Credentials) -> None:
        self._name = name
        # What librdkafka said when a connection failed, until brokers are known to answer.
        self._failure = ""
        # Whether that is worth a warning. librdkafka may say that all brokers are down, which has no reason, before it
        # says the reason; without one until the next look, the warning comes as it is.
        self._is_worth_saying = False
        self._hopeless: Any = None
        self._is_warned = False
        self._looked_at = 0.0
        try:
            import confluent_kafka
        except ImportError:
            raise ConfigError(
                "follow: kafka:// needs a package: pip install 'emberline[kafka]'", field="follow"
            ) from None
        fixed = {
            "bootstrap.servers": address.hosts,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        for key in fixed:
            if key in given:
                raise ConfigError(f"{name}: {key} is set by Emberline; leave it out", field="follow")
        users = {
            "sasl.username": address.user or credentials.user,
            "sasl.password": address.password or credentials.password,
        }
        settings: dict[str, Any] = {"group.id": "emberline", "queued.max.messages.kbytes": 32_768}
        settings |= {key: value for key, value in users.items() if value is not None}
        settings |= {**given, **fixed, "error_cb": self.failed}
        self.kafka: Any = confluent_kafka
        try:
            self.consumer: Any = confluent_kafka.Consumer(settings, logger=_librdkafka)
        except confluent_kafka.KafkaException as error:
            raise ConfigError(f"{name}: {error.args[0].str()}", field="follow") from None

    @property
    def is_failing(self) -> bool:
        """True while brokers may not be reached."""
        return bool(self._failure)

    def failed(self, error: Any) -> None:
        """Takes an error of the client, most of all a connection that broke."""
        codes = self.kafka.KafkaError
        if error.fatal() or error.code() in (
            codes._AUTHENTICATION,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.UNKNOWN_TOPIC_OR_PART,
            codes._UNKNOWN_PARTITION,
            codes._UNKNOWN_TOPIC,
        ):
            self._hopeless = error
        elif error.code() != codes._ALL_BROKERS_DOWN:
            self._failure, self._is_worth_saying = error.str(), True
        elif not self._failure:
            self._failure = error.str()

    def check(self, partitions: Iterable[Any]) -> None:
        """Finds out, while connections fail, whether the brokers of the partitions answer.

        Raises ConfigError for what another try does not mend.
        """
        if self._hopeless is not None:
            raise ConfigError(f"{self._name}: {self._hopeless.str()}", field="follow")
        now = time.monotonic()
        if not self._failure or now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            for partition in partitions:
                self.consumer.get_watermark_offsets(partition, timeout=_LOOK_S)
        except self.kafka.KafkaException:
            if not self._is_worth_saying:
                self._is_worth_saying = True
            elif not self._is_warned:
                self._is_warned = True
                logger.warning("%s: cannot be reached (%s); trying again", self._name, self._failure)
        else:
            self.reached()

    def reached(self) -> None:
        """Notes that brokers answer."""
        self._failure, self._is_worth_saying = "", False
        if self._is_warned:
            self._is_warned = False
            logger.warning("%s: is reached again", self._name)

    def unreadable(self, error: Any) -> ConfigError:
        """Returns what an exception of the client means, with what it said of its connections."""
        self.consumer.poll(0)
        found = self._hopeless.str() if self._hopeless is not None else self._failure
        return ConfigError(
            f"{self._name}: cannot be read: {error.args[0].str()}{f' ({found})' if found else ''}", field="follow"
        )
