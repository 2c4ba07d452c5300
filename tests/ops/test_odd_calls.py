"""Rare overloads, and usual ones at odd ranks, shapes, dtypes and options: what calls drawn from schemas found wrong."""

from __future__ import annotations

import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.ops.judge import aten, case, judge
from tests.support import Call, check

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
INF, NAN = float("inf"), float("nan")
BYTES = T([2, 9, 250], dtype=torch.uint8)
LARGE = torch.stack([torch.full((2, 2), INF), T([[0.1, 0.8], [1.2, -1.3]])])
IMAGE, LINE, VOLUME = R(1, 2, 3, 5), R(2, 1, 3), R(1, 1, 3, 2, 5)
SPACED = R(3, 4).index_put((T([1]), T([2])), T(INF))
SIGNED = T([0.0, -0.0, 2.0, -1.0, 0.5])
POLYNOMIALS = ("chebyshev_polynomial", "shifted_chebyshev_polynomial")
EXPONENTS = T([2**53 + 1, 2**53 + 2, 2**60 + 1, 2**62, -(2**53 + 1), -(2**60), 63, 64, 65, 0, 1, -1, -2])
WRAPPED = T([[2000000000, 2000000000, 30000], [-2000000000, -1500000000, 30000]])
LOGS = R(3, 2, 4).log_softmax(2)
LOGS[1, 0, 2] = LOGS[2, 1, 0] = -INF
COUNTS = T([[[4, -3], [3, 5], [3, 2]]])


