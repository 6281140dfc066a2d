"""The state_dict of a torch module, as torch.save or safetensors wrote it. The id of a row is its number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.errors import InvalidInput
from storage.importing.files import OtherArray, RawArray, files_of
from storage.importing.kinds.base import Kind
from storage.importing.named_tensors import tables_among
from storage.importing.options import ImportOptions
from storage.importing.source import FileTable
from storage.importing.tensor_files import tensors_of
from storage.importing.torch_files import saved_tensors


def open_files(paths: Sequence[Path], options: ImportOptions) -> list[FileTable]:
    """Returns the tables of files; those of a folder together are one module."""
    found: dict[str, RawArray | OtherArray] = {}
    for path in paths:
        for file in files_of(path, [".pt", ".pth", ".bin", ".safetensors"], what="files of tensors"):
            tensors = tensors_of(file) if file.suffix == ".safetensors" else saved_tensors(file)
            for name, array in tensors.items():
                if name in found:
                    raise InvalidInput(
                        f"the tensor {name!r} is in {found[name].path} and in {file}; import one of them"
                    )
                found[name] = array
    return tables_among(found, ", ".join(map(str, paths)), options)


KIND = Kind(
    "state-dict",
    "The state_dict of a torch module: .pt, .pth, .bin, .safetensors.",
    """Publish the embedding tables of a torch state_dict.

    A PATH is a file that torch.save wrote, a safetensors file, or a folder of them. The id of a row is its number.
    Nothing but tensors is read: a file that would import anything else is refused. Without --only the tables of
    TorchRec's collections are imported, else all tensors that are called like embeddings.
    """,
    """\b
Examples:
  emberline import state-dict model.pt --check
  emberline import state-dict model.pt --only user_emb --only item_emb --repository build/models --name shop
  emberline import state-dict model.pt --module ranker.py:ranker --map user_emb=user --repository build/models \\\\
      --name ranker""",
    open_files,
    (),
)
