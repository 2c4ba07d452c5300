"""State of the process that forward may change: afterwards as before.

What only this thread sees is put back where it differs, and so is what all threads see, where this is the only thread.
Else a difference could be another thread's: then setters are patched to say what this thread changes, and
what was changed by a way that does not say so stays.
"""

from __future__ import annotations

import functools
import gc
import locale
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
import torch.multiprocessing
import torch.nn.utils.parametrize

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch
from fx2onnx.capture.python import torch_state
from fx2onnx.capture.python.random_draws import draw_apart, keep_random_states

_C: Any = torch._C
_setlocale = cast(Any, locale)._setlocale
_backends: Any = torch.backends
_parametrize: Any = torch.nn.utils.parametrize
_future: Any = torch.__future__


class Flag(NamedTuple):
    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]


def _attribute(name: str, holder: Any, attribute: str) -> Flag:
    return Flag(name, lambda: getattr(holder, attribute), lambda value: setattr(holder, attribute, value))


def _precision(backend: str, op: str) -> Flag:
    return Flag(
        f"float32 precision: {backend} {op}",
        functools.partial(_C._get_fp32_precision_getter, backend, op),
        functools.partial(_C._set_fp32_precision_setter, backend, op),
    )


def _autocast_dtype(kind: str) -> Flag:
    return Flag(
        f"autocast dtype: {kind}",
        functools.partial(torch.get_autocast_dtype, kind),
        functools.partial(torch.set_autocast_dtype, kind),
    )


def _pair(both: Callable[..., object]) -> Callable[[tuple[Any, Any]], object]:
    return lambda values: both(*values)


def _fill(found: list[Any], values: list[Any]) -> None:
    found[:] = values


def _set_filters(filters: list[Any]) -> None:
    cast(list[Any], warnings.filters)[:] = filters
    cast(Any, warnings)._filters_mutated()


def _set_environment(values: dict[Any, Any]) -> None:
    environment: Any = os.environ
    for key in {*environment._data, *values}:
        if key not in values:
            del environment[environment.decodekey(key)]
        elif environment._data.get(key) != values[key]:
            environment[environment.decodekey(key)] = environment.decodevalue(values[key])


def _numpy(call: str) -> Any:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else getattr(numpy, call)()


_DENORMAL = 5e-324
_PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)