def _beyond_path(filler: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and alpha with ``filler`` in the memory that nothing has written: the second sequence has one label."""
    loss, alpha = aten._ctc_loss.default(LOGS, T([[1, 2], [3, 3]]), [3, 3], [2, 1])
    alpha[1, 1:, 3:] = filler
    return loss, alpha


SHARES, BAGS = torch.rand(3, 1) * 0.8 + 0.1, (R(5, 2), T([1, 2, 4, 0, 3, 2]), T([0, 2]))
BATCHES = [(R(3, 1, 4, 2), R(4, 5, 2)), (R(4, 2), R(3, 5, 2)), (R(1, 4, 2), R(5, 2)), (R(3, 4, 2), R(3, 5, 2))]

EMPTY, BYTES_2D = torch.zeros(2, 3, 0), T([[5, 4], [1, 250]], dtype=torch.uint8)

CASES = [
    *(case(of, R(6).to(dtype) * 9, *alpha) for of in (aten.celu.default, aten.elu.default) for dtype, *alpha in ((torch.float32, 2**40), (torch.float16, 0.001), (torch.float64, 100.0))),
    *(case(of, EMPTY[0], *rest) for of, *rest in ((aten.mv.default, EMPTY[0, 0]), (aten.matmul.default, EMPTY[0, 0]), (aten._fused_rms_norm.default, [0], None, 0.0), (aten.native_layer_norm.default, [0], None, None, 1e-5))),
    *(case(of, EMPTY, *rest) for of, *rest in ((aten.matmul.default, EMPTY[0, 0]), (aten._fused_rms_norm.default, [3, 0], None, 0.1), (aten.native_group_norm.default, None, None, 2, 3, 0, 3, 1e-5))),
    *(case(aten.margin_ranking_loss.default, BYTES_2D, BYTES_2D.flip(0), BYTES_2D.to(dtype), margin, 0) for dtype in (torch.uint8, torch.int64, torch.float32) for margin in (0.0, 0.5)),
    *(case(of, torch.zeros(0, 2, dtype=dtype)) for of in (aten.median.default, aten.nanmedian.default) for dtype in (torch.bool, torch.int32, torch.float32)),
    *(case(aten.kl_div.default, torch.rand(3, 4).double(), (torch.rand(3, 4) + 0.1).to(of), how, log_target=logs) for of in (torch.float16, torch.bfloat16, torch.float32) for how, logs in ((0, False), (1, True))),
    case(aten._ctc_loss_backward.default, R(2), LOGS, T([[1, 2], [3, 3]]), [3, 3], [2, 1], T([NAN, 1.0]), *aten._ctc_loss.default(LOGS, T([[1, 2], [3, 3]]), [3, 3], [2, 1])[1:], 0, True),
    case(aten.conv_transpose1d.default, R(2, 1), R(2, 1, 1), R(2), [1], [0], [0], 2, [0]),
    case(aten.cross_entropy_loss.default, torch.zeros(3, 0).double(), torch.zeros(3).long(), None, 2, 0, 0.1),
    *(
        case(aten._cdist_backward.default, torch.ones_like(torch.cdist(x1, x2)), x1, x2, p, torch.cdist(x1, x2, p))
        for x1, x2 in BATCHES
        for p in (0.0, 1.0, 2.0, 3.0, INF)
    ),
    case(aten._cdist_backward.default, torch.zeros(3, 0, 5), R(3, 0, 2), R(3, 5, 2), 2.0, torch.zeros(3, 0, 5)),
    *(case(aten.binary_cross_entropy.default, SHARES, aim, None, 0) for aim in (torch.rand(3), torch.rand(1, 3), torch.rand(1), torch.rand(()))),
    case(aten.binary_cross_entropy.default, torch.rand(1, 2, 1, 3), torch.rand(2, 1, 1, 3), None, 1),
    case(aten.binary_cross_entropy.default, torch.rand(3, 0), torch.rand(2, 3, 0), None, 0),
    *(case(aten.multilabel_margin_loss_forward.default, R(shape), torch.zeros(aim).long(), 1) for shape, aim in (((1,), ()), ((), (1,)))),
    case(aten.multilabel_margin_loss.default, T([NAN, 0.5, 1.0]), T([1, -1, 0]), 1),
    *(case(aten.multi_margin_loss.default, T([NAN, 0.5, 1.0, INF]), T(target), power) for power in (1, 2) for target in (0, 1)),
    case(aten.multi_margin_loss.default, R(4), T(2), 1, 1.0, T([INF, 1.0, 1.0, NAN])),
    case(aten.nll_loss_forward.default, R(0), T(1), torch.zeros(0), 1, 1),
    case(aten.smooth_l1_loss_backward.default, T(1.0), T([NAN, INF, 0.2, -3.0]), torch.zeros(4), 1, 1.0),
    case(aten.smooth_l1_loss_backward.default, R(2, 3), R(2, 3), R(3), 0, 0.5),
    case(aten.smooth_l1_loss_backward.default, R(3), T([0.0, -1.0, NAN]), torch.zeros(3), 2, 0.0),
    *(case(aten.max_pool2d_with_indices.default, torch.zeros(1, 1, 3, 3, dtype=dtype) + low, [2, 2], [2, 2], [1, 1]) for dtype, low in ((torch.uint8, 0), (torch.float32, -INF))),
    *(
        case(aten._ctc_loss_backward.default, R(2), LOGS, labels, [3, 3], lengths, *aten._ctc_loss.default(LOGS, labels, [3, 3], lengths), 0, True)
        for labels, lengths in ((T([[1, 2], [3, 3]]), [2, 1]), (torch.zeros(2, 0).long(), [0, 0]))
    ),
    *(case(aten._ctc_loss_backward.default, R(2), LOGS, T([[1, 2], [3, 3]]), [3, 3], [2, 1], *_beyond_path(filler), 0, True) for filler in (NAN, INF, 9.0)),
    case(aten.grid_sampler_2d_backward.default, R(1, 0, 2, 2), R(1, 0, 3, 3), R(1, 2, 2, 2), 0, 0, True, [True, True]),
    case(aten.adaptive_avg_pool1d.default, torch.zeros(2, 1, 0), [1]),
    *(
        case(getattr(aten, f"{name}{rank}d").vec, R(1, 2, 2, 1, 3)[(..., *[0] * (3 - rank))].double(), None, factors[:rank])
        for rank in (1, 2, 3)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for factors in ([1.3, 2.5, 2.0], [1.9, 1.0, 1.3])
    ),
    *(case(aten.embedding_renorm.default, R(3, 4), T([2, 0]), 1e-5, order) for order in (INF, -INF, -1.0, 0.0)),
    case(aten._trilinear.default, R(3, 4).double(), R(3, 2), R(4, 2), [2], [1], [0], [1]),
    case(aten._trilinear.default, R(3, 3), R(3, 3), R(3, 3), [3, 1], [0, -2], [2, -1], [-3]),
    case(aten._trilinear.default, R(3, 4), R(3, 2).double(), R(4, 2), [2], [1], [0], [1]),
    case(aten.linspace.default, 5, -5, 3, dtype=torch.uint8),
    case(aten.linspace.Tensor_Scalar, T(2), -7, 3, dtype=torch.uint8),
    case(aten.linspace.default, 0.9, 0.1, 1, dtype=torch.bool),
    case(aten.linspace.Scalar_Tensor, 0.9, T(0.0), 1, dtype=torch.bool),
    *(case(aten.combinations.default, R(count), 0) for count in (1, 3)),
    *(case(aten.slice_backward.default, R(1), [4], 0, start, end, step) for start, end, step in ((0, 2, 1), (2, 2, 1), (-3, 9, 2))),
    case(aten.slice_backward.default, R(1, 1), [2, 3], 0, 1, 3, 1),
    case(aten.slice_backward.default, R(()), [2, 3], -1, 0, 3, 1),
    case(aten.select_backward.default, R(1), [2, 3], -1, 0),
    case(aten.select_backward.default, R(()), [2, 1], 1, 0),
    *(case(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default, R(()).half(), R(1).abs(), T([1], dtype=torch.int32), T([flag]), 0, 255) for flag in (0, 1)),
    case(aten.hinge_embedding_loss.default, T([1, -1, 3]), T([1, -1, -1]), 2.0, 2),
    case(aten.eq.Tensor, T([1, 2, 3]), T([1 + 0.5j, 2, 3.5])),
    case(aten.ne.Tensor, T([1 + 0.5j, 2, 3.5]).to(torch.complex128), T([1, 2, 3])),
    case(aten.hardtanh.default, R(3), NAN, 1.0),
    case(aten.conv_tbc.default, R(4, 1, 4), R(1, 4, 2), R(2).half(), 0),
    case(aten.gt.Scalar, BYTES, -3),
    case(aten.lt.Scalar, BYTES, 300),
    case(aten.eq.Scalar, T([1, 2], dtype=torch.int32), 2**32 + 1),
    case(aten.softshrink_backward.default, R(2), T([NAN, 0.5]), 0.5),
    case(aten.hardshrink_backward.default, R(2), T([NAN, 0.5]), 0.5),
    case(aten.upsample_nearest1d_backward.default, R(1, 1, 3), [3], [1, 1, 3], 2.0),
    case(aten.upsample_nearest3d_backward.default, R(1, 1, 2, 6, 4), [2, 6, 4], [1, 1, 2, 3, 3], 2.0, 1.3, None),
    case(aten.grid_sampler_2d_backward.default, R(1, 1, 2, 1).half(), R(1, 1, 1, 2).half(), R(1, 2, 1, 2).half(), 0, 2, True, [True, True]),
    case(aten._addmm_activation.default, T([1]), T([[2, -9]]), T([[1], [1]])),
    case(aten.trapezoid.dx, T([INF, 1.0, 2.0]), dx=0.5),
    case(aten.trapezoid.dx, T([[200, 3, 100]], dtype=torch.uint8), dx=0.5),
    case(aten.pad.default, torch.randn(2, 2, dtype=torch.complex64), [1, 1], "constant", -1.5),
    case(aten.constant_pad_nd.default, torch.randn(2, dtype=torch.complex64), [1, 0], 2 + 1j),
    case(aten.scaled_dot_product_attention.default, R(1, 2, 3, 4), R(1, 2, 2, 4), R(1, 2, 2, 4), T([[NAN, NAN], [-INF, -INF], [0, NAN]])),
    *(
        case(getattr(aten, name).default, R(1, 2, rows, 4), R(1, 2, 3, 4), R(1, 2, 3, 4), *rest, **given)
        for rows in (1, 3)
        for mask in (R(rows, 3), torch.eye(3)[-rows:] == 1, T([[-INF, 0.5, 1.0]]).expand(rows, 3).clone())
        for name, rest, given in (
            ("scaled_dot_product_attention", (mask, 0.0, True), {}),
            ("_scaled_dot_product_flash_attention_for_cpu", (0.0, True), {"attn_mask": mask}),
        )
        if mask.dtype != torch.bool or not given
    ),
    case(aten._weight_norm.default, R(4), R(4), 0),
    case(aten._weight_norm.default, R(3, 4), R(4), 1),
    case(aten._weight_norm.default, R(3, 4), R(3), 0),
    case(aten._weight_norm.default, R(2, 3, 4), R(2, 1, 1), 0),
    case(aten._weight_norm.default, R(2, 3, 4), R(1, 3, 1), 1),
    case(aten._weight_norm.default, R(2, 3), R(()), -1),
    case(aten._weight_norm.default, R(2, 3).half(), R(1, 2).half(), 0),
    *(case(aten.norm_except_dim.default, R(4), power, 0) for power in (1, 2, 3)),
    case(aten.norm_except_dim.default, R(3, 2), 2, -1),
    case(aten._neg_view_copy.default, R(3)),
    case(aten.inner.default, R(()), R(3).double()),
    case(aten.inner.default, R(3), T(2)),
    *(case(aten._addmm_activation.default, R(3), R(2, 4), R(4, 3), beta=0.5, use_gelu=gelu) for gelu in (True, False)),
    case(aten._safe_softmax.default, R(()), 0),
    case(aten._safe_softmax.default, T(-INF), -1),
    *(case(aten.multilabel_margin_loss.default, R(3), T([1, 0, -1]), reduction) for reduction in (0, 1, 2)),
    case(aten.multilabel_margin_loss.default, T([[INF, 1.0, 2.0]]), T([[0, -1, -1]]), 2),
    case(aten.multi_margin_loss.default, R(1), T([0]), 2, 1, T(2.0), 0),
    case(aten.multi_margin_loss.default, R(4), T([2]), 1, 0.5, None, 0),
    case(aten.multi_margin_loss.default, R(2, 3), T([2, 0]), 1, 1, R(3).abs(), 0),
    case(aten.nll_loss_forward.default, R(5), T(2), R(5).abs(), 0, -100),
    case(aten._prelu_kernel.default, R(()), R(1)),
    case(aten._prelu_kernel.default, R(2, 1, 3), R(4, 1)),
    case(aten._prelu_kernel.default, R(2, 3, 3), R(3)),
    case(aten._fused_rms_norm.default, R(4), [4], R(4), None),
    case(aten._fused_rms_norm.default, R(2, 1, 3, 2), [3, 2], None, 1e-3),
    case(aten.native_batch_norm.default, torch.ones(3, 2), None, None, T([0.0, 1.0]), T([1.0, 1.0]), True, 0.1, 0.0),
    case(aten.trapezoid.x, R(2), R(())),
    case(aten.trapezoid.x, R(3, 4), R(3, 1), dim=0),
    case(aten.trapezoid.x, R(2, 3, 4), R(3, 4), dim=1),
    case(aten.trapezoid.x, R(2, 3, 4), R(3), dim=1),
    case(aten.cumulative_trapezoid.x, R(2, 3, 4), R(3, 1), dim=-2),
    case(aten.isclose.default, T([True, False]), T([True, True])),
    case(aten.mode.default, T([[True, False, True], [False, False, True]]), 1),
    case(aten.linalg_tensorsolve.default, R(2, 3, 6).double(), R(2, 3).double()),
    *(case(aten.linalg_lstsq.default, R(1, *sizes).double(), R(1, sizes[0], 2).double(), cutoff, driver="gels") for sizes in ((4, 2), (2, 4)) for cutoff in (2.0, 0.5, -1.0)),
    case(aten.linalg_lstsq.default, R(5, 3).double(), R(5, 2).double(), 0.1, driver="gelsd"),
    case(aten.lerp.Scalar, T([INF, 1.0]), T([2.0, INF]), 1.0),
    case(aten.lerp.Scalar, R(4), R(4), 0.7),
    case(aten.matrix_exp.default, LARGE[1:].repeat(2, 1, 1)),
    case(aten.segment_reduce.default, R(4), "amax", lengths=T([1, 3])),
    case(aten.fft_rfftfreq.default, 0),
    case(aten.fft_rfftfreq.default, -1),
    case(aten.fft_fftfreq.default, 2, 0.0),
    case(aten._fft_c2c.default, torch.complex(R(4), R(4)), [], 1, True),
    case(aten.conv_transpose2d.input, R(1, 2, 5, 4), R(2, 1, 3, 1), R(2), [2, 1], [2, 0], [1, 1], 2, [1, 2]),
    case(aten.conv_transpose1d.default, R(1, 1, 4), R(1, 2, 2), None, [1], [0], [1], 1, [2]),
    case(aten.slow_conv3d.default, R(1, 4, 3, 4, 3), R(2, 2, 2, 1, 2), [2, 1, 2], R(2)),
    *(case(aten.upsample_nearest1d.default, LINE, [count], scale) for count, scale in ((3, 1.3), (6, 2.5), (6, 0.5))),
    case(aten.upsample_nearest2d.default, IMAGE, [3, 10], 1.3, 2.5),
    case(aten._upsample_nearest_exact2d.default, IMAGE, [3, 5], 1.3, 1.1),
    case(aten.upsample_nearest3d.default, VOLUME, [3, 4, 5], 1.3, 2.5, None),
    case(aten.upsample_bilinear2d.default, IMAGE, [4, 7], False, 1.1, None),
    case(aten.upsample_bilinear2d.default, IMAGE, [4, 7], False, None, 2.5),
    case(aten.upsample_linear1d.default, LINE, [7], False, 0.5),
    case(aten.upsample_trilinear3d.default, VOLUME, [2, 3, 6], False, None, 1.3, 0.5),
    case(aten.upsample_bicubic2d.default, IMAGE, [3, 5], False, 1.1, 0.9),
    case(aten._upsample_bilinear2d_aa_backward.default, R(1, 2, 3, 5), [3, 5], [1, 2, 3, 5], False, 2.5, 1.3),
    case(aten.masked_scatter_backward.default, R(4), T(True), [4]),
    case(aten.logit_backward.default, -R(6).abs(), T([-0.0, 0.0, 1.0, 0.3, -0.1, 1.1])),
    case(aten.logit_backward.default, R(6), T([-0.0, 0.0, 1.0, 0.3, 0.05, 0.95]), 0.1),
    case(aten.clamp.default, BYTES, None, -3),
    case(aten.clamp.default, BYTES, -3, 5),
    case(aten.celu.default, R(5).double(), -0.3),
    case(aten.isin.Scalar_Tensor, 5, torch.zeros(0, 2, dtype=torch.uint8), invert=True),
    case(aten.avg_pool2d.default, COUNTS, [3, 1], [1, 1], [0, 0], False, True, 1),
    case(aten.gradient.scalarint, SPACED, spacing=0.5, dim=1),
    case(aten.gradient.scalarint, R(3, 4), spacing=0.0, dim=0, edge_order=2),
    case(aten.gradient.tensorarray, SPACED, spacing=[T([0.0, 1.0, 3.0, 4.5])], dim=[1], edge_order=2),
    case(aten.gradient.tensorarray, R(3).half(), spacing=[T([0.0, 1.0, 3.0])], dim=[0], edge_order=2),
    case(aten.div.Scalar_mode, T([INF, -INF, 3.0, -0.0, -3.0]), 2.0, rounding_mode="floor"),
    case(aten._histogramdd_bin_edges.default, R(1, 2), [0, 0]),
    case(aten.gradient.array, R(2, 3, 4), dim=[0, -1]),
    case(aten._histogramdd_bin_edges.default, R(4, 2), [0, 3]),
    case(aten.cat.default, [R(2, 3), torch.complex(R(2, 3), R(2, 3))], 1),
    case(aten.empty_like.default, torch.complex(R(3), R(3)), dtype=torch.float32),
    case(aten.rsub.Scalar, torch.complex(R(3), R(3)), 0.5, -0.5 + 0.5j),
    case(aten.rsub.Scalar, torch.complex(R(3), R(3)), 0.5, 2),
    case(aten.not_equal.Tensor, T([1 + 0.5j, 2]), T([1, 2])),
    case(aten.multiply.Scalar, torch.complex(R(3), R(3)), 0.5),
    case(aten.moveaxis.int, torch.complex(R(2, 3), R(2, 3)), 0, 1),
    *(case(aten.cumsum.default, R(sizes), 0, dtype=torch.complex64) for sizes in ((), (3,), (2, 3))),
    case(aten.sum.dim_IntList, R(2, 3), [1], dtype=torch.complex64),
    case(aten.instance_norm.default, R(1, 3), None, R(3), None, None, True, 0.0, 1e-5, True),
    case(aten.special_zeta.default, T([INF] * 5), T([0.5, 1.0, 1.5, -0.5, -2.0])),
    case(aten.topk.default, T(2.0), 0),
    *(case(aten.cross_entropy_loss.default, R(2, 3), T([0, 2]), None, 1, -100, least) for least in (-INF, -0.3, NAN)),
    case(aten.cross_entropy_loss.default, R(2, 3), R(2, 3).softmax(1), None, 1, -100, -0.3),
    case(aten.histogram.bin_ct, R(5), 3, range=[2.0, 2.0]),
    case(aten._histogramdd_from_bin_cts.default, R(5, 2), [1, 2], range=[0.0, 0.0, -1.0, 1.0]),
    *(case(aten.mode.default, R(2, 3, 4), dim, keep) for dim in (0, 1) for keep in (False, True)),
    *(case(aten.celu.default, SIGNED, alpha) for alpha in (INF, -INF, NAN)),
    *(case(aten.leaky_relu.default, SIGNED, slope) for slope in (INF, NAN)),
    *(case(aten.elu.default, SIGNED, *numbers) for numbers in ((INF, 1.0, 1.0), (1.0, 1.0, INF), (0.0, 1.0, NAN))),
    case(aten.softplus.default, SIGNED, INF, 20.0),
    *(case(aten.logit.default, T([0.0, 0.3, 1.0, -1.0, 2.0, NAN]), eps) for eps in (0.7, 1.0, NAN)),
    case(aten._unsafe_masked_index.default, R(4, 2), T([[True], [False], [True]]), [T([-1, -9, 9])], 3.0),
    case(aten._unsafe_masked_index_put_accumulate.default, R(4), R(3) > -9, [T([-1, -9, 9])], R(3)),
    case(aten.native_group_norm.default, R(2, 1, 3, 2), R(3), R(3), 2, 3, 2, 1, 1e-3),
    case(aten.native_group_norm.default, R(4, 6), R(4), None, 1, 4, 6, 2, 1e-3),
    case(aten.native_group_norm.default, R(1, 3, 3, 1, 2), R(3), R(3), 3, 3, 2, 1, 0.1),
    *(case(getattr(aten, f"{name}dropout").default, T([[1.0, INF, NAN]]), 1.0, True) for name in ("alpha_", "feature_", "feature_alpha_")),
    *(case(aten.linalg_lstsq.default, R(2, 2, 4), R(2, 2, 2), cutoff, driver=driver) for cutoff in (1.0, 0.0, -1.0, INF) for driver in ("gelsd", "gelss")),
    *(case(aten.norm_except_dim.default, (torch.rand(4, 4, 3) * 0.2 + 0.05).half(), power, dim) for power in (-5, 3, 4) for dim in (0, -1)),
    *(case(aten.trapz.dx, y, dx=dx, dim=-1) for y in (R(3, 1), T([[INF], [1.0]]), R(2, 0), T([[1]])) for dx in (INF, 1.0)),
    case(aten.fractional_max_pool2d.default, R(1, 2, 6), [1, 1], [2, 2], torch.rand(2, 1, 2)),
    case(aten.fractional_max_pool2d.default, R(2, 5, 2), [3, 1], [2, 1], torch.rand(2, 2, 2)),
    case(aten.fractional_max_pool3d.default, R(2, 5, 2, 3), [3, 1, 1], [2, 1, 1], torch.rand(2, 2, 3)),
    *(case(aten.gru.input, R(3, 2, 1), R(1, 2, 3), [R(9, 1), R(9, 3), R(sizes), R(9)], True, 1, 0.0, False, False, False) for sizes in ([1], [], [1, 9])),
    case(aten.lstm.input, R(3, 2, 1), [R(1, 2, 3)] * 2, [R(12, 1), R(12, 3), R(12), R(1)], True, 1, 0.0, False, False, False),
    *(case(aten.pad_sequence.default, [R(2, 3, 2), R(1, 1, 2), R(3, 3, 1)], *of) for of in ((False, 0.5, "left"), (True, 1.0), (False,))),
    *(case(aten._pad_circular.default, R(2, 3, 4), pad) for pad in ([-1, 0], [1, -1], [-1, -1])),
    case(aten.pad.default, R(1, 2, 3, 4), [-1, 0, 0, -1], "circular"),
    *(case(aten.embedding_bag.default, R(4, 3), T([], dtype=torch.int64), T([0, 0]), False, mode) for mode in (0, 1, 2)),
    *(case(aten.pow.Scalar, base, EXPONENTS) for base in (-1, 1, 0)),
    *(case(aten.pow.Tensor_Tensor, T([base]), EXPONENTS) for base in (-1, 1, 0)),
    case(aten.pow.Tensor_Tensor, T([3, 5, 7, -3, 10, 2, -2, 0, 2]), T([39, 27, 22, 39, 18, 62, 63, 0, -3])),
    case(aten.pow.Scalar, 3, T([0, 1, 33, 39, -1])),
    *(case(aten.pow.Tensor_Scalar, T([3, -3, 2, 0]), power) for power in (5, 7, 12, 39)),
    case(aten.pow.Tensor_Scalar, T([1, -1, 0]), 2**53 + 1),
    *(case(of, WRAPPED.to(given) // less, dim, dtype=dtype) for of, dim, less in ((aten.sum.dim_IntList, [1], 1), (aten.nansum.default, [1], 1), (aten.prod.dim_int, 1, 30000)) for given, dtype in ((torch.int64, torch.int32), (torch.int32, torch.int32), (torch.int64, torch.uint8))),
    case(aten.fake_quantize_per_tensor_affine_cachemask.default, T([0.4, 300.0, -1.0, 255.4]), 1.0, 3, 0, 255),
    *(case(aten.instance_norm.default, R(sizes), R(2), R(2), None, None, True, 0.0, 0.0, True) for sizes in ((3, 2), (3, 2, 4))),
    case(aten.logspace.default, 0.9, 5.0, 1, dtype=torch.uint8),
    case(aten.logspace.Tensor_Scalar, T(0.9), 5.0, 1, 2.5, dtype=torch.int64),
    case(aten.conv_tbc.default, R(6, 3, 4), R(0, 4, 1), R(1), 2),
    case(aten.lu_unpack.default, R(2, 1, 2), T([[1]], dtype=torch.int32)),
    case(aten.nll_loss2d_forward.default, R(2, 3, 1, 2), T([[[0, 2]], [[1, 1]]]), R(3, 1).abs(), 0, 0),
    *(case(getattr(aten, f"special_{name}_w").default, R(3), T([NAN, 2.0, INF])) for name in POLYNOMIALS),
    *(case(aten.linalg_solve_triangular.default, R(2, 2) + 3, R(2, 2).to(of), upper=True) for of in (torch.float64, torch.int64)),
    *(case(aten.linalg_cond.default, torch.zeros(sizes), order) for sizes, order in (((0, 3), INF), ((2, 0, 0), None), ((2, 2), 1))),
    *(case(aten.linalg_cond.p_str, singular, "fro") for singular in (torch.zeros(1, 1), torch.ones(2, 3, 3))),
    *(case(aten.linalg_cond.p_str, singular, "nuc") for singular in (torch.zeros(1, 1), torch.ones(2, 2, 2))),
    case(aten.lerp.Tensor, T([INF, 1.0, 2.0, 3.0]), T([-1.0, INF, 5.0, 0.3]), T([1.1, 0.3, -0.7, 0.9])),
    case(aten.cross.default, R(1, 1, 2, 3), R(3, 2, 2, 3), None),
    case(aten.index_put.default, R(3, 1, 4), (T([], dtype=torch.int64), T([True]), T([1])), T(5.0)),
]  # fmt: skip


@pytest.mark.parametrize("given_case", CASES, ids=str)
def test_case(given_case):
    judge(given_case, opsets=(13, 20))


CHANNELS = (R(3), R(3), R(3), R(3).abs())
BASE = torch.arange(12.0).reshape(4, 3)
DROPS = torch.rand(1, 2, 3, 5) < 0.5
QUERY, KEYS = R(1, 2, 3, 4), R(1, 2, 5, 4)
EXPORTED = [
    *((Call(aten.col2im.default, *of), (T([[INF, 1.0, NAN, -2.0] * 2] * 4).double(),)) for of in (([5, 3], [2, 2], [1, 1], [0, 0], [1, 1]), ([4, 7], [4, 1], [1, 2], [1, 0], [2, 2]))),
    (lambda x, w, b: aten.slow_conv_dilated3d.default(x, w, [1, 2, 3], b, [2, 1, 1], [2, 2, 0], [1, 1, 2]), (R(1, 2, 2, 0, 5).double(), R(1, 2, 1, 2, 3).double(), R(1).double())),
    (Call(aten.slow_conv_dilated2d.default, [2, 3], None, [1, 1], [2, 1]), (R(1, 2, 0, 5).double(), R(1, 2, 2, 3).double())),
    (Call(aten.conv_tbc.default, 2), (R(0, 2, 3).double(), R(2, 3, 4).double(), R(4).double())),
    (lambda x, w, b: aten.thnn_conv2d.default(x, w, [2, 1], b, [1, 2], [1, 0]), (R(2, 0, 3, 3), R(2, 1, 2, 1), R(2))),
    *((lambda x, w, form=form: form(x, w, None, padding=1), (torch.zeros(2, 0, *sizes), torch.zeros(2, 0, *sizes))) for form, sizes in ((torch.conv1d, (3,)), (torch.conv2d, (3, 2)))),
    *((lambda x, a=axes: torch.view_as_real(x.to(torch.complex64).mean(a)), (torch.zeros(1, 0, 3),)) for axes in ([0, 1], [0, 1, 2], [])),
    *((Call(aten.mean.dim, axes), (torch.zeros(1, 0, 3, dtype=dtype),)) for axes in ([0, 1], [1], []) for dtype in (torch.float64, torch.float32)),
    *((Call(aten.addmv.default, beta=beta), (R(sizes), R(0, 3), R(3))) for sizes, beta in (((1,), -0.3), ((), 1), ((0,), 1), ((1,), 0))),
    (Call(aten.addmv.default), (R(1), R(3, 0), R(0))),
    *((Call(of, alpha=0, beta=beta), (R(2), T([[NAN, INF], [1.0, NAN]]).expand(*lead, 2, 2), R(*right))) for beta in (1, 0, 0.5) for of, lead, right in ((aten.addmm.default, (), (2, 2)), (aten.addmv.default, (), (2,)), (aten.addbmm.default, (1,), (1, 2, 2)), (aten.addbmm.default, (3,), (3, 2, 2)), (aten._addmm_activation.default, (), (2, 2)))),
    *((lambda g, x, m, r, mask=mask: [part for part in aten.native_batch_norm_backward.default(g.bfloat16(), x.bfloat16(), None, None, None, m, r, True, 1e-5, mask)[1:] if part is not None], (R(3, 2, 4), R(3, 2, 4), R(2), R(2).abs())) for mask in ([True, True, True], [True, False, True])),
    *((Call(aten.rrelu_with_noise_functional.default, *bounds, True), (R(5).abs(), R(5))) for bounds in ((0.3, 0.1), (-0.1, -0.3))),
    (Call(aten.linalg_vecdot.default, dim=1), (R(3), R(3))),
    (Call(aten.binary_cross_entropy.default, None, 0), (torch.rand(3, 0), torch.rand(2, 3, 0))),
    (lambda x, y, w: aten.binary_cross_entropy.default(x, y, w, 1), (SHARES, SHARES, R(3, 1).double())),
    *((lambda q, k, m, p=p: aten._scaled_dot_product_attention_math.default(q, k, k, None, p, False, m), (QUERY, KEYS, DROPS)) for p in (0.0, 0.25)),
    (lambda q, k: aten._scaled_dot_product_attention_math.default(q, k, k), (T([[INF, 1.0]]), T([[-1.0, 1.0], [-2.0, 0.0]]))),
    (lambda q, k, m: aten._scaled_dot_product_attention_math.default(q, k, k, m), (QUERY[0], KEYS[None], R(3, 5))),
    (lambda q, k: aten._scaled_dot_product_attention_math.default(q, k, k, enable_gqa=True), (R(1, 4, 3, 4), KEYS)),
    (lambda q, k, m: aten.scaled_dot_product_attention.default(q, k, k, m), (QUERY[0, 0], KEYS[0, 0], T(False))),
    (Call(aten._weight_norm.default, 0), (R(3, 4), R(3, 1, 1))),
    *((lambda x, w, b, d=dtype: aten.native_layer_norm.default(x.to(d), [4], w, b, 1e-5)[1:], (R(3, 4), R(4), R(4))) for dtype in (torch.float16, torch.bfloat16)),
    *((Call(aten.pixel_unshuffle.default, 2), (torch.zeros(shape),)) for shape in ((2, 2, 0), (0, 4, 2, 2), (1, 0, 2, 2))),
    *((lambda *of, mode=mode: aten._embedding_bag_forward_only.default(*of, False, mode)[:1], (R(5, 2), T([1, 4, 0], dtype=torch.int32), T([0, 2]))) for mode in (0, 1, 2)),
    (lambda *of: aten._embedding_bag.default(*of, False, 2)[2], (R(5, 2), T([1, 4, 0], dtype=torch.int32), T([0, 2]))),
    (lambda x, *of: aten.embedding_bag.default(x.bfloat16(), *of)[1], BAGS),
    (lambda x: torch.nn.functional.dropout(x, 1.0, True), (T([1.0, INF, NAN]),)),
    (Call(aten.slow_conv_transpose3d.default, [2, 2, 1], None, [2, 2, 2]), (R(1, 3, 3, 2), R(1, 2, 2, 2, 1))),
    (Call(aten._reshape_alias.default, [2, 2], [3, 0]), (R(2, 3),)),
    (Call(aten._reshape_alias.default, [3, 2], [2, 1]), (R(2, 3),)),
    (Call(aten._reshape_alias_copy.default, [2, 3], [1, 2]), (R(2, 3),)),
    (lambda x: aten.slice_inverse.default(x[1:3], x * 2, 0, 1, 3, 1), (BASE,)),
    (lambda x: aten.slice_inverse.default(x, x[:2] * 2, 0, None, 2, 1), (BASE,)),
    (Call(aten._scaled_dot_product_attention_math.default), (R(1, 2, 2, 3), R(1, 2, 4, 3), R(1, 2, 4, 3), R(2, 4) > 0)),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default, 0.0, True), (R(1, 2, 4, 3), R(1, 2, 4, 3), R(1, 2, 4, 3))),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default, 0.0, True), (R(1, 4, 3, 2), R(1, 2, 3, 2), R(1, 2, 3, 2))),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default), (R(2, 6, 3, 2), R(2, 2, 5, 2), R(2, 2, 5, 2))),
    (Call(aten.multilabel_margin_loss_forward.default, 0), (R(3), T([0, 2, -1]))),
    (Call(aten.multi_margin_loss.default, 1, 1, None, 0), (R(4), T(1))),
    (Call(aten._weight_norm_interface.default, 1), (R(2, 3), R(3, 1))),
    (Call(aten._weight_norm_interface.default, 0), (R(4), R(4))),
    (Call(aten.slow_conv_transpose2d.default, [2, 2], None, [1, 2], [0, 0], [0, 1]), (R(1, 5, 4), R(1, 2, 2, 2))),
    (Call(aten.unique_consecutive.default, False, False, -1), (R(4).round(),)),
    (Call(aten.native_dropout.default, 1.0, None), (R(4),)),
    (lambda *of: aten._ctc_loss.Tensor(*of)[0], (R(3, 2, 2).log_softmax(2), T([[1], [1]]), T([3, 2]), T([[1, 1]]))),
    *((Call(aten.rrelu_with_noise_functional.default, NAN, bound, True), (R(3).abs(), R(3))) for bound in (2.0, INF)),
    *((Call(aten._scaled_dot_product_attention_math.default), (R(1, 2, 3, 4), *of)) for of in ((R(1, 2, 5, 4).half(), R(1, 2, 5, 4)), (R(1, 2, 5, 4), R(1, 2, 5, 4).half()))),
    (lambda *of: aten.native_group_norm.default(*of, 3, 4, 2, 2, 0.1)[1:], (R(3, 4, 2).half(), R(4), R(4))),
    *((Call(aten.sigmoid_backward.default), (T([1e-30, 1.0], dtype=dtype), T([1e20, -5.0], dtype=dtype))) for dtype in (torch.float32, torch.float64)),
    (Call(aten.native_batch_norm.default, True, 0.1, 1e-3), (R(1, 3), *CHANNELS)),
    (Call(aten.batch_norm.default, True, 0.1, 1e-3, False), (R(1, 3, 1), *CHANNELS)),
    (Call(aten.batch_norm.default, True, 0.1, 1e-3, False), (R(0, 3), *CHANNELS)),
    (Call(aten._native_batch_norm_legit_functional.default, True, 0.1, 1e-3), (R(1, 3), *CHANNELS)),
    (lambda x, *of: aten._batch_norm_with_update_functional.default(x, None, None, *of[2:], 0.1, 1e-3), (R(2, 3), *CHANNELS)),
    (lambda x, *of: aten._batch_norm_no_update.default(x, None, None, *of[2:], 0.1, 1e-3), (R(2, 3), *CHANNELS)),
    (Call(aten.embedding_bag.padding_idx, False, 1, False, None, False, -1), (R(3, 2), T([0, 2, 1, 2]), T([0, 2]))),
    *((Call(aten.reflection_pad2d_backward.default, pad), (R(*sizes), R(2, 1, 3, 4))) for pad, sizes in (([1, 2, -4, 2], (2, 1, 1, 7)), ([-1, 1, 2, -2], (2, 1, 3, 4)), ([2, 1, 1, -3], (2, 1, 1, 7)))),
    (Call(aten.reflection_pad1d_backward.default, [-5, 3]), (R(2, 3), R(2, 5))),
    (Call(aten.reflection_pad3d_backward.default, [1, -4, 2, 2, -3, 1]), (R(1, 1, 7, 2), R(1, 3, 3, 5))),
]  # fmt: skip


@pytest.mark.parametrize(("module", "args"), EXPORTED, ids=lambda value: str(getattr(value, "overload", ""))[:50])
def test_exported(module, args):
    check(module, args)


REFUSED = [
    *((lambda x, *of, form=form: form(x, of, T(0.5)), (R(3, 2), T([2]), T(1), T(True))) for form in (aten._index_put_impl.default, aten.index_put.default)),
    *((Call(aten._ctc_loss_backward.default, T([[1], [2]]), [3, 3], [1, 1], *of, 0), (grad, LOGS)) for grad, *of in ((R(2).half(), R(2), R(2, 3, 3)), (R(2), R(2), R(1, 3, 3)))),
    *((Call(of, states, [R(rows, 3), R(rows, 1)] * 2, False, 2, 0.0, False, False), (R(3, 3), T([2, 1]))) for of, states, rows in ((aten.lstm.data, [R(2, 2, 1)] * 2, 1), (aten.gru.data, R(2, 2, 1), 2))),
    (Call(aten.slow_conv3d.default, [2, 2, 3], R(3), [1, 2, 2]), (R(1, 3, 5, 3, 7), R(3, 3, 3, 3, 3))),
    *((Call(aten.gru.data, R(1, count, 1), [R(3, 1), R(3, 1)], False, 1, 0.0, False, False), (R(4, 1), T([2, 2]))) for count in (0, 1)),
    (Call(aten.lstm.data, [R(1, 1, 2)] * 2, [R(8, 3), R(8, 2), R(8), R(8, 1)], True, 1, 0.0, False, False), (R(3, 3), T([1, 1, 1]))),
    (Call(aten.lstm.input, [R(1, 1, 3)] * 2, [R(12, 2), R(12, 3)], False, 1, 0.0, False, False, False), (R(2, 1, 1, 2),)),
    *((Call(of, T([0, 1]), False, 2), (R(5, 2), T([[1, 0, 2]]))) for of in (aten._embedding_bag_forward_only.default, aten._embedding_bag.default)),
    (Call(aten._pdist_backward.default, R(3, 1, 3), 2.0, R(3)), (R(3),)),
    *((lambda x, y, form=form: form(x, y), (SHARES, SHARES)) for form in (lambda x, y: aten.mse_loss.default(x, y, 4), lambda x, y: aten.binary_cross_entropy.default(x, y, None, -1))),
    (Call(aten.ctc_loss.Tensor, 0, 5, True), (LOGS, T([[1, 2], [3, 3]]), T([3, 3]), T([2, 1]))),
    (Call(aten.slow_conv_transpose2d.default, [2, 3], None, [1, 1], [1, 0], [0, 0], [2, 1]), (R(1, 2, 4, 4), R(2, 2, 2, 4))),
    (Call(aten.nll_loss.default, None, 3), (R(2, 3), T([0, 2]))),
    (Call(aten.scaled_dot_product_attention.default), (QUERY, KEYS, R(1, 2, 3, 4))),
    (Call(aten.scaled_dot_product_attention.default), (QUERY, KEYS, R(1, 0, *KEYS.shape[2:]))),
    (Call(aten._ctc_loss_backward.Tensor, T([[1], [2]]), T([3.0, 3.0]), T([1, 1]), R(2), R(2, 3, 3), 0), (R(2), LOGS)),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default), (QUERY, KEYS, R(1, 2, 6, 4))),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default), (QUERY, KEYS, R(2, 2, 5, 4))),
    (Call(aten._scaled_dot_product_attention_math.default), (torch.ones(1, 1, 2, 3).long(), R(1, 1, 4, 3), R(1, 1, 4, 3))),
    (Call(aten.batch_norm.default, None, True, 0.0, 1e-5, False), (R(3, 2, 2), R(2), R(2), R(2))),
    *((lambda q, m, causal=causal: aten.scaled_dot_product_attention.default(q, q, q, m, 0.0, causal), (R(2, 3, 4), mask)) for mask, causal in ((R(3, 3), True), (torch.ones(3, 3).to(torch.int8), False))),
    (Call(aten.linear.default), (R(3), R(3), R(()).double())),
    (Call(aten.lu_unpack.default), (R(1, 1, 1, 1), torch.ones(1, 2, 1, dtype=torch.int32))),
    (Call(aten.rnn_relu.input, [R(2, 3), R(2, 2)], False, 1, 0.0, False, False, True), (R(1, 1, 3), R(1, 1, 1, 2))),
    (lambda x: aten._scaled_dot_product_efficient_attention.default(x, x, x, None, True)[1], (R(1, 1, 2, 4),)),
    (Call(aten.slow_conv_dilated2d.default, [2, 1], None, [1, 1], [1, -2]), (R(2, 2, 4, 5), R(2, 2, 2, 1))),
    (Call(aten.slow_conv_transpose2d.default, [3, 3], None, [1, 2], [0, 0], [-1, 1]), (R(2, 2, 4, 7), R(2, 2, 3, 3))),
    (Call(aten.embedding_bag.default), (R(3, 3), T([[0], [1], [2]]), T([0, 2]))),
    (Call(aten.rnn_tanh.input, [R(1, 2), R(1, 1)], False, 1, 0.0, False, False, False), (R(3, 1, 2), R(1, 2, 1))),
    (Call(aten._weight_norm.default, 0), (R(4, 3), R(2))),
    (Call(aten._fused_rms_norm.default, [3], None, 1e-3), (R(()),)),
    (Call(aten.native_batch_norm.default, None, None, None, True, 0.1, 1e-3), (R(1, 2, 3), R(1, 2))),
    (Call(aten._native_batch_norm_legit_no_training.default, 1.0, 2.0), (R(3, 2, 4), *[R(1).abs()] * 4)),
    (Call(aten.rnn_tanh.data, R(1, 1, 2), [R(2, 3), R(2, 2)], False, 1, 0.0, False, False), (R(2, 3), T([[1, 1]]))),
    (Call(aten._trilinear.default, [3, 1], [0, 2], [2, 3], [1]), (R(3, 3), R(3, 3), R(3, 2))),
    (Call(aten._trilinear.default, [0], [0, 1], [1], [0, 2]), (R(3, 4), R(0, 4), R(3, 1))),
    (Call(aten._pdist_forward.default), (R(3, 2, 2),)),
    (Call(aten.gradient.tensorarrayint, spacing=[R(4)], dim=0), (R(3, 4),)),
    (Call(aten.rnn_tanh.data, R(1, 2, 2), [R(2, 3), R(2, 2)], False, 1, 0.0, False, False), (R(2, 3), T([2, 1, 1]))),
    (Call(aten.rnn_tanh_cell.default), (torch.ones(2, 2).long(),) * 4),
    (Call(aten._scaled_dot_product_flash_attention_for_cpu.default), (R(1, 3, 3, 2), R(1, 2, 5, 2), R(1, 2, 5, 2))),
    (Call(aten.lstm.data, (R(1, 3, 1), R(1, 3, 1)), [R(4, 2), R(4, 1)], False, 1, 0.0, False, False), (R(3, 1), T([3]))),
    (Call(aten.lstm.data, (R(1, 3, 1), R(1, 3, 1)), [R(4), R(4)], False, 1, 0.0, False, False), (R(3, 1), T([3]))),
]  # fmt: skip


@pytest.mark.parametrize(("module", "args"), REFUSED, ids=lambda value: str(getattr(value, "overload", ""))[:50])
def test_what_has_no_form_is_refused(module, args):
    with pytest.raises(UserError) as raised:
        fx2onnx.export(module, args)
    assert raised.value.code in ("E203", "E101"), raised.value


NO_FACTOR = T([[[2.0, 0.0], [0.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.cholesky_ex(x)[1],
        lambda x: torch.linalg.cholesky_ex(x, upper=True)[1],
        lambda x: torch.linalg.inv_ex(x)[1],
        lambda x: torch.linalg.lu_factor_ex(x)[2],
        lambda x: torch.linalg.solve_ex(x, x)[1],
        lambda x: torch.linalg.lu_factor_ex(x[:, :1])[2],
    ],
)
def test_info_names_the_pivot_that_ends_a_factorisation(function):
    check(function, (NO_FACTOR,))


def test_a_cutoff_of_gelsy_that_may_leave_columns_out_is_a_warning_and_one_of_all_is_refused():
    a, b = R(3, 3), R(3, 1)
    with pytest.warns(fx2onnx.ExportWarning, match="driver gelsy"):
        fx2onnx.export(lambda a, b: torch.linalg.lstsq(a, b, rcond=0.1)[0], (a, b))
    for driver in (None, "gelsy"):
        with pytest.raises(UserError, match="E203"):
            fx2onnx.export(lambda a, b, driver=driver: torch.linalg.lstsq(a, b, rcond=1.0, driver=driver)[0], (a, b))
    check(lambda a, b: torch.linalg.lstsq(a, b, rcond=0.1, driver="gelsd")[0], (a, b))


EDGES = (0.0, 5e-324, 1e-300, 1e-5, 0.3, 2.5, 200.0, float("inf"), float("nan"), -1.0)


@pytest.mark.parametrize("function", [torch.special.gammainc, torch.special.gammaincc])
def test_incomplete_gammas_at_their_edges(function):
    pairs = T([(a, x) for a in EDGES for x in EDGES if (a, x) != (5e-324, 0.3)], dtype=torch.float64)
    check(function, (pairs[:, 0].contiguous(), pairs[:, 1].contiguous()))


@pytest.mark.parametrize("count", [0, 3])
def test_batch_norm_of_other_statistics_is_refused_before_a_kernel_reads_them(count):
    with pytest.raises(UserError, match="E101"):
        fx2onnx.export(
            Call(aten.batch_norm.default, True, 0.1, 1e-5, False), (R(3, 2, 2), *[R(2)] * 3, torch.ones(count))
        )


def test_running_statistics_of_other_channels_are_refused():
    call = torch.ops.aten._batch_norm_with_update_functional.default
    args = (R(2, 3, 4), torch.ones(3), torch.ones(3), torch.ones(3), torch.ones(2))
    with pytest.raises(UserError, match="running_var has 2 elements, the input 3 channels"):
        fx2onnx.export(lambda *args: call(*args, 0.1, 1e-5), args)
