"""Every other generating model: one graph for the prompt and each later step, with onnxruntime's GroupQueryAttention where
fused forms are asked for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fx2onnx.base.cache_names import CELLS
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.calibration import Prompts, calibrated, measured
from fx2onnx.decoding.cache.cells import Cells
from fx2onnx.decoding.cache.grouped import grouped_decoder
from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.recipes.drafting_head import drafting
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE


def fits(_: FolderRequest) -> bool:
    return True


def parts(request: FolderRequest) -> list[FolderPart]:
    """One graph, of plain operators where the model's attention is no single one."""
    note = ""
    hidden, drafts = drafting(request)
    if request.cache == "grouped":
        try:
            return [
                request.part(MODEL_FILE, grouped_decoder(request.model, request.name, request.options, hidden)),
                *drafts,
            ]
        except UserError as error:
            note = f"{MODEL_FILE} has plain attention: {error.why or error.what}"
    make = partial(cached_decoder, request.model, request.name, request.options, hidden_of=hidden)
    if request.cache not in CELLS:
        part = request.decoder_part(MODEL_FILE, make)
    else:
        prompts = Prompts.of(request.model, request.prompts)
        cells = calibrated(request.model, Cells(request.cache), prompts)
        part = request.decoder_part(MODEL_FILE, partial(make, cells=cells))
        first = part.forms[0]()
        note = measured(request.model, cells, first.module, first.kwargs, prompts)
    return [replace(part, note=note) if note else part, *drafts]
