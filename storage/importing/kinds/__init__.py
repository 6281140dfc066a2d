"""The kinds of files that tables are imported from, one file each."""

from __future__ import annotations

from storage.importing.kinds import (
    dcp,
    dynamicemb,
    hps,
    numpy_files,
    parquet,
    safetensors_files,
    state_dict,
    tf_checkpoint,
    tfra,
    torcheasyrec,
)
from storage.importing.kinds.base import Kind

__all__ = ["KINDS", "Kind"]

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        parquet.KIND,
        safetensors_files.KIND,
        numpy_files.KIND,
        hps.KIND,
        state_dict.KIND,
        dcp.KIND,
        dynamicemb.KIND,
        torcheasyrec.KIND,
        tf_checkpoint.KIND,
        tfra.KIND,
    )
}
