"""The prompts on which generation is compared: three of different lengths, with an image each where the model takes
images."""

from __future__ import annotations

import inspect
from typing import Any

_STRETCHES = 20
GRIDS = ("image_grid_thw", "image_grid_hw")  # (frames,) rows and columns of patches of each image


def text_prompts(model: Any) -> dict[str, Any]:
    """Three prompts of different lengths: padded on the left, of encoders on the right."""
    import torch

    from fx2onnx.decoding.recipes.delay_pattern import delays_of
    from fx2onnx.decoding.recipes.encoder_decoder import _encoder_inputs
    from fx2onnx.decoding.recipes.streaming_audio import stream_of
    from fx2onnx.sources.hf.sample_context import SampleContext
    from fx2onnx.sources.seeding import seeded
    from fx2onnx.sources.source import Options

    with seeded(1):
        if getattr(model.config, "is_encoder_decoder", False):
            inputs, _ = _encoder_inputs(model, Options(batch=3, seq=7))
            if "attention_mask" in inputs and inputs["attention_mask"].dim() == 2:
                inputs["attention_mask"][1, 5:] = 0
            return inputs
        vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
        ids = torch.randint(min(10, vocabulary - 1), vocabulary, (3, 6))
        mask = torch.ones_like(ids)
        mask[1, :2] = mask[2, :1] = 0
        inputs = {"input_ids": torch.where(mask == 0, 0, ids), "attention_mask": mask}
        rows = len(delays_of(model))
        if rows:
            # MusicGen's own preparation, not told how many tokens are new, takes the last of a longer prompt.
            told = "next_sequence_length" in inspect.signature(model.prepare_inputs_for_generation).parameters
            ids = torch.randint(0, vocabulary, (3 * rows, 6 if told else 1))
            return {"input_ids": ids, "attention_mask": mask[:, -ids.shape[1] :]}
        stream = stream_of(model)
        if stream is not None:  # sound for all tokens, also those to come
            call = SampleContext(model.config, Options(batch=3), model)
            inputs[stream.argument] = stream.sample(call, _STRETCHES)
        return inputs


def generates_alone(model: Any) -> bool:
    """True if the model may be given text without an image: not where forward demands one, or generation hands over."""
    from fx2onnx.decoding.recipes.cross_attention import runs_on_text
    from fx2onnx.decoding.recipes.image_prompt import takes_images
    from fx2onnx.decoding.recipes.modality import modalities_of
    from fx2onnx.decoding.recipes.recipe import language_of

    if not takes_images(model) or getattr(model.config, "is_encoder_decoder", False):
        return True
    return language_of(model) is model if modalities_of(model) else runs_on_text(model)


def with_images(model: Any, *, of_sizes: bool = True) -> dict[str, Any]:
    """Three prompts with an image each, of as many placeholder tokens as the encoder gives features; ``of_sizes``: of three
    sizes where a grid may say them.
    """
    import torch

    from fx2onnx.decoding.recipes.modality import modalities_of

    inputs = text_prompts(model)
    image = next((m for m in modalities_of(model) if m.name == "image"), None)
    if image is None:
        return _with_prompt(model, inputs)
    taken, counts = _images(model, image, of_sizes=of_sizes)
    for name in (name for name in taken if name.endswith("_attention_mask") and name != "pixel_attention_mask"):
        taken[name][1, -2:] = 0  # of a text that the encoder reads
    token = next(value for field in image.tokens if isinstance(value := getattr(model.config, field, None), int))
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    ids[ids == token] = 1
    start = getattr(model.config, "vision_start_token_id", None)
    before = [] if start is None else [start]  # by which some models count images
    rows, shown = [], []
    for row, count in enumerate(counts):
        placed, padding = torch.tensor([*before, *[token] * count]), torch.zeros(max(counts) - count, dtype=torch.int64)
        rows.append(torch.cat([padding, ids[row, :3], placed, ids[row, 3:]]))
        shown.append(torch.cat([padding, mask[row, :3], torch.ones_like(placed), mask[row, 3:]]))
    ids, mask = torch.stack(rows), torch.stack(shown)
    kinds = {"mm_token_type_ids": (ids == token).int()}
    known = inspect.signature(model.forward).parameters
    return {
        "input_ids": ids,
        "attention_mask": mask,
        **{name: value for name, value in kinds.items() if name in known},
        **taken,
    }


