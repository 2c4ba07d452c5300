"""Positions of tokens among images, as models with a position for each of time, row and column count them.

Their own code loops over the prompt. Where all images are alike, a few sums over the prompt give the same; what they add
up is measured by asking that code about a prompt with one image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.hf.transformers_types import Model

_BEYOND = 2**31
"""More features than any prompt has: those of an image that ends the list, so that the list is never empty."""
_ASKED = ([(2, 3), (3, 2)], [(1, 1), (4, 2)], [(1, 5), (3, 1)], [(2, 2), (1, 3)])
"""Rows and columns of features of the two images in each prompt that the model's own function is asked about."""


@dataclass(frozen=True)
class GridLayout:
    """An image's features stand in rows and columns, counted from where the text before it ends; text goes on behind the
    longer side. A feature is made of ``merge_size`` rows and columns of patches.
    """

    merge_size: int
    axes: ClassVar[int] = 3

    def positions(self, is_image: torch.Tensor, is_shown: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        """Places [axes, batch, sequence] of every token, time, row and column; 0 for padding.

        is_image, is_shown [batch, sequence]: the placeholders of features; what is no padding. grids [images, 3]: of the
        images in the order of their placeholders, none of which has some in two prompts.
        """
        sides = grids[:, -2:] // self.merge_size
        sides = torch.cat([sides, torch.tensor([[_BEYOND, 1]])])
        sizes, advances = sides.prod(-1), sides.amax(-1)
        starts, advanced = sizes.cumsum(0) - sizes, advances.cumsum(0) - advances
        image = is_image & is_shown
        text = is_shown & ~image
        before = (image.flatten().long().cumsum(0)).reshape(image.shape) - image.long()
        ended = (before[..., None] >= (starts + sizes)).long().sum(-1)
        inside, columns = before - starts[ended], sides[:, 1][ended]
        start = text.long().cumsum(-1) - text.long() + advanced[ended] - advanced[ended[:, :1]]
        places = torch.stack([torch.zeros_like(inside), inside // columns, inside % columns])
        return (start + torch.where(image, places, 0)) * is_shown.long()


def grid_layout(model: Model, samples: Mapping[str, torch.Tensor]) -> GridLayout | None:
    """The places of tokens among images of any grid, if the model's own ``get_rope_index`` says the same of several.

    samples: arguments of the encoder, for one image.
    """
    count, merge = rope_index_of(model), merge_size_of(model)
    name = next((name for name in samples if name.endswith("grid_thw")), None)
    if count is None or merge is None or name is None:
        return None
    asking, layout = Asking(model, count, samples), GridLayout(merge)
    word, start = asking.word, asking.start
    for sides in _ASKED:
        first, second = ([asking.token] * (rows * columns) for rows, columns in sides)
        grids = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in sides])
        ids = asking.prompt([word, word, start], first, [word, word, start], second, [word, word])
        places = asking.places(ids, len(sides), {name: grids})
        own = layout.positions(ids == asking.token, torch.ones_like(ids).bool(), grids)
        if places is None or not torch.equal(places, own[:, 0]):
            return None
    return layout


_FIRST = 3  # place of the first feature in the prompts that are asked about
_Place = tuple[int, ...]
Count: TypeAlias = Callable[..., tuple[torch.Tensor, object]]
"""A model's own ``get_rope_index``, whose first result are positions."""


@dataclass(frozen=True)
class ImageLayout:
    """The positions of the tokens of an image: (time, row, column), or other axes on which a model counts."""

    inside: tuple[_Place, ...]
    """The position of each feature, counted from the end of the text before the image."""
    advance: int
    """The number of positions between the end of that text and the text after the image."""
    before: _Place = (0, 0, 0)
    """The shift of the token before the image."""
    closing: tuple[int, ...] = ()
    """Tokens that, directly behind an image, are part of it: text does not count them."""
    behind: tuple[_Place, _Place] = ((0, 0, 0), (0, 0, 0))
    """The shift of the first token after the image and of the others, counted from the position where text goes on."""
    still: tuple[_Place, ...] = ()
    """For each feature and axis, 1 if its position is the same in every image, wherever the text before ends."""
    ordinal: tuple[_Place, ...] = ()
    """For each feature and axis, the shift by every image before this one, those of other prompts included."""

    @property
    def axes(self) -> int:
        return len(self.before)


def image_positions(
    input_ids: torch.Tensor, is_image: torch.Tensor, is_shown: torch.Tensor, layout: ImageLayout
) -> torch.Tensor:
    """Places [axes, batch, sequence] of every token, time, row and column; 0 for padding.

    input_ids, is_image, is_shown [batch, sequence]: the tokens; the placeholders of features, as many for each image as
    ``layout`` has; what is no padding. Text counts on by 1.
    """
    size = len(layout.inside)
    image = is_image & is_shown
    text = is_shown & ~image
    features_before = image.long().cumsum(-1) - image.long()
    inside = torch.tensor(layout.inside).T[:, features_before % size]
    moved = torch.where(image, inside, 0)
    if layout.ordinal:
        earlier = (image.flatten().cumsum(0).reshape(image.shape) - image.long()) // size
        added = torch.tensor(layout.ordinal).T[:, features_before % size]
        moved = moved + torch.where(image, added * earlier, 0)
    if any(layout.before):
        is_first = image & (features_before % size == 0)
        precedes = text & torch.cat([is_first[:, 1:], is_first[:, :1] & False], dim=1)
        moved = moved + torch.where(precedes, _column(layout.before), 0)
    if layout.closing:
        first, later = _closing(input_ids, image, layout.closing)
        if any(layout.before):
            first, later = first & ~precedes, later & ~precedes
        text = text & ~first & ~later
        moved = moved + torch.where(first, _column(layout.behind[0]), 0)
        moved = moved + torch.where(later, _column(layout.behind[1]), 0)
    start = text.long().cumsum(-1) - text.long() + features_before // size * layout.advance
    if layout.still:
        still = torch.tensor(layout.still).T[:, features_before % size]
        moved = moved - torch.where(image, still * start, 0)
    return (start + moved).clamp(min=0) * is_shown.long()


def _column(place: _Place) -> torch.Tensor:
    return torch.tensor(place).reshape(-1, 1, 1)


def _closing(
    input_ids: torch.Tensor, image: torch.Tensor, tokens: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of the tokens in ``tokens`` with none but such tokens between them and an image: the first behind it, and
    the others."""
    closes = torch.zeros_like(image)
    for token in tokens:
        closes = closes | (input_ids == token)
    closes = closes & ~image
    # Of what does not close: how many there are up to here, and how many up to the last feature of an image.
    others = (~closes).long().cumsum(-1)
    last_feature, _ = torch.where(image, others, 0).cummax(-1)
    runs = closes & (last_feature == others) & (others > 0)
    follows = torch.cat([image[:, :1] & False, image[:, :-1]], dim=1)
    return runs & follows, runs & ~follows


def rope_index_of(model: Model) -> Count | None:
    """The model's own ``get_rope_index``; None for a model whose positions are those of text."""
    owners: tuple[object, ...] = (model, getattr(model, "model", None), model.base_model)
    return next((owner.get_rope_index for owner in owners if hasattr(owner, "get_rope_index")), None)


def merge_size_of(model: Model) -> int | None:
    """Rows and columns of patches that merge into a feature, where the config says so."""
    size = getattr(getattr(model.config, "vision_config", None), "spatial_merge_size", None)
    return size if isinstance(size, int) else None


def image_layout(model: Model, samples: Mapping[str, torch.Tensor], features: Callable[[], int]) -> ImageLayout | None:
    """The positions of the tokens of an image of the size of ``samples``; None for a model whose positions are those of
    text.

    samples: arguments of the encoder, for one image in each row of those that are integers. ``features()`` says how many
    features an image has, where its grid does not. Raises: UserError E601 for a model that counts otherwise.
    """
    count = rope_index_of(model)
    if count is None:
        return None
    asking = Asking(model, count, samples)
    merge = merge_size_of(model)
    grid = next((value for name, value in samples.items() if name.endswith("grid_thw")), None)
    sizes = [lambda: int(grid[0].prod()) // merge**2] if grid is not None and merge else []
    for size in (*sizes, features):  # some have more than the grid: one at the end of every row
        held = size()
        layout = asking.measured(held) if held else None
        if layout is not None and asking.agrees(layout):
            return layout
    raise UserError(
        "E601",
        f"{type(model).__name__} counts positions by rules of its own",
        why="get_rope_index gives others than text that counts on around images that are all alike",
    )


def _places(positions: torch.Tensor) -> tuple[_Place, ...]:
    """[axes, size] as a place for each feature."""
    return tuple(map(tuple, positions.T.tolist()))


class Asking:
    """The model's own function, asked about prompts of words, images and special tokens. ``samples`` are arguments of the
    encoder.
    """

    def __init__(self, model: Model, count: Count, samples: Mapping[str, torch.Tensor]) -> None:
        self._count = count
        self._beside = {name: value for name, value in samples.items() if not value.is_floating_point()}
        fields = vars(model.config)
        self.token: int = next(
            value
            for name in ("image_token_id", "image_token_index")
            if isinstance(value := getattr(model.config, name, None), int)
        )
        named = {value for name, value in fields.items() if name.endswith(("_id", "_index"))}
        self._special = sorted(value for value in named if isinstance(value, int) and value != self.token)
        self.word = next(word for word in range(3, 100) if word not in named)
        sections = (getattr(model.config.get_text_config(), "rope_parameters", None) or {}).get("mrope_section") or ()
        self._axes = max(3, len(sections))
        start = fields.get("vision_start_token_id")
        self.start = self.word if start is None else start  # by which some functions count images

    def places(
        self, ids: torch.Tensor, images: int, sizes: Mapping[str, torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """The model's positions of ``ids`` [1, length], as [axes, length]; None where it needs something else.

        ``sizes`` are arguments of the encoder with a row for each image, where these are not those of the samples.
        """
        is_image = ids == self.token
        beside = {name: value[:1].repeat(images, *[1] * (value.dim() - 1)) for name, value in self._beside.items()}
        beside |= sizes or {}
        grids = [value for name, value in beside.items() if name.endswith("grid_thw")]
        known = {
            "input_ids": ids,
            "mm_token_type_ids": is_image.int(),
            "attention_mask": torch.ones_like(ids),
            **({"image_grid_thw": grids[0]} if grids else {}),
            **beside,
        }
        parameters = inspect.signature(self._count).parameters
        try:
            positions, _ = self._count(**{name: value for name, value in known.items() if name in parameters})
        except Exception:  # a function of the model's that wants something else
            return None
        return positions[-self._axes :, 0].long() if positions.dim() == 3 else None

    def prompt(self, *parts: list[int]) -> torch.Tensor:
        return torch.tensor([[token for part in parts for token in part]])

    def measured(self, size: int) -> ImageLayout | None:
        """The layout that one image of ``size`` features among text shows, and each special token behind it."""
        word, image = self.word, [self.token] * size
        text = [word, word, self.start]
        alone = self.places(self.prompt(text, image, [word, word]), 1)
        if alone is None:
            return None
        advance = int(alone[0, _FIRST + size]) - _FIRST
        still, ordinal = self._rules(size, alone)
        inside = alone[:, _FIRST : _FIRST + size] - _FIRST * (1 - still)
        layout = ImageLayout(
            _places(inside),
            advance,
            tuple((alone[:, _FIRST - 1] - (_FIRST - 1)).tolist()),
            behind=((0,) * self._axes, (0,) * self._axes),
            still=_places(still) if still.any() else (),
            ordinal=_places(ordinal) if ordinal.any() else (),
        )
        goes_on = _FIRST + advance
        for token in self._special:
            places = self.places(self.prompt(text, image, [token, token, word]), 1)
            if places is not None and places[:, -1].tolist() == [goes_on] * self._axes:
                first, later = (tuple((places[:, -3 + place] - goes_on).tolist()) for place in (0, 1))
                layout = replace(layout, closing=(*layout.closing, token), behind=(first, later))
        return layout

    def _rules(self, size: int, alone: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two rules for each feature [axes, size]: 1 where it does not move with a word more before it, and the amount
        that an image before it adds besides.
        """
        word, image = self.word, [self.token] * size
        later = self.places(self.prompt([word, word, word, self.start], image, [word]), 1)
        second = self.places(self.prompt([word, word, self.start], image, [word, self.start], image, [word]), 2)
        if later is None or second is None:
            return torch.zeros(self._axes, size, dtype=torch.int64), torch.zeros(self._axes, size, dtype=torch.int64)
        first = alone[:, _FIRST : _FIRST + size]
        moves = later[:, _FIRST + 1 : _FIRST + 1 + size] - first
        behind = _FIRST + size + 2  # the place of the second image's first feature
        advance = alone[0, _FIRST + size] - _FIRST
        ordinal = second[:, behind : behind + size] - first - moves * (advance + 2)
        return 1 - moves, ordinal

    def agrees(self, layout: ImageLayout) -> bool:
        """Return whether ``image_positions`` gives what the model does for two images among text, with and without what closes them.

        Some models want a token behind each image (Qwen Omni), and are not asked about images side by side.
        """
        word, image, answers = self.word, [self.token] * len(layout.inside), 0
        for between in ([], [word], *([token] for token in layout.closing), [*layout.closing, word]):
            ids = self.prompt(
                [word, word, word, self.start], image, between, [self.start], image, between, [word, word]
            )
            places = self.places(ids, 2)
            own = image_positions(ids, ids == self.token, torch.ones_like(ids).bool(), layout)
            if places is not None and not torch.equal(places, own[:, 0]):
                return False
            answers += places is not None
        return answers > 0
