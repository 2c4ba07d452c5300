"""Digits end to end: train a network, export it for any batch, prove the file right, classify without PyTorch.

python examples/digits.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fx2onnx
import fx2onnx.runner as ort


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.head = nn.Conv2d(16, 32, 3, padding=1), nn.Linear(32 * 4 * 4, 10)

    def forward(self, image):
        x = F.relu(self.norm(self.conv1(image)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return {"logits": self.head(x.flatten(1))}  # a key of the result becomes the output's name


def main(folder="."):
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(labels)
    test = torch.arange(len(labels)) % 5 == 0
    model = Digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for rows in torch.randperm(int((~test).sum())).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[~test][rows])["logits"], labels[~test][rows]).backward()
            optimizer.step()
    model.eval()

    path = str(Path(folder) / "digits.onnx")
    result = fx2onnx.export(model, (images[:2],), path, dynamic_shapes={"image": {0: "batch"}}, verify=True)
    print(
        f"{result.report.nodes_onnx} nodes, {result.report.file_bytes / 1e3:.0f} kB, verified: {result.report.verdict['ok']}"
    )

    session = ort.InferenceSession(path)  # onnxruntime's interface, NumPy alone
    (logits,) = session.run(["logits"], {"image": images[test].numpy()})
    right = (logits.argmax(1) == labels[test].numpy()).mean()
    print(f"accuracy {right:.3f} of {len(logits)} images that it was not trained on")


if __name__ == "__main__":
    main(*sys.argv[1:])
