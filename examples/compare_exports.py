"""Comparing two exports: fx2onnx beside torch.onnx.export, and a module before and after a change.

python examples/compare_exports.py [FOLDER]
"""

import sys
import time
from pathlib import Path

import torch

import fx2onnx
from fx2onnx import diff


class Net(torch.nn.Module):
    def __init__(self, activation=torch.relu):
        super().__init__()
        self.conv, self.norm, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)
        self.activation = activation

    def forward(self, x):
        return self.head(self.activation(self.norm(self.conv(x))).mean((2, 3)))


def timed(name, export):
    start = time.perf_counter()
    export()
    print(f"{name}: {time.perf_counter() - start:.2f} s, imports included")


def show(one, other):
    """Print ``fx2onnx diff ONE OTHER`` in short: nodes by where they come from, weights by their numbers."""
    found = diff(one, other)
    print(f"{one.name} and {other.name}: {'equal' if found.equal else 'different'}")
    for change in (*found.model, *found.interface):
        print(f"  {change.what} {change.name}: {change.before} -> {change.after}")
    for kind in ("removed", "added"):
        for node in getattr(found.nodes, kind):
            print(f"  {kind}: {node.op_type}, of {node.source}")
    for weight in found.weights.changed:
        print(f"  changed: {weight.name}, by at most {weight.largest:.3f}")


def main(folder="."):
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(1, 3, 16, 16)
    theirs, ours, changed = (Path(folder) / name for name in ("torch.onnx", "fx2onnx.onnx", "changed.onnx"))
    timed("torch.onnx.export", lambda: torch.onnx.export(model, (x,), theirs, dynamo=True, verbose=False))
    timed("fx2onnx.export", lambda: fx2onnx.export(model, (x,), ours))
    show(theirs, ours)

    model.activation = torch.nn.functional.silu
    model.head.weight.data[0, 0] += 0.5
    fx2onnx.export(model, (x,), changed)
    show(ours, changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
