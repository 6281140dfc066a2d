"""Checks whether clients of one version can use the next; a new input with a default does not affect them."""

from __future__ import annotations

from collections.abc import Collection

from serving.protocol.signature import ModelSignature
from storage.errors import SignatureError
from storage.features import InputSpec
from storage.features.dtypes import TIMES


def check_signature(served: ModelSignature, new: ModelSignature, version: int, allowed: Collection[str]) -> None:
    """Raises SignatureError naming the inputs and outputs at fault, less those that are allowed by name."""
    faults = {name: text for name, text in signature_faults(served, new).items() if name not in allowed}
    if faults:
        listed = "; ".join(faults.values())
        names = " ".join(sorted(faults))
        raise SignatureError(
            f"version {version} waits: {listed}. Clients of the served version would fail; allow it by name when they "
            f"are ready: {names}"
        )


def _is_time(entry: InputSpec) -> bool | None:
    """Returns whether the input carries a time; None where its version does not say what it carries."""
    return None if entry.column_type is None else entry.column_type in TIMES


def signature_faults(served: ModelSignature, new: ModelSignature) -> dict[str, str]:
    """Returns what would fail for a client of `served`, by name."""
    faults: dict[str, str] = {}
    before = {entry.name: entry for entry in served.raw}
    after = {entry.name: entry for entry in new.raw}
    for name, old in before.items():
        now = after.get(name)
        if now is None:
            faults[name] = f"the input {name!r} is gone"
        elif (old.dtype, old.kind, old.width) != (now.dtype, now.kind, now.width):
            faults[name] = (
                f"the input {name!r} was {old.dtype} {old.kind} of width {old.width} and is {now.dtype} {now.kind} of "
                f"width {now.width}"
            )
        elif None not in (_is_time(old), _is_time(now)) and _is_time(old) != _is_time(now):
            faults[name] = (
                f"the input {name!r} was {old.column_type} and is {now.column_type}; requests "
                "carry times in microseconds"
            )
        elif old.missing != "error" and now.missing == "error":
            faults[name] = f"the input {name!r} may no longer be missing"
    for name, now in after.items():
        if name not in before and now.missing == "error":
            faults[name] = f"the input {name!r} is new and has no default"
    outputs = {output.name: output for output in new.outputs}
    for output in served.outputs:
        now_output = outputs.get(output.name)
        if now_output is None:
            faults[output.name] = f"the output {output.name!r} is gone"
        elif (output.dtype, output.dims) != (now_output.dtype, now_output.dims):
            faults[output.name] = (
                f"the output {output.name!r} was {output.dtype} {list(output.dims)} and is {now_output.dtype} "
                f"{list(now_output.dims)}"
            )
    if new.max_batch_size < served.max_batch_size:
        faults["max_batch_size"] = f"max_batch_size shrinks from {served.max_batch_size} to {new.max_batch_size}"
    return faults
