"""Decoders with onnxruntime's GroupQueryAttention, where fused forms are asked for: ``fx2onnx.decoding.cache.grouped``."""

from __future__ import annotations

from dataclasses import replace

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.grouped import grouped_decoder
from fx2onnx.decoding.recipes import plain_decoder
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE


def fits(request: FolderRequest) -> bool:
    return request.cache == "grouped"


def parts(request: FolderRequest) -> list[FolderPart]:
    """One graph, of plain operators where the model's attention is no single one."""
    try:
        decoder = grouped_decoder(request.model, request.name, request.options)
    except UserError as error:
        note = f"{MODEL_FILE} has plain attention: {error.why or error.what}"
        return [replace(part, note=note) for part in plain_decoder.parts(request)]
    return [request.part(MODEL_FILE, decoder)]
