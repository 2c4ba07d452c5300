"""Which arguments an encoder of images takes together, made so that they fit each other.

The names of its parameters say in which layout it takes images; sizes come from the layer that embeds patches, then
from the config. No model is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fx2onnx.sources.hf.call import Call, Maker
from fx2onnx.sources.hf.inputs import GRIDS
from fx2onnx.sources.hf.samples import COMPANIONS, MAKERS, PATCH_MAKERS, STRIP_MAKERS, other_forms

PIXELS = "pixel_values"
POOLS, _POOLED = "image_token_pooling", "image_grids"
_POOLED_SIDE = 2
OF_ALL_IMAGES = (*GRIDS, _POOLED)
"""Arguments beside which the others have no row for each image."""
_GRID = "image_grid_thw"
_Parameters = Mapping[str, Any]
_Form = dict[str, Maker]
_ROWS = 6  # of patches: a multiple of what models pool or merge, 2 and 3


def image_forms(parameters: _Parameters, call: Call) -> Iterator[_Form]:
    """Sets of arguments to try, the usual form first; none for a method that takes no ``pixel_values``."""
    if PIXELS not in parameters:
        return
    layout = next((forms for marks, forms in _LAYOUTS if any(name in parameters for name in marks)), _plain)
    texts = _texts(parameters)
    yield from ({**form, **texts} for form in layout(parameters, call))


_IDS, _MASK = "_input_ids", "_attention_mask"


def _texts(parameters: _Parameters) -> _Form:
    """A text that the encoder reads beside the images, ``qformer_input_ids``, of the vocabulary of ``qformer_config``."""
    made: _Form = {}
    for name in (name for name in parameters if name.endswith(_IDS)):
        part = name.removesuffix(_IDS)
        axes = {0: "batch", 1: f"{part}_sequence_length"}
        made[name] = Maker(partial(_text_of, part), axes)
        if part + _MASK in parameters:
            made[part + _MASK] = Maker(partial(_all_read, part), axes)
    return made


def _all_read(part: str, call: Call) -> torch.Tensor:
    return torch.ones_like(_text_of(part, call))


def _text_of(part: str, call: Call) -> torch.Tensor:
    return MAKERS["input_ids"].make(replace(call, config=getattr(call.config, f"{part}_config", call.config)))


def _in_grids(parameters: _Parameters, call: Call) -> Iterator[_Form]:
    """The patches of all images in one matrix, and the grid of each."""
    grid = next(name for name in GRIDS if name in parameters)
    beside = {name: Maker(_merge, {}) for name in ("image_merge_sizes",) if name in parameters}
    others = other_forms(PIXELS, call, in_patches=True)
    for maker in (PATCH_MAKERS[PIXELS], *others, Maker(_merged_patches, {})):
        yield {PIXELS: maker, grid: PATCH_MAKERS[grid], **beside}


def _merged_patches(call: Call) -> torch.Tensor:
    """Squares of patches that merge into a feature each, channels last; the grid counts features."""
    side = int(call.find("patch_size", default=14)) * int(_merge(call))
    count = int(PATCH_MAKERS[_GRID].make(call).prod())
    return torch.randn(count, side, side, int(call.find("num_channels", default=3)))


def _merge(call: Call) -> torch.Tensor:
    return torch.tensor([int(call.find("spatial_merge_size", "merge_size", default=2))])


def _in_pools(*_: Any) -> Iterator[_Form]:
    """The patches of one image as a single crop, which of them each feature pools, and how many features that makes."""
    yield {PIXELS: Maker(_crop, {}), POOLS: Maker(_pools, {}), _POOLED: Maker(_pooled_grid, {})}


def _crop(call: Call) -> torch.Tensor:
    return torch.randn(1, math.prod(_patch_grid(call)), patch_width(call))


def _patch_grid(call: Call) -> tuple[int, int]:
    side = int(call.find("patch_size", default=14))
    height, width = call.image_size()
    return height // side, width // side


def _pools(call: Call) -> torch.Tensor:
    """Squares of patches, from the middle of the image on; -1 where one sticks out of it."""
    places = torch.arange(math.prod(_patch_grid(call))).reshape(_patch_grid(call))
    over = [size % _POOLED_SIDE for size in places.shape]
    padded = nn.functional.pad(places, (over[1] // 2, (over[1] + 1) // 2, over[0] // 2, (over[0] + 1) // 2), value=-1)
    squares = padded.unfold(0, _POOLED_SIDE, _POOLED_SIDE).unfold(1, _POOLED_SIDE, _POOLED_SIDE)
    return squares.reshape(-1, _POOLED_SIDE**2).contiguous()


def _pooled_grid(call: Call) -> torch.Tensor:
    """Rows and columns of features, and none of a closer look."""
    return torch.tensor([[*(-(-size // _POOLED_SIDE) for size in _patch_grid(call)), 0, 0]])


def _in_rows(parameters: _Parameters, _: Call) -> Iterator[_Form]:
    """The patches of each image in a row of its own, with their places, their number or both."""
    yield {PIXELS: Maker(_patch_rows, {})} | {
        name: Maker(make, {}) for name, make in _BESIDE_ROWS.items() if name in parameters
    }


def _in_strips(*_: Any) -> Iterator[_Form]:
    """The patches of all images side by side, and the rows and columns of each."""
    yield dict(STRIP_MAKERS)


def _patch_rows(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), _ROWS**2, patch_width(call))


def patch_width(call: Call) -> int:
    """Numbers of a flattened patch, as the layer that embeds patches takes them."""
    layer = call.stem("patch", "vision")
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels * math.prod(layer.kernel_size)
    return int(call.find("num_channels", default=3)) * int(call.find("patch_size", default=14)) ** 2


def _row_mask(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), _ROWS**2, dtype=torch.int64)


def _row_shapes(call: Call) -> torch.Tensor:
    return torch.full((call.options.batch_or(), 2), _ROWS)


def _row_places(call: Call) -> torch.Tensor:
    """Column and row of every patch."""
    every = torch.arange(_ROWS**2)
    return torch.stack([every % _ROWS, every // _ROWS], dim=-1).repeat(call.options.batch_or(), 1, 1)


_BESIDE_ROWS: dict[str, Callable[[Call], torch.Tensor]] = {
    "pixel_attention_mask": _row_mask,
    "spatial_shapes": _row_shapes,
    "image_position_ids": _row_places,
    "pixel_position_ids": _row_places,
}


def _plain(parameters: _Parameters, call: Call) -> Iterator[_Form]:
    """Images, or tiles of images; a second form of each image where one is wanted, at the size of its own config."""
    forms: list[_Form] = [{PIXELS: MAKERS[PIXELS]}]
    forms += [{PIXELS: maker} for maker in other_forms(PIXELS, call, in_patches=False)]
    if isinstance(call.stem("patch", "vision"), nn.Linear):
        forms.append({PIXELS: Maker(_patch_rows, MAKERS[PIXELS].axes)})
    if call.find(_PATCH_COUNTS) is not None:
        forms.append({PIXELS: Maker(_of_known_count, MAKERS[PIXELS].axes)})
    if call.find("temporal_patch_size") is not None:
        forms.append({PIXELS: Maker(_volumes, MAKERS[PIXELS].axes)})
    second = {name: _second(name, call) for name in parameters if name.endswith("_" + PIXELS)}
    yield from ({**form, **{name: maker for name, maker in second.items() if maker}} for form in forms)
    for name in (name for name in COMPANIONS if name in parameters):
        yield from ({**form, name: COMPANIONS[name]} for form in forms)
    if "pixel_attention_mask" in parameters:
        tiled = other_forms(PIXELS, call, in_patches=False)
        yield from ({PIXELS: maker, "pixel_attention_mask": Maker(_tile_mask, {})} for maker in tiled)


def _tile_mask(call: Call) -> torch.Tensor:
    """True for each image's only tile."""
    return torch.ones(call.options.batch_or(), 1, dtype=torch.bool)


