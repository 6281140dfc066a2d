"""The whole of a batch of which each rank has a part: what losses need that compare rows, or leave some out.

b rows of a part, B rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.splits import Split
from trainer.ranks import Ranks

Array = NDArray[Any]


@dataclass(frozen=True)
class WholeBatch:
    """Brings together what the parts of a batch have. All ranks call each method, in the same order.

    The step weighs the loss of each rank by its share of the rows, and adds up the ranks.
    """

    ranks: Ranks
    #: Rows of this rank.
    own: int
    #: Rows of all ranks.
    rows: int

    @property
    def share(self) -> float:
        """The share of this rank in the rows."""
        return self.own / self.rows

    @cached_property
    def sizes(self) -> list[int]:
        """Rows of each rank."""
        bounds = (Split(rank, self.ranks.size).bounds(self.rows) for rank in range(self.ranks.size))
        return [last - first for first, last in bounds]

    @property
    def first(self) -> int:
        """Rows of the ranks before this one."""
        return sum(self.sizes[: self.ranks.rank])

    def mean(self, loss: Tensor, count: int) -> Tensor:
        """Returns a mean over `count` rows of this rank as a part of the mean over such rows of all ranks."""
        return self._by_share(loss * (count / max(1.0, self.total(count))))

    def part(self, loss: Tensor) -> Tensor:
        """Returns a summand of the loss of the batch, which the losses of the ranks add up to."""
        return self._by_share(loss)

    def alike(self, loss: Tensor) -> Tensor:
        """Returns the loss of the batch where each rank has computed it whole; the gradient is that of own rows."""
        return loss.detach() + self._by_share(loss - loss.detach())

    def _by_share(self, loss: Tensor) -> Tensor:
        """Undoes the weight that the step gives a loss of this rank; of no rows it is 0."""
        return loss / self.share if self.own else loss * 0.0

    def total(self, count: float) -> float:
        """Returns the sum of a number of each rank."""
        counts = torch.tensor(float(count), dtype=torch.float64)
        self.ranks.sum(counts)
        return float(counts)

    def array(self, own: Array) -> Array:
        """Brings rows (b, ...) of all ranks together, (B, ...)."""
        # As bytes, which are not rounded on their way.
        message = np.ascontiguousarray(own).reshape(-1).view(np.uint8)
        sending = np.full(self.ranks.size, len(message))
        came = self.ranks.exchange(np.tile(message, self.ranks.size), sending, self._bytes(own), "batch")
        return came.view(own.dtype).reshape(-1, *own.shape[1:])

    def own_sums(self, rows: Array) -> Array:
        """Returns, of rows (B, ...) of which each rank has some, the sums of all ranks for its own rows (b, ...)."""
        sending = self._bytes(rows)
        coming = np.full(self.ranks.size, sending[self.ranks.rank])
        came = self.ranks.exchange(rows.reshape(-1).view(np.uint8), sending, coming, "batch").view(rows.dtype)
        summed: Array = came.reshape(self.ranks.size, self.own, *rows.shape[1:]).sum(axis=0)
        return summed

    def _bytes(self, rows: Array) -> NDArray[np.int64]:
        """Returns the bytes of the rows of each rank."""
        width = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
        return np.array(self.sizes, np.int64) * width

    def constants(self, own: Tensor) -> Tensor:
        """Brings rows (b, ...) of all ranks together, (B, ...), without a gradient."""
        return torch.from_numpy(self.array(own.detach().cpu().numpy())).to(own.device)

    def beside_others(self, own: Tensor) -> Tensor:
        """Returns the rows (B, ...) of all ranks, with a gradient of those of this one."""
        rows = self.constants(own)
        return torch.cat([rows[: self.first], own, rows[self.first + self.own :]])

    def gathered(self, own: Tensor) -> Tensor:
        """Returns the rows (B, ...) of all ranks; their gradients go back to the ranks, which add them up."""
        rows: Tensor = _Gathered.apply(own, self)  # type: ignore[no-untyped-call]
        return rows

    def column(self, own: Any) -> Any:
        """Brings the values of a pyarrow ChunkedArray (b,) of all ranks together."""
        sink = pa.BufferOutputStream()
        table = pa.table({"values": own})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        parts = [pa.ipc.open_stream(part).read_all() for part in self.ranks.gather(sink.getvalue().to_pybytes())]
        return pa.concat_tables(parts).column("values")


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, whole: WholeBatch) -> Tensor:
        ctx.whole = whole
        return whole.constants(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole: WholeBatch = ctx.whole
        own = whole.own_sums(gradients[0].detach().cpu().contiguous().numpy())
        return torch.from_numpy(own).to(gradients[0].device), None
