"""Flags of the process that forward sets are as before afterwards: each one of the table, and the table is complete."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import locale
import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.capture.python.process_state import OF_PROCESS, OF_THREAD, Flag, _value
from fx2onnx.torchcompat.dispatch import TorchDispatchMode
from fx2onnx.torchcompat.flags import AUTOCAST

X = torch.ones(2, 3)
FLAGS = {flag.name: flag for flag in (*OF_PROCESS, *OF_THREAD)}


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class OperatorMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _environment() -> None:
    os.environ["FX2ONNX_TEST"] = "1"
    os.environ.pop("HOME", None)


def _working_directory() -> None:
    os.chdir("/")


def _print_options() -> None:
    torch.set_printoptions(precision=2)


ACTIONS: dict[str, Callable[[], object]] = {
    "default device": lambda: torch.set_default_device("meta"),
    "functions' modes": lambda: FunctionMode().__enter__(),
    "modes that are on": lambda: OperatorMode().__enter__(),
    "operators' modes": lambda: OperatorMode().__enter__(),
    "dispatch keys, autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "torch's print options": _print_options,
    "warnings' filters": lambda: warnings.simplefilter("ignore"),
    "environment": _environment,
    "working directory": _working_directory,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "import path": lambda: sys.path.insert(0, "/somewhere"),
    "NumPy's errors": lambda: np.seterr(all="ignore"),
    "NumPy's print options": lambda: np.set_printoptions(precision=2),
    "how warnings are shown": lambda: setattr(warnings, "showwarning", print),
}
"""How forward changes what is no plain value."""

OTHER: dict[str, Any] = {
    "default dtype": torch.float64,
    "deterministic algorithms": (True, True),
    "anomaly detection": (True, False),
    "attention: order": [2, 1, 0, 3, 4],
    **{
        name: (False, True) if isinstance(FLAGS[name].get(), tuple) else False
        for name in ("cuBLAS: float16 reductions", "cuBLAS: bfloat16 reductions")
    },
    "float32 products": "high",
    "opt_einsum: strategy": "greedy",
    "sharing strategy": "file_system",
    "recursion limit": 2345,
    "garbage collector's thresholds": (900, 11, 11),
    "logging": 5,
    "parametrizations are cached": 1,
    "threads": torch.get_num_threads() + 1,
    "__torch_function__": torch._C._TorchFunctionState.SUBCLASSES_DISABLED,
    "quantized engine": 2,
    "linear algebra library": torch._C._LinalgBackend.Cusolver,
    "BLAS library": torch._C._BlasBackend.Cublaslt,
    "cuDNN: depthwise kernel": "cudnn",
}
OTHER |= {f"autocast dtype: {kind}": torch.float32 for kind in AUTOCAST}

NOT_HERE = {
    "function transforms": "torch ends its transforms itself; only an interrupt leaves one (test_interrupts.py)",
    "ROCm attention library": "settable on ROCm only",
    "linear algebra library": "settable with CUDA only",
    "BLAS library": "settable with CUDA only",
    "flush denormals": "depends on the processor",
    "CPU: float16 reductions": "settable on ARM only",
    "oneDNN: TF32": "settable on some processors only",
}
"""Flags whose setting this test does not see to have an effect on every machine: these may be left out, no others."""


def _other(flag: Flag) -> Any:
    value = _value(flag)
    if flag.name in OTHER:
        return OTHER[flag.name]
    if flag.name.startswith("float32 precision"):
        return "tf32" if value == "ieee" else "ieee"
    return not value


def _change(flag: Flag) -> None:
    if flag.name in ACTIONS:
        ACTIONS[flag.name]()
    else:
        flag.set(_other(flag))


class Setting(nn.Module):
    def __init__(self, flag: Flag, change: Callable[[], object], fails: bool) -> None:
        super().__init__()
        self.flag, self.change, self.fails = flag, change, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = _value(self.flag)
        try:
            self.change()
        finally:
            _CHANGED[self.flag.name] = _value(self.flag) != before
        if self.fails:
            raise KeyboardInterrupt
        return x + 1


_CHANGED: dict[str, bool] = {}


@pytest.fixture
def everything() -> Iterator[None]:
    """A failing test must not spoil the others."""
    before = {name: _value(flag) for name, flag in FLAGS.items()}
    yield
    for name, value in before.items():
        if _value(FLAGS[name]) != value:
            FLAGS[name].set(value)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "interrupted"])
@pytest.mark.parametrize("name", FLAGS)
def test_what_forward_sets_is_as_before(name: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)  # other tests may have left threads
    flag = FLAGS[name]
    before = _value(flag)
    _CHANGED.clear()
    with contextlib.suppress(KeyboardInterrupt, fx2onnx.UserError):
        fx2onnx.export(Setting(flag, lambda: _change(flag), fails), (X,), None, capture="fake")
    assert _CHANGED.get(name) or name in NOT_HERE, "forward did change it"
    assert _value(flag) == before


backends: Any = torch.backends
PUBLIC: dict[str, Callable[[], object]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda: torch.set_deterministic_debug_mode("warn"),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "warn always": lambda: torch.set_warn_always(True),
    "attention: fast path": lambda: backends.mha.set_fastpath_enabled(False),
    "attention: flash": lambda: backends.cuda.enable_flash_sdp(False),
    "attention: memory-efficient": lambda: backends.cuda.enable_mem_efficient_sdp(False),
    "attention: math": lambda: backends.cuda.enable_math_sdp(False),
    "attention: cuDNN": lambda: backends.cuda.enable_cudnn_sdp(False),
    "attention: reduced precision": lambda: backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "cuDNN": lambda: setattr(backends.cudnn, "enabled", False),
    "cuDNN: benchmark": lambda: backends.cudnn.set_flags(_benchmark=True),
    "cuDNN: deterministic": lambda: setattr(backends.cudnn, "deterministic", True),
    "cuDNN: TF32": lambda: setattr(backends.cudnn, "allow_tf32", False),
    "cuDNN: depthwise kernel": lambda: setattr(backends.cudnn, "depthwise_kernel", "cudnn"),
    "oneDNN": lambda: setattr(backends.mkldnn, "enabled", False),
    "oneDNN: deterministic": lambda: backends.mkldnn.set_flags(_deterministic=True),
    "NNPACK": lambda: backends.nnpack.set_flags(False),
    "MIOpen: immediate": lambda: setattr(backends.miopen, "immediate", True),
    "quantized engine": lambda: setattr(backends.quantized, "engine", "qnnpack"),
    "cuBLAS: TF32": lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
    "cuBLAS: float16 reductions": lambda: setattr(
        backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "float32 products": lambda: torch.set_float32_matmul_precision("high"),
    "float32 precision: generic all": lambda: setattr(backends, "fp32_precision", "ieee"),
    "float32 precision: cuda conv": lambda: setattr(backends.cudnn.conv, "fp32_precision", "ieee"),
    "conversion swaps parameters": lambda: torch.__future__.set_swap_module_params_on_conversion(True),
    "conversion overwrites parameters": lambda: torch.__future__.set_overwrite_module_params_on_conversion(True),
    "torch's print options": _print_options,
    "sharing strategy": lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
    "warnings' filters": lambda: warnings.simplefilter("ignore"),
    "environment": _environment,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "logging": lambda: logging.disable(5),
}
"""Flags of all threads, and how a model sets them."""


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("name", [name for name in PUBLIC if name in FLAGS])  # those that this torch has
def test_what_forward_sets_is_as_before_where_other_threads_run(name: str) -> None:
    flag = FLAGS[name]
    before = _value(flag)
    _CHANGED.clear()
    over = threading.Event()
    other = threading.Thread(target=lambda: over.wait(60))
    other.start()
    try:
        fx2onnx.export(Setting(flag, PUBLIC[name], False), (X,), None, capture="fake")
    finally:
        over.set()
        other.join()
    assert _CHANGED[name]
    assert _value(flag) == before


def test_levels_of_loggers() -> None:
    logger = logging.getLogger("fx2onnx.test")

    def forward(x: torch.Tensor) -> torch.Tensor:
        logger.setLevel(logging.CRITICAL)
        return x + 1

    fx2onnx.export(forward, (X,), None)
    assert logger.level == logging.NOTSET


def test_the_collector_goes_on_after_an_error() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        assert not gc.isenabled()
        gc.enable()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fx2onnx.export(forward, (X,), None)
    assert gc.isenabled()


NO_FLAGS = {
    "cuda.cufft_plan_cache": "a cache: it decides no number and no program",
    "quantized.supported_engines": "cannot be set",
    "python_native.available_dsls": "cannot be set",
    "python_native.all_dsls": "cannot be set",
    "mkldnn.set_flags": "sets the flags of its module",
    "cudnn.set_flags": "sets the flags of its module",
    "miopen.set_flags": "sets the flags of its module",
    "nnpack.set_flags": "sets the flag of its module",
    "opt_einsum.set_flags": "sets the flags of its module",
    ".set_flags": "sets the flag of its module",
    "cudnn.benchmark_limit": "exists with CUDA only",
    "cuda.fp16_bf16_reduction_math_sdp_allowed": "asks",
}

LISTED = {
    ".disable_global_flags": "backends' flags can be set",
    ".fp32_precision": "float32 precision: generic all",
    "cuda.matmul": "cuBLAS: TF32",
    "cuda.preferred_linalg_library": "linear algebra library",
    "cuda.preferred_blas_library": "BLAS library",
    "cuda.preferred_rocm_fa_library": "ROCm attention library",
    "cuda.enable_flash_sdp": "attention: flash",
    "cuda.enable_mem_efficient_sdp": "attention: memory-efficient",
    "cuda.enable_math_sdp": "attention: math",
    "cuda.enable_cudnn_sdp": "attention: cuDNN",
    "cuda.allow_fp16_bf16_reduction_math_sdp": "attention: reduced precision",
    "cudnn.enabled": "cuDNN",
    "cudnn.deterministic": "cuDNN: deterministic",
    "cudnn.benchmark": "cuDNN: benchmark",
    "cudnn.allow_tf32": "cuDNN: TF32",
    "cudnn.fp32_precision": "float32 precision: cuda all",
    "cudnn.depthwise_kernel": "cuDNN: depthwise kernel",
    "cudnn.conv": "float32 precision: cuda conv",
    "cudnn.rnn.fp32_precision": "float32 precision: cuda rnn",
    "mha.set_fastpath_enabled": "attention: fast path",
    "miopen.immediate": "MIOpen: immediate",
    "mkldnn.enabled": "oneDNN",
    "mkldnn.deterministic": "oneDNN: deterministic",
    "mkldnn.allow_tf32": "oneDNN: TF32",
    "mkldnn.fp32_precision": "float32 precision: mkldnn all",
    "mkldnn.matmul": "float32 precision: mkldnn matmul",
    "mkldnn.conv": "float32 precision: mkldnn conv",
    "mkldnn.rnn": "float32 precision: mkldnn rnn",
    "opt_einsum.enabled": "opt_einsum",
    "opt_einsum.strategy": "opt_einsum: strategy",
    "quantized.engine": "quantized engine",
}
"""What torch.backends offers, and the flag of the table that it is."""


def offered(module: Any, prefix: str = "") -> Iterator[str]:
    """Names under ``torch.backends`` that set something: properties, objects with settings, functions named so."""
    inner = getattr(module, "m", module)
    for name, value in vars(type(module)).items():
        if not name.startswith("_") and (hasattr(type(value), "__set__") or type(value).__name__ == "_FP32Precision"):
            yield f"{prefix}.{name}"
    for name, value in vars(inner).items():
        if name.startswith("_"):
            continue
        home = getattr(type(value), "__module__", "")
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith("torch.backends."):
                yield from offered(value, f"{prefix}.{name}".lstrip("."))
        elif home.startswith("torch.backends") and not isinstance(value, type):
            yield f"{prefix}.{name}"
        elif callable(value) and str(getattr(value, "__module__", "")).startswith("torch.backends"):
            is_setter = name.startswith(("enable_", "disable_", "allow_", "set_", "preferred_", "fp16_"))
            yield from [f"{prefix}.{name}"] if is_setter else []


def test_the_table_has_what_torch_backends_offers() -> None:
    names = set(offered(torch.backends))
    assert {"mkldnn.enabled", "cuda.enable_math_sdp", "cudnn.conv", "mha.set_fastpath_enabled"} <= names
    unknown = {name for name in names if name not in LISTED and name not in NO_FLAGS}
    assert not unknown
    assert set(LISTED.values()) <= set(FLAGS)


def test_a_tensor_is_no_sequence_for_python_afterwards() -> None:
    """A ``__getitem__`` put on ``torch.Tensor`` and taken away again would leave it one, and ``torch.tensor([t, t])`` fail."""
    is_sequence = ctypes.pythonapi.PySequence_Check
    tensor = torch.ones(2)
    before = is_sequence(ctypes.py_object(tensor))
    fx2onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    assert is_sequence(ctypes.py_object(tensor)) == before
    assert torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
