"""Images, texts and frames that are packed in one sequence, and image processors whose Python branches on the size of
an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.torchvision import shorter_edge
from fx2onnx.model_patches.transformers.chunked import is_dynamic
from fx2onnx.torchcompat.frames import asking_frame


@patches("transformers.image_transforms:get_resize_output_image_size", around=True)
def resized_by_the_shorter_edge(
    original: Callable[..., Any], input_image: Any, size: Any, *args: Any, **kwargs: Any
) -> Any:
    """``get_resize_output_image_size``: both edges in proportion, the shorter one as given.

    Shapes:  input_image [..., H, W] -> (height, width).
    """
    height, width = input_image.shape[-2:]
    is_plain = isinstance(size, int) and not kwargs.get("default_to_square", True) and kwargs.get("max_size") is None
    if args or not is_plain or not (is_dynamic(height) or is_dynamic(width)):
        return original(input_image, size, *args, **kwargs)
    return shorter_edge(height, width, size)


@patches("transformers.image_processing_backends:TorchvisionBackend.center_crop", around=True)
def center_crop(original: Callable[..., Any], self: Any, image: Tensor, size: Any, **kwargs: Any) -> Tensor:
    """``center_crop``: zeros around an image that is too small, then the middle.

    Shapes:  image [..., H, W] -> [..., size.height, size.width].
    """
    if not any(is_dynamic(one) for one in image.shape[-2:]):
        cropped: Tensor = original(self, image, size, **kwargs)
        return cropped
    padding: list[Any] = []
    starts: list[Any] = []
    for wanted, has in ((size.width, image.shape[-1]), (size.height, image.shape[-2])):
        lacking: Any = torch.sym_max(wanted - has, 0)  # type: ignore[no-untyped-call]
        padding += [lacking // 2, (lacking + 1) // 2]
        starts.append(torch.sym_max(has - wanted, 0) // 2)  # type: ignore[no-untyped-call]
    padded = torch.nn.functional.pad(image, padding)
    left, top = starts
    return padded[..., top : top + size.height, left : left + size.width]


@patches("transformers.masking_utils:find_packed_sequence_indices", around=True)
def sequence_indices(original: Any, position_ids: Tensor) -> Tensor | None:
    """``transformers.masking_utils.find_packed_sequence_indices``, whose ``torch.diff`` takes plain lengths only.

    Shapes:  position_ids [batch, length] -> [batch, length], the text that each token belongs to, counted from 0.
    """
    if type(position_ids.shape[1]) is int:
        indices: Tensor | None = original(position_ids)
        return indices
    jumps = position_ids[:, 1:] - position_ids[:, :-1] != 1
    return torch.cat([torch.zeros_like(position_ids[:, :1]), jumps.cumsum(-1)], dim=-1)


_ERNIE = "transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe"


@patches(f"{_ERNIE}:Ernie4_5_VLMoeVariableResolutionResamplerModel._temporal_slicing", around=True)
def pairs_of_frames(original: Callable[..., Tensor], self: Any, hidden_states: Tensor, grid_thw: Tensor) -> Tensor:
    """``_temporal_slicing``, whose ``range`` needs numbers: every second frame beside the one behind it, an image beside
    itself.

    Shapes:  hidden_states [tokens, width], grid_thw [images, 3] -> [tokens of pairs, 2 * width].
    """
    if all(type(number) is int for sizes in grid_thw.tolist() for number in sizes):
        return original(self, hidden_states, grid_thw)
    first, second, before = [], [], grid_thw.new_zeros(())
    for frames, rows, columns in grid_thw:
        size = rows * columns // self.spatial_merge_size**2
        pairs, inside = torch.arange((frames // 2).clamp(min=1).item()), torch.arange(size.item())
        places = (before + 2 * size * pairs[:, None] + inside).flatten()
        first.append(places)
        second.append(places + (frames - 1).clamp(max=1) * size)
        before = before + frames * size
    return torch.cat([hidden_states[torch.cat(places)] for places in (first, second)], dim=-1)


_ENDS = "cu_seqlens"
"""The parameter with the beginning of each packed image and the end of the last, in functions of transformers that
attend within packed images."""


def _is_of_unknown_length(ends: object) -> bool:
    return isinstance(ends, Tensor) and ends.dim() == 1 and type(ends.shape[0]) is not int


@patches("transformers.utils.generic:is_flash_attention_requested", around=True, names=("config",), versions=">=5")
@answers_for_caller
def takes_packed(original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    """``is_flash_attention_requested``, and yes for attention that would split its tokens into an unknown number of parts.

    What it calls then has the ends of the parts (``attention_of_packed``).
    """
    asking = asking_frame()
    names = asking.f_locals if asking is not None else {}
    if "attention_interface" in names and _is_of_unknown_length(names.get(_ENDS)):
        return True
    return original(*args, **kwargs)


@patches("transformers.modeling_utils:AttentionInterface.get_interface", around=True, versions=">=5.1")
def attention_of_packed(original: Callable[..., Any], self: Any, attn_implementation: str, default: Any) -> Any:
    """``AttentionInterface.get_interface``, whose functions attend within packed parts where these are of unknown number."""
    attention = original(self, attn_implementation, default)

    def within_parts(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        ends = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
        if not args and kwargs.get("attention_mask") is None and all(map(_is_of_unknown_length, ends)):
            is_causal = kwargs.pop("is_causal", None)
            is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            kwargs["attention_mask"] = _mask(query, key, *ends, is_causal=is_causal)  # type: ignore[arg-type]
            kwargs["is_causal"] = False
        return attention(module, query, key, value, *args, **kwargs)

    return within_parts


def _mask(query: Tensor, key: Tensor, query_ends: Tensor, key_ends: Tensor, *, is_causal: bool) -> Tensor:
    """To be added to scores: 0 within a part, -inf elsewhere.

    Shapes:  query [batch, heads, N, width], key [batch, heads, M, width], ends [parts + 1] -> [1, 1, N, M].
    """
    rows, columns = torch.arange(query.shape[2]), torch.arange(key.shape[2])
    part_of_row = (rows[:, None] >= query_ends[None, 1:]).sum(-1)
    part_of_column = (columns[:, None] >= key_ends[None, 1:]).sum(-1)
    is_seen = part_of_row[:, None] == part_of_column
    if is_causal:
        is_seen = is_seen & (rows[:, None] >= columns)
    return torch.zeros_like(is_seen, dtype=query.dtype).masked_fill(~is_seen, -torch.inf)[None, None]


@patches("transformers.vision_utils:get_vision_window_index", around=True)
def window_index(
    original: Callable[..., Any],
    grid_thw: Tensor,
    spatial_merge_size: int,
    window_size: int,
    patch_size: int,
    kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """``get_vision_window_index``, whose list of the ends of windows is as long as the data tells.

    Shapes:  grid_thw [images, 3] -> int64 [tokens], int32 [windows + 1].
    """
    grid = grid_thw.tolist()
    is_known = all(type(number) is int for sizes in grid for number in sizes)
    if is_known or (kwargs is not None and None not in (kwargs.get("window_index"), kwargs.get("cu_window_seqlens"))):
        found: tuple[Tensor, Tensor] = original(grid_thw, spatial_merge_size, window_size, patch_size, kwargs)
        return found
    side = window_size // spatial_merge_size // patch_size
    order, lengths, before = [], [], 0
    for frames, rows, columns in grid:
        height, width = rows // spatial_merge_size, columns // spatial_merge_size
        index = torch.arange(frames * height * width).reshape(frames, height, width)
        padded = F.pad(index, (0, side - width % side, 0, side - height % side), "constant", -100)
        padded = padded.reshape(frames, height // side + 1, side, width // side + 1, side).permute(0, 1, 3, 2, 4)
        lengths.append((padded != -100).sum([3, 4]).reshape(-1))
        padded = padded.reshape(-1)
        order.append(padded[padded != -100] + before)
        before = before + frames * height * width
    ends = F.pad(torch.cat(lengths).cumsum(0) * spatial_merge_size**2, (1, 0)).to(torch.int32)
    return torch.cat(order), torch.unique_consecutive(ends)


@patches("transformers.models.pixtral.modeling_pixtral:PixtralVisionModel.forward", around=True)
def images_of_one_size(
    original: Callable[..., Any], self: Any, pixel_values: Tensor, image_sizes: Tensor | None = None, **kwargs: Any
) -> Any:
    """``PixtralVisionModel.forward`` of images of one size, which it packs in a row and keeps apart by a mask: each by itself.

    Shapes:  pixel_values [batch, channels, height, width] -> last hidden state [1, batch * patches, width].
    """
    wanted = [kwargs.get(name, getattr(self.config, name)) for name in ("output_hidden_states", "output_attentions")]
    if image_sizes is not None or type(pixel_values.shape[0]) is int or any(wanted):
        return original(self, pixel_values, image_sizes, **kwargs)
    patches = self.patch_conv(pixel_values.to(dtype=self.patch_conv.weight.dtype))
    height, width = patches.shape[2:]
    hidden = self.ln_pre(patches.flatten(2).transpose(1, 2))
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=-1)
    positions = self.patch_positional_embedding(hidden, places)
    output = self.transformer(hidden, attention_mask=None, position_embeddings=positions, **kwargs)
    output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[None]
    return output
