"""How many axes an operand may have that is a list of numbers, or one number. Source: ``onnx.defs``; onnxruntime where it is silent."""

from __future__ import annotations

from collections.abc import Mapping

from fx2onnx.runner.kernels.reduce import REDUCTIONS

Axes = tuple[int, ...]

_LIST: Axes = (1,)
_NUMBER: Axes = (0, 1)
_SCALAR: Axes = (0,)

_TABLE: dict[str, tuple[int, Mapping[int, Axes]]] = {
    **dict.fromkeys(REDUCTIONS, (13, {1: _LIST})),
    "CenterCropPad": (18, {1: _NUMBER}),
    "Clip": (11, {1: _NUMBER, 2: _NUMBER}),
    "Conv": (1, {2: _LIST}),
    "ConvTranspose": (1, {2: _LIST}),
    "CumProd": (26, {1: _NUMBER}),
    "CumSum": (11, {1: _NUMBER}),
    "DFT": (17, {1: _NUMBER, 2: _NUMBER}),
    "Dropout": (12, {1: _SCALAR, 2: _SCALAR}),
    "Expand": (8, {1: _LIST}),
    "ImageDecoder": (20, {0: _LIST}),
    "NegativeLogLikelihoodLoss": (12, {2: _LIST}),
    "OneHot": (9, {1: _NUMBER}),
    "Pad": (11, {1: (1, 2), 3: _LIST}),
    "QLinearConv": (10, {1: _NUMBER, 2: _NUMBER, 4: _NUMBER, 5: _NUMBER, 6: _NUMBER, 7: _NUMBER, 8: _LIST}),
    "Range": (11, {0: _NUMBER, 1: _NUMBER, 2: _NUMBER}),
    "Reshape": (5, {1: _LIST}),
    "Resize": (11, {2: _LIST, 3: _LIST}),
    "STFT": (17, {1: _NUMBER, 2: _LIST, 3: _NUMBER}),
    "Slice": (10, {1: _LIST, 2: _LIST, 3: _LIST, 4: _LIST}),
    "SoftmaxCrossEntropyLoss": (12, {2: _LIST}),
    "Split": (13, {1: _LIST}),
    "Squeeze": (13, {1: _LIST}),
    "TfIdfVectorizer": (9, {0: (1, 2)}),
    "Tile": (6, {1: _LIST}),
    "TopK": (10, {1: _LIST}),
    "Trilu": (14, {1: _NUMBER}),
    "Unsqueeze": (13, {1: _NUMBER}),
}
"""By operator of the standard domain: the opset that it holds from, and the axes by place of the operand."""


def axes_of(domain: str, op_type: str, since_version: int) -> Mapping[int, Axes]:
    """The axes that the operands of such a place may have; nothing is said of the others."""
    since, axes = _TABLE.get(op_type, (0, {}))
    return axes if not domain and since_version >= since else {}
