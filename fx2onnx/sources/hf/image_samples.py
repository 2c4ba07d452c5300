"""Arguments that an encoder of images takes together, made so that they fit each other. The names of its parameters say
in which layout it takes images; sizes come from the layer that embeds patches, then from the config. No model is named.

The names of its parameters say in which layout it takes images; sizes come from the layer that embeds patches, then
from the config. No model is named.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from fx2onnx.sources.hf.inputs import GRIDS
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext
from fx2onnx.sources.hf.samples import (
    COMPANIONS,
    INPUT_FACTORIES,
    PADDED_PATCH_FACTORIES,
    PATCH_FACTORIES,
    PATCH_ROWS,
    STRIP_FACTORIES,
    other_forms,
    patch_numbers,
)

PIXELS = "pixel_values"
POOLS, _POOLED = "image_token_pooling", "image_grids"
_POOLED_SIDE = 2
OF_ALL_IMAGES = (*GRIDS, _POOLED)
"""Arguments beside which the others have no row for each image."""
_GRID = "image_grid_thw"
_Parameters = Mapping[str, inspect.Parameter]
_Form = dict[str, InputFactory]


def image_forms(parameters: _Parameters, context: SampleContext) -> Iterator[_Form]:
    """Sets of arguments to try, the usual form first; none for a method that takes no ``pixel_values``."""
    if PIXELS not in parameters:
        return
    layout = next((forms for marks, forms in _LAYOUTS if any(name in parameters for name in marks)), _plain)
    texts = _texts(parameters)
    yield from ({**form, **texts} for form in layout(parameters, context))


_IDS, _MASK = "_input_ids", "_attention_mask"


def _texts(parameters: _Parameters) -> _Form:
    """A text that the encoder reads beside the images, ``qformer_input_ids``, of the vocabulary of ``qformer_config``."""
    made: _Form = {}
    for name in (name for name in parameters if name.endswith(_IDS)):
        part = name.removesuffix(_IDS)
        axes = {0: "batch", 1: f"{part}_sequence_length"}
        made[name] = InputFactory(partial(_text_of, part), axes)
        if part + _MASK in parameters:
            made[part + _MASK] = InputFactory(partial(_text_of, part, is_mask=True), axes)
    return made


def _text_of(part: str, context: SampleContext, *, is_mask: bool = False) -> torch.Tensor:
    config = getattr(context.config, f"{part}_config", context.config)
    return INPUT_FACTORIES["attention_mask" if is_mask else "input_ids"].make(replace(context, config=config))


def _in_grids(parameters: _Parameters, context: SampleContext) -> Iterator[_Form]:
    """The patches of all images in one matrix, and the grid of each."""
    grid = next(name for name in GRIDS if name in parameters)
    beside = {name: InputFactory(_merge, {}) for name in ("image_merge_sizes",) if name in parameters}
    others = other_forms(PIXELS, context, in_patches=True)
    for factory in (PATCH_FACTORIES[PIXELS], *others, InputFactory(_merged_patches, {})):
        yield {PIXELS: factory, grid: PATCH_FACTORIES[grid], **beside}


def _merged_patches(context: SampleContext) -> torch.Tensor:
    """Squares of patches that merge into a feature each, channels last; the grid counts features."""
    side = context.number("patch_size", default=14) * int(_merge(context))
    count = int(PATCH_FACTORIES[_GRID].make(context).prod())
    return torch.randn(count, side, side, context.number("num_channels", default=3))


def _merge(context: SampleContext) -> torch.Tensor:
    return torch.tensor([context.number("spatial_merge_size", "merge_size", default=2)])


def _in_pools(*_: object) -> Iterator[_Form]:
    """The patches of one image as a single crop, which of them each feature pools, and how many features that makes."""
    crop = InputFactory(lambda context: torch.randn(1, math.prod(_patch_grid(context)), patch_width(context)), {})
    yield {PIXELS: crop, POOLS: InputFactory(_pools, {}), _POOLED: InputFactory(_pooled_grid, {})}


def _patch_grid(context: SampleContext) -> tuple[int, int]:
    side = context.number("patch_size", default=14)
    height, width = context.image_size()
    return height // side, width // side


def _pools(context: SampleContext) -> torch.Tensor:
    """Squares of patches, from the middle of the image on; -1 where one sticks out of it."""
    places = torch.arange(math.prod(_patch_grid(context))).reshape(_patch_grid(context))
    over = [size % _POOLED_SIDE for size in places.shape]
    padded = nn.functional.pad(places, (over[1] // 2, (over[1] + 1) // 2, over[0] // 2, (over[0] + 1) // 2), value=-1)
    squares = padded.unfold(0, _POOLED_SIDE, _POOLED_SIDE).unfold(1, _POOLED_SIDE, _POOLED_SIDE)
    return squares.reshape(-1, _POOLED_SIDE**2).contiguous()


def _pooled_grid(context: SampleContext) -> torch.Tensor:
    """Rows and columns of features, and none of a closer look."""
    return torch.tensor([[*(-(-size // _POOLED_SIDE) for size in _patch_grid(context)), 0, 0]])


def _in_rows(parameters: _Parameters, _: SampleContext) -> Iterator[_Form]:
    """The patches of each image in a row of its own, with their places, their number or both."""
    rows = {name: InputFactory(factory.make, {}) for name, factory in _BESIDE_ROWS.items() if name in parameters}
    yield rows | {PIXELS: InputFactory(_patch_rows, {})}


def _in_strips(*_: object) -> Iterator[_Form]:
    """The patches of all images side by side, and the rows and columns of each."""
    yield dict(STRIP_FACTORIES)


def _patch_rows(context: SampleContext) -> torch.Tensor:
    return torch.randn(context.batch, PATCH_ROWS**2, patch_width(context))


def patch_width(context: SampleContext) -> int:
    """Numbers of a flattened patch, as the layer that embeds patches takes them."""
    layer = context.stem("patch", "vision")
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels * math.prod(layer.kernel_size)
    return patch_numbers(context, 14)


_BESIDE_ROWS = {**PADDED_PATCH_FACTORIES, "image_position_ids": PADDED_PATCH_FACTORIES["pixel_position_ids"]}


def _plain(parameters: _Parameters, context: SampleContext) -> Iterator[_Form]:
    """Images, or tiles of images; a second form of each image where one is wanted, at the size of its own config."""
    usual = INPUT_FACTORIES[PIXELS]
    pixels = [usual, *other_forms(PIXELS, context, in_patches=False)]
    for make, fits in (
        (_patch_rows, isinstance(context.stem("patch", "vision"), nn.Linear)),
        (_of_known_count, context.find(_PATCH_COUNTS) is not None),
        (_volumes, context.find("temporal_patch_size") is not None),
    ):
        pixels += [InputFactory(make, usual.axes)] if fits else []
    forms: list[_Form] = [{PIXELS: factory} for factory in pixels]
    second = {name: _second(name, context) for name in parameters if name.endswith("_" + PIXELS)}
    yield from ({**form, **{name: factory for name, factory in second.items() if factory}} for form in forms)
    for name in (name for name in COMPANIONS if name in parameters):
        yield from ({**form, name: COMPANIONS[name]} for form in forms)
    if "pixel_attention_mask" in parameters:
        mask = InputFactory(
            lambda context: torch.ones(context.batch, 1, dtype=torch.bool), {}
        )  # each image's only tile
        tiled = other_forms(PIXELS, context, in_patches=False)
        yield from ({PIXELS: factory, "pixel_attention_mask": mask} for factory in tiled)


def _second(name: str, context: SampleContext) -> InputFactory | None:
    """``high_res_pixel_values`` by ``high_res_vision_config``; None where the config has no such part."""
    own = getattr(context.config, name.removesuffix(PIXELS) + "vision_config", None)
    if own is None:
        return None
    usual = INPUT_FACTORIES[PIXELS]
    return InputFactory(lambda context: usual.make(replace(context, config=own)), usual.axes)


def _volumes(context: SampleContext) -> torch.Tensor:
    """A patch of an image for each sample, channels last, as encoders take it that fold patches step by step."""
    side, frames = context.number("patch_size", default=14), context.number("temporal_patch_size")
    return torch.randn(context.batch, frames, side, side, context.number("num_channels", default=3))


_PATCH_COUNTS = "projector_patch_to_query_dict"


def _of_known_count(context: SampleContext) -> torch.Tensor:
    """Images of as many patches as the config's smallest known number."""
    patches = min(int(count) for count in context.find(_PATCH_COUNTS))
    side = math.isqrt(patches) * context.number("patch_size", default=14)
    return INPUT_FACTORIES[PIXELS].make(replace(context, options=replace(context.options, image_size=side)))


_LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[_Parameters, SampleContext], Iterator[_Form]]], ...] = (
    (GRIDS, _in_grids),
    (("target_sizes",), _in_strips),
    ((POOLS,), _in_pools),
    (("spatial_shapes", "image_position_ids", "pixel_position_ids"), _in_rows),
)
"""Names of parameters, one of which is enough, and the layout that they stand for."""
