"""Sizes of which it makes no difference whether they are 1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from fx2onnx.sizes.expr import Dim


@contextlib.contextmanager
def either_way(*sizes: object) -> Iterator[None]:
    """Inside, whether Python finds one of these sizes to be 1 makes no difference to what is computed."""
    nodes = [size.node for size in sizes if type(size) is torch.SymInt]
    added = [
        (node.env, name)
        for node in nodes
        if isinstance(node.value, Dim)
        for name in node.value.symbols() - node.env.either_way
    ]
    for env, name in added:
        env.either_way.add(name)
    try:
        yield
    finally:
        for env, name in added:
            env.either_way.discard(name)
