"""Loads the models that are there when a server starts, on a thread beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from serving.config import ServerConfig
from serving.ports import is_loopback
from serving.version import server_version

if TYPE_CHECKING:
    from serving.repository.model_repository import ModelRepository

logger = logging.getLogger("emberline.serving")


class FirstLoad:
    """Loads the models once. on_loaded: called on the loading thread when they are loaded."""

    def __init__(self, repository: ModelRepository, on_loaded: Callable[[], None] | None = None) -> None:
        self._repository = repository
        self._on_loaded = on_loaded
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._load, name="emberline-loader", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether models are still being loaded."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until loading has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Closes the repository once nothing is loaded any more; where that takes too long it stays as it is."""
        self.join(timeout_s)
        if not self.is_alive():
            self._repository.close(timeout_s)
        logger.info("stopped")

    def _load(self) -> None:
        try:
            self._repository.load_all()
        except BaseException:
            logger.exception("loading models failed")
            return
        states = [entry.state for entry in self._repository.index()]
        ready = states.count("READY")
        logger.info("%d of %d model versions ready", ready, len(states))
        if self._on_loaded is not None:
            self._on_loaded()


def say_hello(config: ServerConfig, names: Sequence[str], http_port: int, grpc_port: int, metrics_port: int) -> None:
    """Logs where the server is to be found, and warns if others on the network find it. names: names of the models."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.tls_certificate is None else "https"
    logger.info(
        "Emberline %s serves %d model(s) of %s\n  HTTP     %s://%s:%d\n  gRPC     %s:%d\n  metrics  %s://%s:%d/metrics"
        "\n  console  %s://%s:%d/console\n  store    %s\n  models   %s",
        server_version(),
        len(names),
        config.model_repository,
        *(scheme, host, http_port, host, grpc_port),
        *(scheme, host, metrics_port, scheme, host, metrics_port),
        config.store_dir,
        ", ".join(names) or "none yet: publish one into the repository",
    )
    if not is_loopback(config.host):
        _warn_of_strangers(config)


def _warn_of_strangers(config: ServerConfig) -> None:
    if config.access_file is None:
        able = "see every model, its configuration and its statistics, and have it compute whatever they send"
        if config.open_admin:
            able += "; and load, unload, roll back and pause models"
        logger.warning(
            "OPEN TO THE NETWORK: whoever reaches %s may %s, without a token. Give --access-file FILE (made by "
            "`emberline token new`), or listen on 127.0.0.1; docs/security.md",
            config.host,
            able,
        )
    elif config.tls_certificate is None:
        logger.warning(
            "tokens, requests and answers travel unencrypted to %s, and whoever reads them may use the tokens. Give "
            "--tls-certificate and --tls-key, or put a proxy with TLS in front; docs/security.md",
            config.host,
        )
