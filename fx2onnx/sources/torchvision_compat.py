"""Import torchvision even where its compiled operators cannot be loaded.

The usual torchvision wheel is a CUDA build. Beside a CPU build of PyTorch its extension does not load, and
``import torchvision`` stops at "operator torchvision::nms does not exist". Then, and only then, the operators are
declared here with torchvision's own schemas; torchvision adds its fakes and autograd rules to them as usual, and
``torchvision_ops`` gives those that inference needs a CPU kernel.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fx2onnx.base.errors import UserError

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

_lock = threading.RLock()
_library: object = None  # the declarations live as long as it does


def import_torchvision() -> ModuleType:
    """The ``torchvision`` module, imported with declared operators if its own cannot be loaded.

    Raises:   UserError E602 where torchvision is not installed or fails to import for another reason.
    """
    with _lock:
        loaded = sys.modules.get("torchvision")
        if loaded is not None and hasattr(loaded, "ops"):
            return loaded
        if importlib.util.find_spec("torchvision") is None:
            raise UserError("E602", "torchvision is not installed", next="pip install torchvision")
        try:
            return importlib.import_module("torchvision")
        except (ImportError, RuntimeError) as error:
            text = str(error)
            if isinstance(error, ImportError) or "torchvision::" not in text or "does not exist" not in text:
                raise UserError(
                    "E602",
                    "torchvision is installed but cannot be imported",
                    why=f"{type(error).__name__}: {error}",
                    next="install the torchvision release that belongs to your PyTorch: "
                    "pip install --upgrade torch torchvision",
                ) from error
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:  # half imported
            del sys.modules[name]
        _declare_operators()
        with _extension_counts_as_loaded():
            return importlib.import_module("torchvision")


def prepare() -> bool:
    """Import torchvision if it is installed, so that packages which import it themselves (timm, transformers) can.

    Returns whether torchvision is usable. Never raises for a missing or broken torchvision.
    """
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        import_torchvision()
    except UserError:
        return False
    return True


def operators_are_declared_here() -> bool:
    """Whether torchvision's operators are declared by this module rather than by its compiled extension."""
    return _library is not None


def _declare_operators() -> None:
    global _library
    if _library is not None:
        return
    import torch

    from fx2onnx.sources import torchvision_ops

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
    for name in CPU_KERNELS:
        library.impl(name, getattr(torchvision_ops, name), "CPU")
    # torchvision compares this number with PyTorch's CUDA version; -1 says "not a CUDA build".
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    _library = library


@contextlib.contextmanager
def _extension_counts_as_loaded() -> Iterator[None]:
    """While torchvision is imported, let loading its ``_C`` succeed: the operators that it would define are declared.

    torchvision registers its fakes, autograd and autocast rules, and calls its operators at all, only if that load
    succeeded; it offers no other switch.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    ops: Any = torch.ops
    original = ops.load_library

    def load_library(path: str) -> None:
        if not (Path(path).parent in folders and Path(path).stem.split(".")[0] == "_C"):
            original(path)

    ops.load_library = load_library
    try:
        yield
    finally:
        del ops.load_library
