"""Emberline: trains, publishes and serves recommendation models whose embedding tables are larger than memory.

import emberline
emberline.publish(module, sample_batch, "models", name="ranker")      # any nn.Module with embedding layers
report = emberline.train("config.yaml", "train.parquet", output="run", repository="models")
emberline.update("run", "new.parquet", repository="models")            # goes on training, publishes deltas
emberline.serve(emberline.ServerConfig(model_repository="models"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberline.guard import check_packages
from emberline.version import __version__

if TYPE_CHECKING:
    from serving import Server, ServerConfig, serve
    from storage import open_version
    from storage.errors import EmberlineError
    from trainer import publish, train, update

__all__ = [
    "EmberlineError",
    "Server",
    "ServerConfig",
    "__version__",
    "open_version",
    "publish",
    "serve",
    "train",
    "update",
]

# torch takes seconds to import: each name comes from its package when it is first used.
_HOMES = {
    "EmberlineError": "storage.errors",
    "Server": "serving",
    "ServerConfig": "serving",
    "open_version": "storage",
    "publish": "trainer",
    "serve": "serving",
    "train": "trainer",
    "update": "trainer",
}

check_packages()


from storage.lazy import lazy_names  # noqa: E402 - the guard comes before anything of the packages that it guards

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
