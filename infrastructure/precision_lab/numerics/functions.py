"""What each torch function does with numbers, judged by its name.

Functions that are not listed compute element by element, as most do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any


class Kind(Enum):
    """What a torch function does with its numbers."""

    COMPUTE = "computes element by element, or is a product"
    REDUCTION = "computes over a dimension: sums, norms, softmax, losses"
    MOVE = "moves numbers without computing"
    CAST = "may change the type"
    DTYPE = "reads the type"
    OPAQUE = "does nothing with the numbers"


_PRODUCTS = """
    addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d dot einsum gru gru_cell inner linear lstm
    lstm_cell matmul mm multi_head_attention_forward mv outer prelu rmatmul rnn_relu rnn_relu_cell
    rnn_tanh rnn_tanh_cell scaled_dot_product_attention tensordot vdot
"""
_REDUCTIONS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d
    batch_norm binary_cross_entropy binary_cross_entropy_with_logits cdist corrcoef
    cosine_similarity count_nonzero cov cross_entropy cumprod cumsum diff dist gaussian_nll_loss
    group_norm instance_norm kl_div layer_norm linalg_norm linalg_vector_norm linalg_matrix_norm
    local_response_norm log_softmax logcumsumexp logsumexp lp_pool1d lp_pool2d mean nanmean nansum
    native_layer_norm nll_loss norm normalize nuclear_norm pairwise_distance prod renorm rms_norm
    softmax softmin std std_mean sum sum_to_size trace trapezoid trapz var var_mean vector_norm
"""
_MOVES = """
    alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk clone
    column_stack concat concatenate contiguous copy_ detach diag diagonal dropout dropout1d
    dropout2d dropout3d dsplit dstack embedding expand expand_as flatten flip fliplr flipud gather
    getitem hsplit hstack index_copy index_copy_ index_put index_put_ index_select masked_scatter
    masked_scatter_ masked_select meshgrid movedim narrow one_hot pad permute pin_memory
    repeat repeat_interleave reshape reshape_as roll rot90 row_stack scatter scatter_ select
    select_scatter setitem slice_scatter sort split split_with_sizes squeeze stack swapaxes swapdims
    t take take_along_dim tensor_split tile topk transpose tril triu unbind unflatten unfold unique
    unsqueeze view view_as vsplit vstack
"""
_CASTS = "bfloat16 double float half to type type_as"
_OPAQUE = """
    allclose arange argmax argmin argsort backward bernoulli bernoulli_ bucketize cpu cuda
    data_ptr delattr detach_ dim element_size empty empty_like eq equal eye fill_ finfo format full
    ge get_device grad gt hash histc index is_complex is_contiguous is_floating_point is_inference
    is_nonzero is_pinned is_same_size is_set_to is_shared is_signed isclose isfinite isinf isnan
    isneginf isposinf item le len linspace logical_and logical_not logical_or logical_xor lt
    manual_seed multinomial ndimension ne nelement new_empty nonzero normal_ numel numpy
    promote_types rand randint randn randperm record_stream register_hook repr requires_grad_
    reduce_ex reversed result_type resize_ retain_grad searchsorted set_ share_memory_ signbit size
    storage storage_offset stride tolist uniform_ untyped_storage zero_
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALL_PRODUCTS = _names(_PRODUCTS)
_KINDS = {
    **dict.fromkeys(_names(_REDUCTIONS), Kind.REDUCTION),
    **dict.fromkeys(_names(_MOVES), Kind.MOVE),
    **dict.fromkeys(_names(_CASTS), Kind.CAST),
    **dict.fromkeys(_names(_OPAQUE), Kind.OPAQUE),
}


def kind_of(function: Callable[..., Any]) -> Kind:
    """What *function*, as a `TorchFunctionMode` receives it, does with its numbers."""
    name = function.__name__
    if name == "__get__":  # an attribute of a tensor
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        if attribute == "dtype":
            return Kind.DTYPE
        return Kind.MOVE if attribute in ("T", "mT", "H", "mH") else Kind.OPAQUE
    return _kind(name)


@cache
def _kind(name: str) -> Kind:
    if name in ("__set__", "__delete__"):
        return Kind.OPAQUE
    if name in _KINDS:
        return _KINDS[name]
    plain = _plain(name)
    if plain.endswith("_loss"):
        return Kind.REDUCTION
    return _KINDS.get(plain, Kind.COMPUTE)


def is_product(function: Callable[..., Any]) -> bool:
    """Whether *function* multiplies matrices, which autocast always lowers."""
    return _plain(function.__name__) in _ALL_PRODUCTS


def mutates(function: Callable[..., Any]) -> bool:
    """Whether *function* writes into its first argument."""
    name = function.__name__
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return name.endswith("_")


@cache
def _plain(name: str) -> str:
    """Name of the function without underscores, its namespace, and what marks it as in place."""
    if name.startswith("__"):
        name = name.strip("_")
        return name[1:] if name in ("isub", "iadd", "imul", "imatmul", "itruediv") else name
    return name.strip("_").removeprefix("special_")
