"""State of the process that each test must leave as it found it, so that tests pass in any order."""

from __future__ import annotations

import builtins
import locale
import logging
import os
import signal
import sys
import threading
from typing import Any

import numpy as np

_SET_BY_IMPORTS = ("PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that pytest sets for each test, and scikit-learn's OpenMP and torch's inductor when they are first imported."""
_LIMIT_OF_INDUCTOR = 2000
_ADDED_BY_TRANSFORMERS = "smart_apply"
"""An attribute that transformers gives to `torch.nn.Module` when it first initializes a model."""


def _torch_state() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return {}
    return {
        "torch default dtype": torch.get_default_dtype(),
        "torch default device": str(torch.get_default_device()),
        "torch grad mode": torch.is_grad_enabled(),
        "torch inference mode": torch.is_inference_mode_enabled(),
        "torch autocast": torch.is_autocast_enabled("cpu"),
        "torch threads": torch.get_num_threads(),
        "torch deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch matmul precision": torch.get_float32_matmul_precision(),
        "torch float32 products": (
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.mkldnn.matmul.fp32_precision,
        ),  # type: ignore[attr-defined]
        "torch mkldnn": torch.backends.mkldnn.enabled,
        "torch fused attention": torch.backends.mha.get_fastpath_enabled(),
        "torch function modes": torch._C._len_torch_function_stack(),
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch.Tensor": _attributes(torch.Tensor),
        "torch.nn.Module": _attributes(torch.nn.Module),
        "torch.nn.functional": _attributes(torch.nn.functional),
    }


def _hub_state() -> dict[str, Any]:
    constants = sys.modules.get("huggingface_hub.constants")
    return {} if constants is None else {"HF_HUB_OFFLINE": constants.HF_HUB_OFFLINE}


def _attributes(owner: Any) -> dict[str, int]:
    return {
        name: id(value)
        for name, value in vars(owner).items()
        if not name.startswith("__") and name != _ADDED_BY_TRANSFORMERS
    }


def put_back_limit(limit: int) -> None:
    """Undo what torch's inductor does when it compiles for the first time: it raises the recursion limit for good."""
    if "torch._inductor.compile_fx" in sys.modules and sys.getrecursionlimit() == _LIMIT_OF_INDUCTOR:
        sys.setrecursionlimit(limit)


def snapshot() -> dict[str, Any]:
    """State of the process by name, as values that can be compared."""
    state: dict[str, Any] = {
        "environment": {key: value for key, value in os.environ.items() if key not in _SET_BY_IMPORTS},
        "working folder": os.getcwd(),
        "arguments": list(sys.argv),
        "recursion limit": sys.getrecursionlimit(),
        "trace functions": (sys.gettrace(), sys.getprofile()),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "signals": (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)),
        "log level": logging.getLogger().level,
        "locale": locale.setlocale(locale.LC_ALL),
        "NumPy errors": np.geterr(),
        "builtins": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
    }
    return state | _torch_state() | _hub_state()


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The differences between two snapshots, a line each. A name that only one of them has was loaded in between."""
    found = []
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            found += [f"{name}[{key}]: {old.get(key)!r} -> {new.get(key)!r}" for key in keys]
        else:
            found.append(f"{name}: {old!r} -> {new!r}")
    return sorted(found)
