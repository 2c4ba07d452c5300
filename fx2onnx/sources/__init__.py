"""Sources of models: ``resolve("torchvision:resnet50")`` gives a module with sample inputs and dynamic dims."""

from fx2onnx.sources.registry import KINDS, SourceKind, names, resolve
from fx2onnx.sources.source import Options, Source

__all__ = ["KINDS", "Options", "Source", "SourceKind", "names", "resolve"]
