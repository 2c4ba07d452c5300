"""Decoders over a cache of fixed size, where that is asked for: ``fx2onnx.decoding.cache.static``."""

from __future__ import annotations

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.static import static_decoder
from fx2onnx.decoding.recipes import encoder_decoder, multimodal, prepared_inputs
from fx2onnx.decoding.recipes.drafting_head import drafting
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE


def fits(request: FolderRequest) -> bool:
    return request.cache in ("static", "paged")


def parts(request: FolderRequest) -> list[FolderPart]:
    why = ""
    if encoder_decoder.fits(request) or multimodal.fits(request):
        why = "only decoders have"
    elif prepared_inputs.fits(request):
        why = "its steps take all tokens, whose number is that of its cache"
    if why:
        raise UserError("E601", f"{type(request.model).__name__} has no cache of fixed size", why=why)
    hidden, drafts = drafting(request)
    form = {"in_place": request.in_place, "is_paged": request.cache == "paged"}
    decoder = static_decoder(request.model, request.name, request.options, **form, hidden_of=hidden)
    return [request.part(MODEL_FILE, decoder), *drafts]
