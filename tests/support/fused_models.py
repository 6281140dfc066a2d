"""Models whose graphs are lowered to fused steps, and one exported graph with its weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from storage.checkpoint.assembly import assemble
from storage.checkpoint.program import document_of

# With more vectors than two registers of AVX-512 hold.
VECTORS, DIM, DENSE = 37, 5, 3


class Dlrm(nn.Module):
    """A bottom MLP, products of pairs by an index, a top MLP. The dim and the widths fill no vector."""

    pairs: Tensor

    def __init__(self, pairs: Tensor | None = None) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 9), nn.ReLU(), nn.Linear(9, DIM), nn.ReLU())
        count = VECTORS + 1
        rows, columns = torch.tril_indices(count, count, offset=-1)
        self.register_buffer("pairs", rows * count + columns if pairs is None else pairs)
        self.top = nn.Sequential(nn.Linear(DIM + len(self.pairs), 35), nn.ReLU(), nn.Linear(35, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, *rows: Tensor) -> Tensor:
        below = self.bottom(dense)
        stacked = rows[0] if len(rows) == 1 else torch.stack(rows, 1)
        vectors = torch.cat([below.unsqueeze(1), stacked], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        score: Tensor = self.top(torch.cat([below, products.index_select(1, self.pairs)], 1))
        return score


class TwoIndices(Dlrm):
    """Pairs by an index for each of two sizes, and products with matrices that are no layers."""

    rows: Tensor
    columns: Tensor

    def __init__(self) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(VECTORS + 1, VECTORS + 1, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)
        self.matrix = nn.Parameter(torch.randn(DENSE, DIM))

    def forward(self, dense: Tensor, *rows: Tensor) -> Tensor:
        below = torch.addmm(self.matrix[0], dense @ self.matrix, self.matrix.t() @ self.matrix)
        vectors = torch.cat([below.unsqueeze(1), rows[0]], 1)
        products = torch.matmul(vectors, vectors.transpose(-1, -2))
        score: Tensor = self.top(torch.cat([below, products[:, self.rows, self.columns]], 1))
        return score


class Arranged(nn.Module):
    """Slices, selects, splits, expansions, sums and broadcasts; a layer over a list; constants made of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(DIM, 7)
        self.shift = nn.Parameter(torch.randn(DIM))
        self.head = nn.Linear(7 + DIM + 6 + 2 * DIM, 2, bias=False)

    def forward(self, dense: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.each(rows)).sum(1)
        moved = rows * (2 * self.shift + 1) - 0.5
        total = moved[:, 1:].sum(dim=1, keepdim=True)
        wide = (total.expand(-1, 2, -1) * rows[:, :2]).flatten(1)
        left, right = torch.chunk(torch.cat([dense, dense * dense], 1), 2, dim=1)
        joined = torch.cat([hidden, rows[:, -1], right, left / 4, wide], 1)
        return self.head(torch.nn.functional.silu(joined)), 1 - rows.select(2, 0)


class Towers(nn.Module):
    """A tower each for user and item, and a product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(6, 17), nn.ReLU(), nn.Linear(17, 8), nn.ReLU())
        self.item = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.top = nn.Linear(24, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        left, right = self.user(user), self.item(item)
        return torch.sigmoid(self.top(torch.cat([left, right, left * right], 1)))


def exported(model: nn.Module, example: Sequence[Tensor]) -> tuple[fx.GraphModule, list[Tensor]]:
    """Returns the graph with a dynamic batch, and the values of its arguments before the inputs."""
    batch = torch.export.Dim("batch", min=1, max=512)
    sizes: object = tuple({0: batch} for _ in example)
    if isinstance(model, Dlrm):
        sizes = ({0: batch}, tuple({0: batch} for _ in example[1:]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), tuple(example), dynamic_shapes=sizes)  # type: ignore[arg-type]
        program, document = document_of(program)
    lifted = {**dict(program.state_dict), **dict(program.constants)}
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names |= signature.inputs_to_lifted_tensor_constants
    holders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    return assemble(document), [lifted[names[name]].detach() for name in holders if name in names]


def stacked_inputs(batch: int, seed: int = 0) -> list[Tensor]:
    """Returns dense values and all rows in one tensor."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, DENSE, generator=generator), torch.randn(batch, VECTORS, DIM, generator=generator)]


def separate_inputs(batch: int, seed: int = 0) -> list[Tensor]:
    """Returns dense values, and the same rows each in a tensor of its own."""
    dense, rows = stacked_inputs(batch, seed)
    return [dense, *[rows[:, i].contiguous() for i in range(VECTORS)]]
