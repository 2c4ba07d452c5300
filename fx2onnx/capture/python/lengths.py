"""``len(x)`` in the files of a module's classes may be a symbolic size, where Python's own has to be a plain number."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sized

import torch

from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.capture.python.module_tree import ModuleTree


def take_lengths(tree: ModuleTree) -> None:
    """Until ``Changes`` end, in the code of the modules of ``tree``, ``len(x)`` may be a symbolic size; in this thread."""
    parts = tree.modules
    own = [vars(part)["forward"] for part in parts if "forward" in vars(part)]
    kinds = {base for kind in set(map(type, parts)) for base in kind.__mro__}
    for space in _spaces_of_modules(kinds, own):
        if "len" not in space:
            put_name(space, "len", _length)


def _length(value: torch.Tensor | Sized) -> int | torch.SymInt:
    return value.shape[0] if type(value) is torch.Tensor and THREAD.captures and value.dim() > 0 else len(value)


def _spaces_of_modules(kinds: set[type], own: list[Callable[..., object]]) -> Iterator[dict[str, object]]:
    """Globals of the files that define the classes ``kinds``, and the forwards ``own`` that are set on modules."""
    for name in {kind.__module__ for kind in kinds}:
        if name.split(".")[0] not in ("torch", "builtins", "fx2onnx") and name in sys.modules:
            yield vars(sys.modules[name])
    for forward in own:
        space = getattr(inspect.unwrap(forward), "__globals__", None)
        if space is not None and not space.get("__name__", "").startswith("torch."):
            yield space