OF_THREAD = (
    Flag("gradients", torch.is_grad_enabled, _C._set_grad_enabled),
    Flag("forward gradients", _C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
    Flag("backward in threads", _C._is_multithreading_enabled, _C._set_multithreading_enabled),
    Flag("view replay", _C._is_view_replay_enabled, _C._set_view_replay_enabled),
    Flag("__torch_function__", _C._get_torch_function_state, _C._set_torch_function_state),
    *map(_autocast_dtype, torch_state.AUTOCAST),
    Flag("autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    Flag("threads", torch.get_num_threads, torch.set_num_threads),
    Flag("flush denormals", lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    Flag("NumPy's errors", lambda: _numpy("geterr"), lambda old: old and sys.modules["numpy"].seterr(**old)),
    Flag(
        "NumPy's print options",
        lambda: _numpy("get_printoptions"),
        lambda old: old and sys.modules["numpy"].set_printoptions(**old),
    ),
    Flag("default device", torch_state.default_device_context, torch_state.set_default_device_context),
    Flag("functions' modes", torch_state.function_modes, torch_state.set_function_modes),
    Flag("function transforms", torch_state.transforms, torch_state.set_transforms),
    Flag("operators' modes", torch_state.dispatch_modes, torch_state.set_dispatch_modes),
    Flag("dispatch keys, autocast", torch_state.dispatch_keys, torch_state.set_dispatch_keys),
)
"""What each thread has of its own."""

OF_PROCESS = (
    Flag("default dtype", torch.get_default_dtype, _C._set_default_dtype),
    Flag(
        "deterministic algorithms",
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        lambda old: _C._set_deterministic_algorithms(old[0], warn_only=old[1]),
    ),
    Flag(
        "uninitialized memory is filled",
        _C._get_deterministic_fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,
    ),
    Flag(
        "anomaly detection",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _pair(torch.set_anomaly_enabled),
    ),
    Flag("warn always", _C._get_warnAlways, _C._set_warnAlways),
    Flag("sparse invariants", _C._check_sparse_tensor_invariants, _C._set_check_sparse_tensor_invariants),
    Flag("modes that are on", torch_state.mode_notes, torch_state.set_mode_notes),
    _attribute("backends' flags can be set", _backends.m, "__allow_nonbracketed_mutation_flag"),
    Flag("attention: fast path", lambda: _backends.mha._is_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    Flag("attention: flash", _C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    Flag("attention: memory-efficient", _C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    Flag("attention: math", _C._get_math_sdp_enabled, _C._set_sdp_use_math),
    Flag("attention: cuDNN", _C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
    Flag("attention: overrideable", _C._get_overrideable_sdp_enabled, _C._set_sdp_use_overrideable),
    Flag(
        "attention: reduced precision",
        _C._get_math_sdp_allow_fp16_bf16_reduction,
        _C._set_math_sdp_allow_fp16_bf16_reduction,
    ),
    Flag("attention: order", _C._get_sdp_priority_order, _C._set_sdp_priority_order),
    Flag("cuDNN", _C._get_cudnn_enabled, _C._set_cudnn_enabled),
    Flag("cuDNN: benchmark", _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    Flag("cuDNN: deterministic", _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    Flag("cuDNN: depthwise kernel", _C._get_cudnn_depthwise_kernel, _C._set_cudnn_depthwise_kernel),
    Flag("oneDNN", _C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    Flag("oneDNN: deterministic", _C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    Flag("NNPACK", _C._get_nnpack_enabled, _C._set_nnpack_enabled),
    Flag("MIOpen: immediate", _C._get_miopen_immediate, _C._set_miopen_immediate),
    Flag("quantized engine", _C._get_qengine, _C._set_qengine),
    Flag("linear algebra library", _C._get_linalg_preferred_backend, _C._set_linalg_preferred_backend),
    Flag("BLAS library", _C._get_blas_preferred_backend, _C._set_blas_preferred_backend),
    Flag("ROCm attention library", _C._get_rocm_fa_preferred_backend, _C._set_rocm_fa_preferred_backend),
    _attribute("opt_einsum", _backends.opt_einsum.m, "enabled"),
    _attribute("opt_einsum: strategy", _backends.opt_einsum.m, "strategy"),
    Flag(
        "cuBLAS: float16 reductions",
        _C._get_cublas_allow_fp16_reduced_precision_reduction,
        _pair(_C._set_cublas_allow_fp16_reduced_precision_reduction),
    ),
    Flag(
        "cuBLAS: bfloat16 reductions",
        _C._get_cublas_allow_bf16_reduced_precision_reduction,
        _pair(_C._set_cublas_allow_bf16_reduced_precision_reduction),
    ),
    Flag("cuBLAS: float16 sums", _C._get_cublas_allow_fp16_accumulation, _C._set_cublas_allow_fp16_accumulation),
    Flag(
        "CPU: float16 reductions",
        _C._get_cpu_allow_fp16_reduced_precision_reduction,
        _C._set_cpu_allow_fp16_reduced_precision_reduction,
    ),
    Flag("cuBLAS: TF32", _C._get_cublas_allow_tf32, _C._set_cublas_allow_tf32),
    Flag("cuDNN: TF32", _C._get_cudnn_allow_tf32, _C._set_cudnn_allow_tf32),
    Flag("oneDNN: TF32", _C._get_onednn_allow_tf32, _C._set_onednn_allow_tf32),
    Flag("float32 products", _C._get_float32_matmul_precision, _C._set_float32_matmul_precision),
    *(_precision(backend, op) for backend, op in _PRECISIONS),
    Flag(
        "conversion overwrites parameters",
        _future.get_overwrite_module_params_on_conversion,
        _future.set_overwrite_module_params_on_conversion,
    ),
    Flag(
        "conversion swaps parameters",
        _future.get_swap_module_params_on_conversion,
        _future.set_swap_module_params_on_conversion,
    ),
    _attribute("parametrizations are cached", _parametrize, "_cache_enabled"),
    Flag("torch's print options", torch_state.print_options, torch_state.set_print_options),
    Flag("sharing strategy", torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    Flag("warnings' filters", lambda: list(warnings.filters), _set_filters),
    _attribute("how warnings are shown", warnings, "showwarning"),
    Flag("environment", lambda: cast(Any, os.environ)._data.copy(), _set_environment),
    Flag("working directory", os.getcwd, os.chdir),
    Flag("locale", lambda: _setlocale(locale.LC_ALL), functools.partial(_setlocale, locale.LC_ALL)),
    Flag("import path", lambda: list(sys.path), lambda old: _fill(sys.path, old)),
    Flag("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Flag("garbage collector", gc.isenabled, lambda old: gc.enable() if old else gc.disable()),
    Flag("garbage collector's thresholds", gc.get_threshold, lambda old: gc.set_threshold(*old)),
    _attribute("logging", logging.root.manager, "disable"),
)
"""What all threads have together. Those that decide for others come after them."""

_UNREADABLE: Any = object()


def _value(flag: Flag) -> Any:
    """torch refuses to say what a flag is that was set in two ways; a working directory may be gone."""
    try:
        return flag.get()
    except (RuntimeError, OSError):
        return _UNREADABLE


def _values(flags: Sequence[Flag]) -> list[Any]:
    try:
        return [get() for _, get, _ in flags]
    except (RuntimeError, OSError):
        return [_value(flag) for flag in flags]


def _put_back(flags: Sequence[Flag], values: list[Any]) -> None:
    if _values(flags) == values:
        return
    for flag, value in zip(flags, values, strict=True):
        if value is not _UNREADABLE and _value(flag) != value:
            flag.set(value)


class _Seen(threading.local):
    def __init__(self) -> None:
        self.before: dict[Flag, Any] = {}
        """Flags of the process that this thread's capture was seen to change, with what they were."""
        self.setting: list[list[Any]] = []
        """All values from before each call of a setter that has not ended; an interrupted one stays."""


_SEEN = _Seen()


def keep_process_state() -> None:
    """Until ``Changes`` end, forward may set defaults, modes and seeds, and draw random numbers."""
    if threading.active_count() == 1:
        before_change(functools.partial(_put_back, OF_PROCESS, _values(OF_PROCESS)))
        keep_random_states()
    else:
        for name in ("before", "setting"):
            before_change(functools.partial(setattr, _SEEN, name, getattr(_SEEN, name)))
        _SEEN.before, _SEEN.setting = {}, []
        before_change(functools.partial(_put_back_seen, _SEEN.before, _SEEN.setting))
        for code_patch in _setters():
            code_patch.put_in()
        draw_apart()
    _LEVELS.put_in()
    before_change(functools.partial(_put_back, OF_THREAD, _values(OF_THREAD)))


def _put_back_seen(seen: dict[Flag, Any], setting: list[list[Any]]) -> None:
    for values in setting:
        seen = dict(zip(OF_PROCESS, values, strict=True)) | seen
    _put_back(tuple(seen), list(seen.values()))


def _noticed(setter: FunctionType) -> Callable[..., Any]:
    def noticed(*args: Any, **kwargs: Any) -> Any:
        before, seen = _values(OF_PROCESS), _SEEN
        seen.setting.append(before)
        try:
            return setter(*args, **kwargs)
        finally:
            for flag, old, new in zip(OF_PROCESS, before, _values(OF_PROCESS), strict=True):
                if old is not _UNREADABLE and old != new:
                    seen.before.setdefault(flag, old)
            seen.setting.pop()

    return noticed


def _level_noticed(setter: FunctionType) -> Callable[..., Any]:
    def set_level(logger: logging.Logger, level: Any) -> None:
        before_change(functools.partial(setter, logger, logger.level))
        setter(logger, level)

    return set_level


@functools.cache
def _setters() -> tuple[CodePatch, ...]:
    """Setters of flags of the process that are functions of Python."""
    plain = (
        torch.set_default_dtype,
        torch.set_default_tensor_type,
        torch.use_deterministic_algorithms,
        torch.set_deterministic_debug_mode,
        torch.set_float32_matmul_precision,
        torch.set_warn_always,
        torch.set_printoptions,
        *(
            vars(kind)[name]
            for kind in _ANOMALY
            for name in ("__init__", "__enter__", "__exit__")
            if name in vars(kind)
        ),
        _backends.ContextProp.__set__,
        type(_backends.cudnn.conv).__setattr__,
        type(vars(type(_backends.quantized))["engine"]).__set__,
        *(getattr(_backends, name).set_flags for name in ("cudnn", "mkldnn", "nnpack", "miopen", "opt_einsum")),
        _backends.mha.set_fastpath_enabled,
        *(getattr(_backends.cuda, f"enable_{way}_sdp") for way in ("flash", "mem_efficient", "math", "cudnn")),
        _backends.cuda.allow_fp16_bf16_reduction_math_sdp,
        _backends.cuda.cuBLASModule.__setattr__,
        *(getattr(_backends.cuda, f"preferred_{kind}_library") for kind in ("linalg", "blas", "rocm_fa")),
        _future.set_overwrite_module_params_on_conversion,
        _future.set_swap_module_params_on_conversion,
        torch.multiprocessing.set_sharing_strategy,
        *(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings),
        *(warnings.catch_warnings.__enter__, warnings.catch_warnings.__exit__),
        *(type(os.environ).__setitem__, type(os.environ).__delitem__),
        locale.setlocale,
        logging.disable,
    )
    return tuple(CodePatch(cast(FunctionType, setter), _noticed) for setter in plain)


_ANOMALY = (torch.autograd.anomaly_mode.detect_anomaly, torch.autograd.anomaly_mode.set_detect_anomaly)
_LEVELS = CodePatch(cast(FunctionType, logging.Logger.setLevel), _level_noticed)
"""There are too many loggers to look at each."""
