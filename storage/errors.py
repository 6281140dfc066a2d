"""Defines the exception tree of the project, and nothing else.

EmberlineError
├── InvalidInput          the caller sent something wrong; `field` names it        HTTP 400  INVALID_ARGUMENT
├── NotFound              unknown model, version, table, file                      HTTP 404  NOT_FOUND
├── Unsupported           asked for something that this build does not do          HTTP 501  UNIMPLEMENTED
├── Unavailable           not ready, draining                                      HTTP 503  UNAVAILABLE
│   ├── Overloaded        a bounded queue is full                                  HTTP 503  RESOURCE_EXHAUSTED
│   ├── RankLost          another process of the same training has ended
│   ├── ReadError         a file cannot be read now, which says nothing about what is in it; try again
│   │   └── ObjectStoreError  an object store does not do what it is asked now
│   └── DeviceError       a GPU did not do what it was asked                       HTTP 503  UNAVAILABLE
│       ├── DeviceOutOfMemory  no memory left on it, or none left to pin
│       ├── DeviceLost         it failed: nothing more can be asked of it in this process
│       └── CaptureError       the operators do not go into a CUDA graph
├── DeadlineExceeded      the answer did not come in time                          HTTP 504  DEADLINE_EXCEEDED
├── Conflict              not while the model is in this state                     HTTP 409  FAILED_PRECONDITION
├── ConfigError           a config file or option is wrong; `field` names it       (refused at start-up)
│   └── ChangedConfig     a run cannot be resumed, because it was begun with another configuration
├── CheckpointError       a published version or a training checkpoint is unusable
│   ├── IntegrityError    a byte differs from its digest, a file is missing or extra
│   ├── UnsafeArtifact    content that could run code when loaded
│   ├── ParityError       the golden requests are not reproduced
│   ├── LineageError      a delta that continues no snapshot here
│   ├── GuardError        the scores of real requests shift further than the live guard allows
│   ├── EngineEnded       the process died each time that it took it
│   └── SignatureError    inputs or outputs were removed, renamed or retyped, and nobody allowed it
└── StoreError            a tier failed: disk full, locked by another process      HTTP 503  UNAVAILABLE
    └── CorruptStoreError  its files are not what it wrote; a server loads it anew  HTTP 503  UNAVAILABLE

`serving.errors` maps the tree to HTTP and gRPC, once.
"""

from __future__ import annotations


class EmberlineError(Exception):
    """Root of all exceptions that this project raises on purpose."""


class InvalidInput(EmberlineError):
    """The caller's data is wrong. `field` is the input, option or column at fault ("" when there is none)."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFound(EmberlineError):
    """The requested object does not exist."""


class Unsupported(EmberlineError):
    """The request is well formed, but this build does not do it."""


class Unavailable(EmberlineError):
    """The project is temporarily not able to answer."""


class Overloaded(Unavailable):
    """A bounded queue is full; try again later."""


class RankLost(Unavailable):
    """Another of the processes that train together has ended; what that one said is the cause."""


class ReadError(Unavailable):
    """A file or folder cannot be read now: the disk or the network fails, a limit of the machine is met, it changes.

    It says nothing about the content, so nothing may be refused or given up because of it.
    """


class ObjectStoreError(ReadError):
    """An object store, or the way to it, did not do what it was asked; try again."""


class DeviceError(Unavailable):
    """A GPU failed to do what it was asked."""


class DeviceOutOfMemory(DeviceError):
    """The GPU has no memory left, or the host none that can be pinned; earlier allocations are still valid."""


class DeviceLost(DeviceError):
    """The GPU failed. It cannot be used again until the process is restarted."""


class CaptureError(DeviceError):
    """Operators wait for the host or allocate memory, so a CUDA graph cannot hold them; they can run without one."""


class DeadlineExceeded(EmberlineError):
    """The answer did not come before the caller's deadline."""


class Conflict(EmberlineError):
    """The request conflicts with what the model is doing now, e.g. a rollback during a canary."""


class ConfigError(EmberlineError):
    """A configuration is wrong. `field` is the dotted path of the entry at fault."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ChangedConfig(ConfigError):
    """A run was begun with another configuration than the one that it is to be resumed with."""


class CheckpointError(EmberlineError):
    """A published version or a training checkpoint cannot be used."""


class IntegrityError(CheckpointError):
    """Bytes on disk are not the bytes that were published."""


class UnsafeArtifact(CheckpointError):
    """A file holds content that could run code when loaded; it was not opened."""


class ParityError(CheckpointError):
    """A loaded model does not reproduce the scores of its golden requests."""


class LineageError(CheckpointError):
    """A delta continues a snapshot that is not the one it is applied to."""


class GuardError(CheckpointError):
    """A candidate's scores or absent ids shift, on recent real requests, further than the live guard's bounds."""


class EngineEnded(CheckpointError):
    """The process died each time that it took a version or delta, such as by lack of memory."""


class SignatureError(CheckpointError):
    """A version removes, renames or retypes inputs or outputs that clients use, without permission to do so."""


class StoreError(EmberlineError):
    """A storage tier failed."""


class CorruptStoreError(StoreError):
    """A store's files are damaged or missing. Repair drops what is damaged, and the next load restores it."""
