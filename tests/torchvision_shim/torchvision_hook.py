"""Lets ``import torchvision`` succeed where its compiled operators cannot be loaded; importing this file is all it takes.

The torchvision wheel of some package indexes is a CUDA build. Beside a CPU build of PyTorch its extension does not load, and
``import torchvision`` stops at "operator torchvision::nms does not exist". Then, and only then, the operators are declared here
with torchvision's own schemas, and ``torchvision_ops`` gives those that inference needs a CPU kernel. The environment of
``make test`` imports this file at the start of each Python (``torchvision_hook.pth``), the tests do it in any environment.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

# Source: the TORCH_LIBRARY blocks of torchvision 0.28 (torchvision/csrc/ops/*.cpp).
_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
SCHEMAS: dict[str, str] = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": f"(Tensor grad, Tensor rois, {_POOLED}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align": (
        "(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point, "
        f"{_POOLED}, int sampling_ratio, bool aligned) -> Tensor"
    ),
    "roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SIZES}) -> Tensor",
    "ps_roi_align": f"(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": (
        f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, int sampling_ratio, {_SIZES}) -> Tensor"
    ),
    "ps_roi_pool": f"(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_SIZES}) -> Tensor",
    "deform_conv2d": f"({_DEFORM}) -> Tensor",
    "_deform_conv2d_backward": f"(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated": "(Tensor boxes1, Tensor boxes2) -> Tensor",
    "_cuda_version": "() -> int",
}
CPU_KERNELS = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")

_library: object = None  # the declarations live as long as it does


class _Loader(Loader):
    """Imports torchvision by its own loader; a second time with declared operators where they were all that is missing."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._own.exec_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error) or "does not exist" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:  # half imported
                del sys.modules[name]
            _declare_operators()
            with _extension_counts_as_loaded(Path(str(module.__file__)).parent):
                self._own.exec_module(module)
        module.__loader__ = self._own


class _Finder:
    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, None, target) if name == "torchvision" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _declare_operators() -> None:
    global _library
    if _library is not None:
        return
    import torch
    import torchvision_ops

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
    for name in CPU_KERNELS:
        library.impl(name, getattr(torchvision_ops, name), "CPU")
    # torchvision compares this number with PyTorch's CUDA version; -1 says "not a CUDA build".
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    _library = library


@contextlib.contextmanager
def _extension_counts_as_loaded(folder: Path) -> Iterator[None]:
    """While torchvision is imported, let loading its ``_C`` succeed: the operators that it would define are declared.

    torchvision registers its fakes, autograd and autocast rules, and calls its operators at all, only if that load
    succeeded; it offers no other switch.
    """
    import torch

    ops: Any = torch.ops
    original = ops.load_library

    def load_library(path: str) -> None:
        if not (Path(path).parent == folder and Path(path).stem.split(".")[0] == "_C"):
            original(path)

    ops.load_library = load_library
    try:
        yield
    finally:
        del ops.load_library


sys.meta_path.insert(0, _Finder)