def _images(model: Any, image: Any, *, of_sizes: bool) -> tuple[dict[str, Any], list[int]]:
    """The encoder's arguments for three images, and how many features each has."""
    import torch

    from fx2onnx.decoding.recipes.multimodal import FeaturePart, encoders_and_embedding
    from fx2onnx.sources.source import Options

    forms = encoders_and_embedding(model, "", Options(batch=3))[image.file]
    part = FeaturePart(model, image)
    grid = forms[0].module.grid
    encoder = forms[0] if of_sizes or grid is None else forms[-1]
    taken = dict(encoder.kwargs)
    with torch.no_grad():
        if grid is not None and of_sizes:
            taken = _of_sizes(taken, grid.input, grid.merge_size)
            return taken, [part(**row_of(taken, row))[image.features].shape[0] for row in range(3)]
        count = part(**taken)[image.features].shape[0]
    if not encoder.bake:
        return taken, [count // 3] * 3
    beside = -1 if "target_sizes" in taken else 0  # made for one image; images in strips lie side by side
    taken = {name: torch.cat([value] * 3, beside if name == image.argument else 0) for name, value in taken.items()}
    taken[image.argument] = torch.randn_like(taken[image.argument])
    for place in range(3):
        _moved(taken, place, place)
    return taken, [count] * 3


def _of_sizes(taken: dict[str, Any], grid: str, merge: int) -> dict[str, Any]:
    """Three images, each of another size and shape; further arguments on one image are there for three."""
    import torch

    sizes = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in ((2, 2), (1, 3), (4, 2))])
    sizes = sizes[:, -taken[grid].shape[1] :]  # (frames, rows, columns), or (rows, columns)
    patches = torch.randn(int(sizes.prod(1).sum()), *taken["pixel_values"].shape[1:])
    return {name: torch.cat([value] * 3) for name, value in taken.items()} | {grid: sizes, "pixel_values": patches}


def row_of(inputs: dict[str, Any], place: int) -> dict[str, Any]:
    """One of three prompts with its image; images in strips lie side by side."""
    grid = next((inputs[name] for name in GRIDS if name in inputs), None)
    if grid is not None:
        parts = inputs["pixel_values"].split(grid.prod(1).tolist())
        images = {"pixel_values": parts[place]}
        return {name: value[place : place + 1] for name, value in inputs.items() if name not in images} | images
    beside = {"pixel_values"} if "target_sizes" in inputs else set()
    row = {name: value.tensor_split(3, -1 if name in beside else 0)[place] for name, value in inputs.items()}
    if _POOLS in row:
        row[_POOLS] = row[_POOLS].clone()
        _moved(row, 0, -place, images=1)
    return row


_POOLS = "image_token_pooling"


def _moved(inputs: dict[str, Any], place: int, by: int, images: int = 3) -> None:
    """Make the patches that image ``place`` of ``images`` pools count from ``by`` images further on."""
    if _POOLS in inputs:
        crops, patches, _ = inputs["pixel_values"].shape
        pools = inputs[_POOLS].tensor_split(images)[place]
        pools[pools >= 0] += by * crops // images * patches


def mixes_images(model: Any, inputs: dict[str, Any]) -> bool:
    """True if the model's own features of an image depend on the other images of the call."""
    import torch

    from fx2onnx.decoding.recipes.modality import modalities_of
    from fx2onnx.decoding.recipes.multimodal import FeaturePart

    image = next((m for m in modalities_of(model) if m.name == "image"), None)
    if image is None:
        return False
    part = FeaturePart(model, image)
    taken = {name: value for name, value in inputs.items() if name not in _OF_TEXT}
    with torch.no_grad():
        together = part(**taken)[image.features]
        alone = torch.cat([part(**row_of(taken, place))[image.features] for place in range(3)])
    return not torch.allclose(together, alone, rtol=1e-3, atol=1e-4)


_OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids")


def _with_prompt(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Three prompts for a model whose images enter the language model itself; of a model without images, of text."""
    from fx2onnx.decoding.recipes.cross_attention import image_parts
    from fx2onnx.decoding.recipes.image_prompt import MEDIA, takes_images
    from fx2onnx.decoding.recipes.recipe import FolderRequest
    from fx2onnx.manifest.names import DECODER_FILE, IMAGE_FILE, PROMPT_FILE
    from fx2onnx.sources.hf.sample_context import SampleContext
    from fx2onnx.sources.source import Options, Source

    if not takes_images(model):
        return inputs
    parts = image_parts(FolderRequest(Source("", model), options=Options(batch=3)))
    taken = dict(parts[PROMPT_FILE if PROMPT_FILE in parts else IMAGE_FILE].kwargs)
    if "input_ids" in taken:  # of the length that places of images fit
        inputs["input_ids"], inputs["attention_mask"] = taken.pop("input_ids"), taken.pop("attention_mask")
        inputs["input_ids"][1, 0] = inputs["attention_mask"][1, 0] = 0
        taken.pop("position_ids", None)
    call = SampleContext(model.config, Options(batch=3, seq=inputs["input_ids"].shape[1]), model)
    for name in (name for name in parts[DECODER_FILE].kwargs if name in MEDIA and name not in taken):
        taken[name] = MEDIA[name][0].make(call)
        taken[name][1, :3] = 0  # tokens that see no image
    return {**inputs, **taken}
