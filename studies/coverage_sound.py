"""Prompts with a recording each, of as many placeholder tokens as the encoder of sound gives features."""

from __future__ import annotations

from typing import Any


def with_sound(model: Any, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """Three prompts ``inputs`` with sound in them; None for a model that hears none, or takes none of the known forms."""
    import torch

    from fx2onnx.base.errors import UserError
    from fx2onnx.decoding.recipes.modality import modalities_of
    from fx2onnx.decoding.recipes.multimodal import FeaturePart, feature_forms
    from fx2onnx.sources.seeding import seeded
    from fx2onnx.sources.source import Options

    sound = next((m for m in modalities_of(model) if m.name == "audio"), None)
    if sound is None or getattr(model.config, "is_encoder_decoder", False):
        return None
    try:
        with seeded(2):
            form = feature_forms(model, sound, "", Options(batch=3))[0]
    except UserError:
        return None
    taken = dict(form.kwargs)
    with torch.no_grad():
        count = FeaturePart(model, sound)(**taken)[sound.features].shape[0]
    if form.bake:  # made for one recording
        taken = {name: torch.cat([value] * 3) for name, value in taken.items()}
        with seeded(2):
            taken[sound.argument] = torch.randn_like(taken[sound.argument])
    else:
        count //= 3
    token = next(value for field in sound.tokens if isinstance(value := getattr(model.config, field, None), int))
    ids, mask, places = inputs["input_ids"].clone(), inputs["attention_mask"], torch.full((3, count), token)
    ids[ids == token] = 1
    return {
        "input_ids": torch.cat([ids[:, :3], places, ids[:, 3:]], dim=1),
        "attention_mask": torch.cat([mask[:, :3], torch.ones_like(places), mask[:, 3:]], dim=1),
        **taken,
    }
