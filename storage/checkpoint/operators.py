"""Lists the operators that a dense graph may use.

The list follows one rule: a pure function of its tensors. No operator on it draws random numbers, reads or writes a
file, prints, writes into an argument, or gives a shape that depends on values. Any overload of a listed operator is
accepted if its schema writes to no argument.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import TYPE_CHECKING

from storage.errors import UnsafeArtifact

if TYPE_CHECKING:
    import torch

_LIST = """
# arithmetic, element by element
abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh ceil clamp clamp_max clamp_min copysign cos cosh deg2rad
div erf erfc exp exp2 expm1 floor floor_divide fmax fmin fmod frac hypot lerp log log10 log1p log2 logaddexp logit
maximum minimum mul multiply nan_to_num neg negative positive pow rad2deg reciprocal remainder round rsqrt rsub sgn
sign sin sinc sinh sqrt square sub subtract tan true_divide trunc xlogy
# activations
_prelu_kernel celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_sigmoid_forward mish prelu
relu relu6 selu sigmoid silu softplus softshrink tanh threshold
# comparison and logic
bitwise_and bitwise_not bitwise_or bitwise_xor eq ge gt isclose isfinite isinf isnan le logical_and logical_not
logical_or logical_xor lt masked_fill ne where
# linear algebra
_cdist_forward addbmm addmm addmv baddbmm bilinear bmm cdist cosine_similarity cross dot einsum inner linalg_vector_norm
linear matmul mm mv norm outer pairwise_distance vdot
# reductions and scans
all amax amin any argmax argmin argsort count_nonzero cumprod cumsum logsumexp max mean median min prod sort std
std_mean sum topk var var_mean
# normalisation and softmax; batch_norm and instance_norm may write their statistics and are not here
_fused_rms_norm _log_softmax _native_batch_norm_legit_no_training _safe_softmax _softmax group_norm layer_norm
log_softmax native_group_norm native_layer_norm rms_norm softmax
# attention
_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention
# convolution and pooling over sequences
_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d constant_pad_nd conv1d conv2d
convolution max_pool1d max_pool2d max_pool2d_with_indices pad
# shape; as_strided and its like take raw strides and are not here
_unsafe_view alias broadcast_to cat chunk clone concat concatenate contiguous detach detach_copy diag diag_embed
diagonal expand expand_as expand_copy flatten flip hstack lift_fresh lift_fresh_copy meshgrid moveaxis movedim narrow
numpy_T permute permute_copy repeat reshape reshape_as roll select select_copy select_scatter slice slice_copy
slice_scatter split split_copy split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t
t_copy tensor_split tile transpose transpose_copy tril triu unbind unflatten unfold unsqueeze unsqueeze_copy view
view_as view_copy vstack
# gather; copy, fill and index_put are what assignments become
bucketize copy embedding fill gather index index_add index_copy index_fill index_put index_select masked_scatter
one_hot scatter scatter_add searchsorted take take_along_dim
# creation
arange eye full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices
zeros zeros_like
# types, sizes and assertions
_assert_scalar _assert_tensor_metadata _to_copy sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
sym_stride to type_as
"""
ATEN = frozenset(word for line in _LIST.splitlines() if not line.startswith("#") for word in line.split())

# Functions on sizes: torch's names for them in a graph's JSON.
_SIZES = "add sub mul floordiv mod neg pos eq ne lt le gt ge and_ or_"
SYMBOLIC = frozenset(f"_operator.{name}" for name in _SIZES.split()) | {
    "torch.sym_max",
    "torch.sym_min",
    "torch.sym_not",
}

_ATEN_TARGET = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")


def check_operator(target: str, *, where: str, also: Set[str] = frozenset()) -> None:
    """Accepts an operator of the list by its name alone; raises UnsafeArtifact, naming it, for any other.

    also: names in aten that are accepted too, where a graph is read that is not served as it is.
    """
    if target in SYMBOLIC:
        return
    match = _ATEN_TARGET.fullmatch(target)
    if match is None or (match[1] not in ATEN and match[1] not in also):
        raise UnsafeArtifact(
            f"{where}: the operator {target[:120]!r} is not on the list of accepted operators "
            "(storage/checkpoint/operators.py); it was not looked up"
        )


def resolve_operator(target: str, *, where: str, also: Set[str] = frozenset()) -> torch._ops.OpOverload | None:
    """Returns torch's operator for a checked aten target; None for functions on sizes. also: as for check_operator."""
    import torch

    check_operator(target, where=where, also=also)
    if target in SYMBOLIC:
        return None
    name, overload = _ATEN_TARGET.fullmatch(target).groups()  # type: ignore[union-attr]
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload not in packet.overloads():  # type: ignore[no-untyped-call]
        raise UnsafeArtifact(f"{where}: this torch ({torch.__version__}) has no operator {target!r}")
    operator: torch._ops.OpOverload = getattr(packet, overload)
    if operator._schema.is_mutable:
        raise UnsafeArtifact(f"{where}: the operator {target!r} writes into an argument; weights are shared")
    return operator