def _second(name: str, call: Call) -> Maker | None:
    """``high_res_pixel_values`` by ``high_res_vision_config``; None where the config has no such part."""
    own = getattr(call.config, name.removesuffix(PIXELS) + "vision_config", None)
    if own is None:
        return None
    return Maker(lambda call: MAKERS[PIXELS].make(replace(call, config=own)), MAKERS[PIXELS].axes)


def _volumes(call: Call) -> torch.Tensor:
    """A patch of an image for each sample, channels last, as encoders take it that fold patches step by step."""
    side, frames = int(call.find("patch_size", default=14)), int(call.find("temporal_patch_size"))
    return torch.randn(call.options.batch_or(), frames, side, side, int(call.find("num_channels", default=3)))


_PATCH_COUNTS = "projector_patch_to_query_dict"


def _of_known_count(call: Call) -> torch.Tensor:
    """Images of as many patches as the config's smallest known number."""
    patches = min(int(count) for count in call.find(_PATCH_COUNTS))
    side = math.isqrt(patches) * int(call.find("patch_size", default=14))
    return MAKERS[PIXELS].make(replace(call, options=replace(call.options, image_size=side)))


_LAYOUTS: tuple[tuple[tuple[str, ...], Callable[[_Parameters, Call], Iterator[_Form]]], ...] = (
    (GRIDS, _in_grids),
    (("target_sizes",), _in_strips),
    ((POOLS,), _in_pools),
    (("spatial_shapes", "image_position_ids", "pixel_position_ids"), _in_rows),
)
"""Names of parameters, one of which is enough, and the layout that they stand for."""
