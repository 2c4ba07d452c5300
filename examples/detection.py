"""Detection: an image in, any number of boxes out; the file holds all of it, suppression and sorting, too.

python examples/detection.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import fx2onnx


def small():
    """A small detector in place of torchvision.models.detection.fasterrcnn_resnet50_fpn(weights="DEFAULT")."""
    sizes = {"kernel_size": 3, "stride": 2, "padding": 1}
    backbone = nn.Sequential(nn.Conv2d(3, 16, **sizes), nn.ReLU(), nn.Conv2d(16, 32, **sizes), nn.ReLU())
    backbone.out_channels = 32
    anchors, pool = AnchorGenerator(((16, 32),), ((1.0,),)), MultiScaleRoIAlign(["0"], 7, 2)
    parts = {"rpn_anchor_generator": anchors, "box_roi_pool": pool}
    model = FasterRCNN(backbone, 5, min_size=96, max_size=160, box_score_thresh=0.5, **parts)
    for weight in model.roi_heads.box_predictor.cls_score.parameters():
        weight.data *= 30  # random weights are sure of nothing
    return model.eval()


def main(folder="."):
    torch.manual_seed(0)
    model, path = small(), str(Path(folder) / "detector.onnx")
    result = fx2onnx.export(model, ([torch.rand(3, 96, 128)],), path)  # torchvision's detectors take a list of images
    print("in:", result.report.input_names, "out:", result.report.output_names)

    session = onnxruntime.InferenceSession(path)
    (name,) = [given.name for given in session.get_inputs()]
    for seed in range(3):
        image = torch.rand(3, 96, 128, generator=torch.Generator().manual_seed(seed))
        boxes, labels, scores = session.run(None, {name: image.numpy()})
        with torch.no_grad():
            (expected,) = model([image])
        same = np.array_equal(labels, expected["labels"].numpy())
        worst = np.abs(boxes - expected["boxes"].numpy()).max(initial=0) if same else np.inf
        print(f"{len(boxes)} boxes, at most {worst:.0e} pixels from PyTorch's")
        for box, label, score in list(zip(boxes, labels, scores, strict=True))[:2]:
            print(f"  class {label}, score {score:.2f}, from {box[:2].round()} to {box[2:].round()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
