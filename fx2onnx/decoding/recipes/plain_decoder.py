"""Every other generating model: one graph for the prompt and each later step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fx2onnx.decoding.cache.int8 import checked_error
from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE


def fits(_: FolderRequest) -> bool:
    return True


def parts(request: FolderRequest) -> list[FolderPart]:
    make = partial(cached_decoder, request.model, request.name, request.options, is_int8=request.cache == "int8")
    part = request.decoder_part(MODEL_FILE, make)
    if request.cache != "int8":
        return [part]
    first = part.forms[0]()
    return [replace(part, note=checked_error(request.model, first.module, first.kwargs))]
