"""Files of other systems that hold a network, made into modules that `trainer.publishing` takes.

A module has nn.Embedding or nn.EmbeddingBag layers where the file looks rows up, so that the cut makes tables of them.
"""

from __future__ import annotations

from trainer.converting.converted import Converted

__all__ = ["Converted"]
