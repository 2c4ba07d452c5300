"""Inputs to compare on: the user's sample, others of its kind, and the sample at other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.stated import SizeCondition
from fx2onnx.sizes.text import Root, parse_dim, root_of, size_of
from fx2onnx.verify.marks import NONE, Marks
from fx2onnx.verify.sizes import empty_sizes, other_sizes
from fx2onnx.verify.values import AT_SAMPLE_SIZES, ENDS, Values

LARGEST_GROWN = 2**20
"""What an expression of sizes may come to where they are others: a file may name any."""
_AT_OTHER_SIZES = ("seed", "large", "ties", "small")
"""Kinds of values at sizes that are not the sample's, in turn."""
_DRAWS_A_SEED = 1000
"""Sets of inputs of one seed have numbers of their own below this."""


Rows = Sequence[tuple[int, int] | None]
"""Of each argument, the least and the largest integer that picks a row of a table."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One set of inputs to try: its sizes, and the kind of its values, ``sample`` for the sample's own (values.KINDS)."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: str = "sample"
    seed: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether some size is 0."""
        return 0 in self.sizes.values()


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the tensors of a sample, one for each argument. ``axes`` are None of one that keeps its values."""

    originals: Sequence[torch.Tensor]
    axes: Sequence[Mapping[int, str] | None]
    sizes: Mapping[str, int]
    values: Sequence[Values]
    conditions: Sequence[SizeCondition] = ()
    """Of sizes at which every axis has one: with ``n - 8`` positions, n is at least 9."""

    @staticmethod
    def of(
        originals: Sequence[torch.Tensor],
        axes: Sequence[Mapping[int, str] | None],
        rows: Rows,
        marks: Marks = NONE,
        *,
        is_narrow: bool = False,
    ) -> Maker:
        """``is_narrow``: for a file that computes in float16 where the module does not."""
        pairs = list(zip(originals, axes, strict=True))
        values = [
            Values.of(tensor, found, marks, is_narrow=is_narrow) for tensor, found in zip(originals, rows, strict=True)
        ]
        sizes = _sizes(pairs)
        return Maker(list(originals), list(axes), sizes, values, _positive(pairs, sizes))

    def make(self, sample: Sample, *, tame: bool = False) -> list[torch.Tensor]:
        """Its tensors; ``tame``, where the module does not run on what its kind of values may be."""
        generator = torch.Generator().manual_seed(sample.seed)
        made = []
        for original, axes, values in zip(self.originals, self.axes, self.values, strict=True):
            if axes is None:
                made.append(original)
                continue
            like = _resized(original, axes, self.sizes, sample.sizes) if sample.sizes else original
            values = values.at(self.sizes, sample.sizes)
            if sample.values == "sample":
                made.append(like)
            else:
                made.append(values.tamer(like, generator) if tame else values.draw(like, sample.values, generator))
        return made

    def ends(self) -> list[str]:
        """Kinds of values at the ends that some input has."""
        pairs = zip(self.values, self.originals, self.axes, strict=True)
        found = set().union(*(values.ends(tensor) for values, tensor, axes in pairs if axes is not None))
        return [kind for kind in ENDS if kind in found]

    def numbers(self, sample: Sample) -> int:
        """How many numbers its inputs have."""
        total = 0
        for original, axes in zip(self.originals, self.axes, strict=True):
            shape = list(original.shape)
            for axis, text in (axes or {}).items() if sample.sizes else ():
                shape[axis] = _changed(shape[axis], text, self.sizes, sample.sizes)
            total += torch.Size(shape).numel()
        return total


def planned(
    sizes: Mapping[str, int],
    conditions: Sequence[SizeCondition],
    seeds: Sequence[int],
    ends: Sequence[str] = (),
    marks: Sequence[int] = (),
    bounds: Sequence[int] = (),
) -> Iterator[Sample]:
    """Beside the sample: one set of other values a seed, sets at other sizes, and sets of values at the ends of what they may
    be: what finds most first. Without seeds every value is the sample's.
    """
    for seed in seeds:
        yield Sample(f"seed {seed}", values="seed", seed=seed)
    others = other_sizes(sizes, conditions, marks, bounds) if sizes else []
    for turn, found in enumerate(others):
        kind = _AT_OTHER_SIZES[turn % len(_AT_OTHER_SIZES)] if seeds and turn else "sample"
        text = "sizes " + ", ".join(f"{dim} {size}" for dim, size in found.items())
        drawn = turn + _DRAWS_A_SEED * (seeds[0] - 1) if seeds else turn
        yield Sample(text if kind == "sample" else f"{text}, {kind}", found, kind, drawn)
        if not seeds and turn == 2:
            return
        if seeds and turn == 0:
            yield from (Sample(kind, values=kind, seed=seeds[0]) for kind in AT_SAMPLE_SIZES[:2])
    if seeds:
        kinds = AT_SAMPLE_SIZES[2:] if others else AT_SAMPLE_SIZES
        yield from (Sample(kind, values=kind, seed=seeds[0]) for kind in (*kinds, *ends))
        for found in empty_sizes(sizes, conditions):
            yield Sample("sizes " + ", ".join(f"{dim} {size}" for dim, size in found.items()), found)


def cheapest_first(shares: Sequence[tuple[Sample, float]], seeds: Sequence[int]) -> list[tuple[Sample, float]]:
    """Sets of inputs, with how large they are, where not all can be tried: small sizes have all kinds of values, too. The
    first has unequal sizes of 2 at least, where there are such: nothing is summed or compared along an axis of 1.
    """
    ordered = sorted(shares, key=lambda pair: (pair[0].is_empty, pair[1]))
    large = [pair for pair in ordered if pair[0].sizes and min(pair[0].sizes.values()) > 1]
    if not large:
        return ordered
    first = min(large, key=lambda pair: len(set(pair[0].sizes.values())) < len(pair[0].sizes))
    sample, share = first
    if seeds:
        name = sample.name.removesuffix(f", {sample.values}") + ", seed"
        sample = replace(sample, name=name, values="seed")
    return [(sample, share), *(pair for pair in ordered if pair is not first)]


def _positive(
    pairs: list[tuple[torch.Tensor, Mapping[int, str] | None]], sizes: Mapping[str, int]
) -> list[SizeCondition]:
    texts = {text: tensor.shape[axis] for tensor, axes in pairs for axis, text in (axes or {}).items()}
    return [
        SizeCondition(f"{text} >= 1", "", any_of=(("ge", dim, 1),))
        for text, size in texts.items()
        if size and text not in sizes and isinstance(dim := parse_dim(text), Dim) and _says(text, size, sizes)
    ]


def _sizes(pairs: Sequence[tuple[torch.Tensor, Mapping[int, str] | None]]) -> dict[str, int]:
    """The sample's size of every dim that is a plain name, or of which an axis has a multiple, such as ``8*frames + 3``."""
    named = [(root_of(text), tensor.shape[axis]) for tensor, axes in pairs for axis, text in (axes or {}).items()]
    found = sorted(
        ((root, size) for root, size in named if root is not None), key=lambda pair: pair[0] == Root(pair[0].name)
    )
    sizes = {root.name: root.size(size) for root, size in found}  # a plain name comes last, and counts
    texts = [(text, tensor.shape[axis]) for tensor, axes in pairs for axis, text in (axes or {}).items()]
    return sizes | {text: size for text, size in texts if not _says(text, size, sizes)}


