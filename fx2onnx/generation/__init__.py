"""Run exported folders: ``load(FOLDER)(**inputs)``, and text generation over their caches."""

from fx2onnx.generation.components import LoadedPipeline
from fx2onnx.generation.loaded import LoadedModel, load
from fx2onnx.generation.opened import Outputs

__all__ = ["LoadedModel", "LoadedPipeline", "Outputs", "load"]
