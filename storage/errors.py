"""The exception tree of the project, and nothing else.

EmberlineError
├── InvalidInput          the caller sent something wrong; `field` names it        HTTP 400  INVALID_ARGUMENT
├── NotFound              unknown model, version, table, file                      HTTP 404  NOT_FOUND
├── Unsupported           asked for something that this build does not do          HTTP 501  UNIMPLEMENTED
├── Unavailable           not ready, draining                                      HTTP 503  UNAVAILABLE
│   └── Overloaded        a bounded queue is full                                  HTTP 503  RESOURCE_EXHAUSTED
├── DeadlineExceeded      the answer did not come in time                          HTTP 504  DEADLINE_EXCEEDED
├── ConfigError           a config file or option is wrong; `field` names it       (refused at start-up)
├── CheckpointError       a published version or a training checkpoint is unusable
│   ├── IntegrityError    a byte differs from its digest, a file is missing or extra
│   ├── UnsafeArtifact    content that could run code when loaded
│   └── ParityError       the golden requests are not reproduced
└── StoreError            a tier failed: disk full, locked by another process, corrupt

`serving.errors` maps the tree to HTTP and gRPC, once.
"""

from __future__ import annotations


class EmberlineError(Exception):
    """Root of everything that this project raises on purpose."""


class InvalidInput(EmberlineError):
    """The caller's data is wrong. `field` is the input, option or column at fault ("" when there is none)."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFound(EmberlineError):
    """What was asked for does not exist."""


class Unsupported(EmberlineError):
    """The request is well formed, but this build does not do it."""


class Unavailable(EmberlineError):
    """Temporarily not able to answer."""


class Overloaded(Unavailable):
    """A bounded queue is full; try again later."""


class DeadlineExceeded(EmberlineError):
    """The answer did not come before the caller's deadline."""


class ConfigError(EmberlineError):
    """A configuration is wrong. `field` is the dotted path of the entry at fault."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class CheckpointError(EmberlineError):
    """A published version or a training checkpoint cannot be used."""


class IntegrityError(CheckpointError):
    """Bytes on disk are not the bytes that were published."""


class UnsafeArtifact(CheckpointError):
    """A file holds content that could run code when loaded; it was not opened."""


class ParityError(CheckpointError):
    """A loaded model does not reproduce the scores of its golden requests."""


class StoreError(EmberlineError):
    """A storage tier failed."""
