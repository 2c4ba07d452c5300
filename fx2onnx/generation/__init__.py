"""Run exported folders: ``load(FOLDER)(**inputs)``, and text generation over their caches."""

from fx2onnx.generation.loaded import LoadedModel, Outputs, load

__all__ = ["LoadedModel", "Outputs", "load"]
