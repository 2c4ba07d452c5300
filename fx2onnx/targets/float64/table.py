"""The table of operators with a float64 form."""

from __future__ import annotations

from fx2onnx.targets.float64 import images, norms, numbers, recurrent, windows
from fx2onnx.targets.float64.node import Form

FORMS: dict[str, Form] = {
    **numbers.FORMS,
    **recurrent.FORMS,
    "AveragePool": windows.average_pool,
    "BatchNormalization": norms.batch_normalization,
    "Col2Im": images.col2im,
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "GlobalAveragePool": norms.global_average_pool,
    "GlobalLpPool": windows.global_lp_pool,
    "GlobalMaxPool": norms.global_max_pool,
    "GridSample": images.grid_sample,
    "GroupNormalization": norms.group_normalization,
    "InstanceNormalization": norms.instance_normalization,
    "LayerNormalization": norms.layer_normalization,
    "LRN": windows.lrn,
    "LpPool": windows.lp_pool,
    "RMSNormalization": norms.rms_normalization,
    "Resize": images.resize,
}
"""A function that writes an operator as float64 nodes; it returns None where this node has no such form."""
