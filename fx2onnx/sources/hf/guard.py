"""While a transformers model is made: no request to the hub, no kernel from there, no more modules than a limit.

The second line behind ``fx2onnx.sources.hf.config``, for what a type of model does without a key that says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from torch.nn.modules.module import register_module_module_registration_hook

from fx2onnx.base.errors import UserError

MOST_MODULES = 400_000
"""The largest models that people export have some ten thousand."""
_LOCK = threading.Lock()
_INSIDE: list[tuple[bool, Callable[..., object] | None]] = []
"""The settings before the first of the calls that are now inside, one entry for each call."""


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Inside, huggingface_hub refuses requests and transformers finds no kernels."""
    from huggingface_hub import constants
    from transformers.integrations import hub_kernels

    with _LOCK:
        _INSIDE.append(_INSIDE[0] if _INSIDE else (constants.HF_HUB_OFFLINE, getattr(hub_kernels, "get_kernel", None)))
        constants.HF_HUB_OFFLINE, hub_kernels.get_kernel = True, _no_kernel
    try:
        yield
    finally:
        with _LOCK:
            before = _INSIDE.pop()
            if not _INSIDE:
                constants.HF_HUB_OFFLINE, hub_kernels.get_kernel = before
                if before[1] is None:  # transformers 4 has it where there is a package of kernels
                    del hub_kernels.get_kernel


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    """``offline``, and UserError E404 where building takes more than ``MOST_MODULES`` modules."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise UserError("E404", f"hf:{name} has more than {MOST_MODULES} modules", next="check its config.json")

    hook = register_module_module_registration_hook(counted)
    try:
        with offline():
            yield
    finally:
        hook.remove()


def _no_kernel(kernel_name: str, *_: object, **__: object) -> NoReturn:
    raise UserError("E601", f"the model wants the kernel '{kernel_name}'", why="fx2onnx downloads nothing")
