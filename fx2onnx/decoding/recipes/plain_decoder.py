"""Every other generating model: one graph for the prompt and each later step."""

from __future__ import annotations

from functools import partial

from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE


def fits(_: FolderRequest) -> bool:
    return True


def parts(request: FolderRequest) -> list[FolderPart]:
    return [request.decoder_part(MODEL_FILE, partial(cached_decoder, request.model, request.name, request.options))]
