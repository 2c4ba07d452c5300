"""Inputs to compare on: the user's sample, others of its kind, and the sample at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fx2onnx.base.dim_text import Root, parse_dim, root_of, size_of
from fx2onnx.base.dims import Dim
from fx2onnx.base.size_conditions import SizeCondition
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.verify.sizes import MOST_GROWTH, other_sizes


@dataclass(frozen=True, slots=True)
class Sample:
    """One set of inputs, in the order of ``Arguments.leaves``; ``name`` says how it was made."""

    name: str
    tensors: list[torch.Tensor]


def samples(
    arguments: Arguments,
    symbolic_axes: Sequence[Mapping[int, str] | None],
    seeds: Sequence[int],
    conditions: Sequence[SizeCondition] = (),
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Sample]:
    """The sample itself, one shuffled set a seed, one where every dynamic size is the next that ``conditions`` allow, and some
    at the borders of what they allow.

    ``symbolic_axes`` has an entry for each tensor, None for one that keeps its values.
    """
    originals = [leaf.tensor.detach() for leaf in arguments.leaves]
    pairs = list(zip(originals, symbolic_axes, strict=True))
    yield Sample("sample", originals)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        shuffled = [tensor if axes is None else _like(tensor, generator) for tensor, axes in pairs]
        yield Sample(f"seed {seed}", shuffled)
    if not any(symbolic_axes):
        return
    sizes = _sizes(pairs)
    tried = other_sizes(sizes, conditions)
    if not tried:
        note("no other sizes were found that keep the conditions of the file")
    for others in tried:
        name = "sizes +1" if not conditions else "sizes " + ", ".join(f"{dim} {size}" for dim, size in others.items())
        yield Sample(name, [_resized(tensor, axes or {}, sizes, others) for tensor, axes in pairs])


def _like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other numbers of the same kind: normal with the sample's scale; integers and bools are the sample's, shuffled."""
    if tensor.is_floating_point() and tensor.numel():
        wide = tensor.to(torch.float32)
        scale = float(wide.std(correction=0)) or 1.0
        noise = torch.randn(tensor.shape, generator=generator) * scale + float(wide.mean())
        return noise.to(tensor.dtype)
    order = torch.randperm(tensor.numel(), generator=generator)
    return tensor.reshape(-1)[order].reshape(tensor.shape)


def _sizes(pairs: Sequence[tuple[torch.Tensor, Mapping[int, str] | None]]) -> dict[str, int]:
    """The sample's size of every dim that is a plain name, or of which an axis has a multiple, such as ``8*frames + 3``."""
    named = [(root_of(text), tensor.shape[axis]) for tensor, axes in pairs for axis, text in (axes or {}).items()]
    found = sorted(
        ((root, size) for root, size in named if root is not None), key=lambda pair: pair[0] == Root(pair[0].name)
    )
    return {root.name: root.size(size) for root, size in found}  # a plain name comes last, and counts


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
    if isinstance(dim, Dim) and dim.symbols() <= set(sizes) and size_of(dim, sizes) == size:
        grown = size_of(dim, {name: others[name] for name in dim.symbols()})
        if grown is not None and grown <= MOST_GROWTH * (size + 1):
            return grown
    return size + 1