def _resized(
    tensor: torch.Tensor, axes: Mapping[int, str], sizes: Mapping[str, int], others: Mapping[str, int]
) -> torch.Tensor:
    """The sample with other sizes, its content repeated."""
    for axis, text in axes.items():
        size = _changed(tensor.shape[axis], text, sizes, others)
        index = torch.arange(size) % max(tensor.shape[axis], 1)
        tensor = (
            tensor.index_select(axis, index)
            if tensor.shape[axis]
            else tensor.new_zeros([size if place == axis else length for place, length in enumerate(tensor.shape)])
        )
    return tensor


def _changed(size: int, text: str, sizes: Mapping[str, int], others: Mapping[str, int]) -> int:
    """What ``size`` becomes where every name in ``text``, such as ``past + sequence``, has its other size. A text that says
    nothing of the sample's size, or more than memory may hold, is one name.
    """
    dim = parse_dim(text)
    if isinstance(dim, Dim) and _says(text, size, sizes):
        grown = size_of(dim, {name: others[name] for name in dim.symbols()})
        if grown is not None and grown <= LARGEST_GROWN:
            return grown
    return others.get(text, size + 1)


def _says(text: str, size: int, sizes: Mapping[str, int]) -> bool:
    """Return whether the text is an expression of known sizes, which gives this one."""
    dim = parse_dim(text)
    return isinstance(dim, Dim) and dim.symbols() <= set(sizes) and size_of(dim, sizes) == size
