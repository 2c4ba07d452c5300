"""Finding a wrong node: a file that differs from its module, the first node that is wrong, and a test case of it.

python examples/wrong_node.py [FOLDER]
"""

import sys
from pathlib import Path

import onnx
import torch

import fx2onnx
from fx2onnx import locate, verify


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        inner = self.up(self.norm(x))
        return x + self.down(torch.nn.functional.leaky_relu(inner, 0.2))


def main(folder="."):
    torch.manual_seed(0)
    model, sample = torch.nn.Sequential(Block(), Block()).eval(), torch.randn(2, 5, 16)
    path = Path(folder) / "blocks.onnx"
    fx2onnx.export(model, (sample,), str(path))
    print("as exported:", "right" if verify(path, model, (sample,)).ok else "wrong")

    # Somebody's script edits the file: the slope of the second activation becomes ONNX's default.
    proto = onnx.load(path)
    second = [node for node in proto.graph.node if node.op_type == "LeakyRelu"][1]
    del second.attribute[:]
    onnx.save(proto, path)

    verdict = verify(path, model, (sample,))
    print("as edited:", "right" if verdict.ok else "wrong")
    found = locate(path, model, (sample,))
    print(found.describe())
    found.write_case(Path(folder) / "case")  # model.onnx, inputs, PyTorch's outputs, repro.py: for a bug report
    print("test case:", sorted(file.name for file in (Path(folder) / "case").iterdir()))


if __name__ == "__main__":
    main(*sys.argv[1:])
