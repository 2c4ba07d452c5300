"""An operator of your own: a translation to one node of your domain, and a NumPy kernel, so that it is verified, too.

python examples/custom_op.py
"""

import numpy as np
import torch

import fx2onnx
import fx2onnx.runner as ort


@torch.library.custom_op("demo::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return limit * torch.tanh(x / limit)


@soft_clip.register_fake  # export never runs the operator itself: this says which shape and dtype it gives
def _(x, limit):
    return torch.empty_like(x)


@fx2onnx.translates(torch.ops.demo.soft_clip.default)
def translate(op, x, limit):
    """soft_clip(Tensor x, float limit) -> Tensor"""
    return op.custom("demo", "SoftClip", [x], [(op.dtype(x), op.dims(x))], limit=limit)[0]


@ort.kernel("SoftClip", domain="demo")
def kernel(x, *, limit):
    """limit * tanh(x / limit)."""
    return (limit * np.tanh(x / limit)).astype(x.dtype)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.ops.demo.soft_clip(self.linear(x), 0.5)


def main(path="soft_clip.onnx"):
    sample = torch.randn(3, 8)
    result = fx2onnx.export(Net(), (sample,), path, dynamic_shapes={"x": {0: "batch"}}, verify=True)
    print("operators:", [f"{node.domain}::{node.op_type}".strip(":") for node in result.model.graph])
    print("verified:", result.report.verdict["ok"])
    for note in result.report.verdict["notes"]:
        print("note:", note)  # onnxruntime has no such kernel: it needs a library of custom operators

    session = ort.InferenceSession(path)
    (clipped,) = session.run(None, {"x": 10 * np.ones((5, 8), np.float32)})
    print("largest output:", round(float(np.abs(clipped).max()), 3))


if __name__ == "__main__":
    main()
