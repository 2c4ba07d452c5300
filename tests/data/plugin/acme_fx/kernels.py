import numpy as np

import fx2onnx.runner as ort


@ort.kernel("SoftClip", domain="acme")
def soft_clip(x, *, limit):
    """limit * tanh(x / limit)."""
    return (limit * np.tanh(x / limit)).astype(x.dtype)
