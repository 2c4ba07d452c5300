"""The table of operators with a float64 form."""

from __future__ import annotations

from fx2onnx.targets.float64 import images, numbers, recurrent, windows
from fx2onnx.targets.float64.node import Form

FORMS: dict[str, Form] = {
    **numbers.FORMS,
    **recurrent.FORMS,
    "AveragePool": windows.average_pool,
    "BatchNormalization": images.batch_normalization,
    "Col2Im": images.col2im,
    "Conv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "GlobalAveragePool": images.global_average_pool,
    "GlobalLpPool": windows.global_lp_pool,
    "GlobalMaxPool": images.global_max_pool,
    "GridSample": images.grid_sample,
    "GroupNormalization": images.group_normalization,
    "InstanceNormalization": images.instance_normalization,
    "LayerNormalization": images.layer_normalization,
    "LRN": windows.lrn,
    "LpPool": windows.lp_pool,
    "RMSNormalization": images.rms_normalization,
    "Resize": images.resize,
}
"""A function that writes an operator as float64 nodes; it returns None where this node has no such form."""
