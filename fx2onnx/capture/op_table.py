"""Flags of operators: what capture has to know of one beside the functions that ``registry.py`` has for it.

A row has flags, and the operators with just these: ``view`` stands for all overloads of ``aten::view``, ``result_type.Tensor`` for one.
"""

from __future__ import annotations

import re
from enum import Enum


class Op(Enum):
    """A flag. ``names`` are the full names of the operators that have it, such as ``aten::view``."""

    READS_NUMBER = "Python reads a tensor's number by it"
    QUERY = "its result depends on a tensor's type, not on its values"
    KEEPS_SIZES = "its results have the sizes of its operand, though it is not pointwise"
    NEEDS_ELEMENTS = "its kernel raises where the operand or the result is empty; the fake kernel need not"
    NEEDS_TENSORS = "its kernel raises for an empty list of tensors"
    COUNTS = "its integers are counts or indices"
    KEEPS_SIGN = "its integers are >= 0 where its operands are"
    NUMBERS_COUNT = "numbers among its arguments count as operands"
    MOVES = "it computes nothing: on quantised operands it is recorded on their integers"
    IS_QUANTIZED = "it looks after quantised operands itself"
    MAY_COPY = "at certain sizes it gives its operand, or a copy of it"
    PADS = "its second argument says how much is put around"
    COMPARES_STRIDES = "its kernel in Python compares strides, to choose between a view and a copy of the same elements"
    CHOOSES_KERNEL = "it looks at sizes to choose a kernel; its result's sizes follow a formula whatever it chooses"
    CHECKS_RANKS = "its real kernel checks ranks that the fake kernel does not"
    COPIES = "its real kernel checks sizes of which nothing else depends, that the fake kernel does not"
    RAISES = "for some numbers its kernel raises RuntimeError"
    RAISES_INDEX = "for some numbers its kernel raises IndexError"
    RAISES_LINALG = "for some numbers its kernel raises LinAlgError"

    names: frozenset[str]


_ROWS = """
    reads_number:
        is_nonzero item _local_scalar_dense
    query:
        can_cast dim _has_compatible_shallow_copy_type _has_same_storage_numel is_complex is_contiguous
        is_contiguous.memory_format is_floating_point is_non_overlapping_and_dense is_same_size is_strides_like_format
        result_type.Tensor size stride sym_numel sym_size.int sym_storage_offset sym_stride.int
    keeps_sizes:
        cummax cummin dropout _log_softmax log_softmax logcumsumexp renorm _softmax softmax
    keeps_sizes counts:
        argsort
    keeps_sizes keeps_sign:
        cumprod cumsum sort _to_copy
    keeps_sizes keeps_sign moves may_copy chooses_kernel:
        clone contiguous
    keeps_sizes moves:
        flip roll
    needs_elements:
        avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d upsample_bicubic2d _upsample_bicubic2d_aa
        upsample_bilinear2d _upsample_bilinear2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_trilinear3d
    needs_elements chooses_kernel:
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    counts:
        argmax argmin bucketize count_nonzero nonzero searchsorted
    counts raises:
        bincount
    raises:
        bernoulli binary_cross_entropy embedding_bag fmod histc max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss
        multinomial nanquantile normal one_hot poisson quantile scatter scatter_add scatter_reduce
    raises_index:
        cross_entropy_loss embedding index_add index_copy index_fill index_put nll_loss nll_loss2d nll_loss_nd take
    raises_linalg:
        cholesky cholesky_inverse inverse linalg_cholesky linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
        linalg_inv linalg_ldl_factor linalg_lstsq linalg_lu_factor linalg_matrix_power linalg_matrix_rank linalg_pinv
        linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve matrix_power pinverse svd
        _linalg_check_errors _linalg_eigh _linalg_svd
    keeps_sign:
        abs amax amin lift_fresh max maximum median min minimum prod sum to topk
    keeps_sign needs_tensors:
        cat stack
    needs_tensors:
        column_stack concat concatenate dstack hstack vstack
    keeps_sign moves:
        alias detach expand permute repeat select slice squeeze t transpose unbind unsqueeze
    keeps_sign moves raises_index:
        index index_select
    keeps_sign moves raises:
        repeat_interleave
    keeps_sign moves compares_strides:
        flatten reshape view
    keeps_sign numbers_count:
        add clamp clamp_max clamp_min mul where
    keeps_sign numbers_count raises:
        div floor_divide remainder
    moves:
        channel_shuffle chunk expand_as movedim narrow numpy_T pixel_shuffle pixel_unshuffle split
        split_with_sizes swapaxes swapdims tensor_split view_as
    moves raises:
        gather
    moves compares_strides:
        unflatten _unsafe_view
    is_quantized:
        dequantize int_repr q_per_channel_axis q_scale q_zero_point quantize_per_channel quantize_per_tensor
    may_copy pads:
        constant_pad_nd pad
    chooses_kernel:
        convolution
    checks_ranks:
        addmm addmv
    copies:
        diagonal_scatter select_scatter slice_scatter
"""


def _names(flag: Op) -> frozenset[str]:
    rows = re.findall(r"^    (\S.*):\n((?:        .*\n)+)", _ROWS, re.M)
    return frozenset(
        f"aten::{name}" for flags, names in rows if flag.name.lower() in flags.split() for name in names.split()
    )


for _flag in Op:
    _flag.names = _names(_flag)


def name_of(target: object) -> str:
    """The name of an operator, such as ``aten::view``, without overload; empty for what else a graph calls."""
    return getattr(getattr(target, "_schema", None), "name", "")
