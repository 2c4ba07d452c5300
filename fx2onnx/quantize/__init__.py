"""Low-bit weights: quantized values and scales, made as they are written (docs/quantization.md). Without torch.

``fx2onnx.quantize(...)`` is of files.
"""

from fx2onnx.base.public_names import make_callable

make_callable(__name__)
