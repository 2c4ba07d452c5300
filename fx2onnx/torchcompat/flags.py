"""What torch has set for this thread and for the process: how each is read and put back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.utils.parametrize

from fx2onnx.torchcompat import thread_state

_C: Any = torch._C
_backends: Any = torch.backends
_opt_einsum = importlib.import_module("torch.backends.opt_einsum")


def _plain(module: object) -> object:
    """The module itself, where a version of torch has put an object of a class in its place."""
    return getattr(module, "m", module)


class Flag(NamedTuple):
    name: str
    get: Callable[[], object]
    set: Callable[..., object]


def attribute(name: str, holder: object, attribute: str) -> Flag:
    return Flag(name, lambda: getattr(holder, attribute), lambda value: setattr(holder, attribute, value))


def _both(name: str, functions: str, holder: object = _C) -> Iterator[Flag]:
    """A flag of two functions, whose names say ``get`` and ``set`` in place of ``*``; where it is a pair, ``set`` takes two.
    None where this torch has no such functions.
    """
    get, put = (getattr(holder, functions.replace("*", verb), None) for verb in ("get", "set"))
    if get is not None and put is not None:
        yield Flag(name, get, lambda old: put(*old) if isinstance(old, tuple) else put(old))


def _of(name: str, get: Callable[..., object], put: Callable[..., object], *places: str) -> Flag:
    """A flag whose functions take first of what it is one."""
    return Flag(f"{name}: {' '.join(places)}", partial(get, *places), partial(put, *places))


_PRINT_OPTIONS = vars(torch._tensor_str.PRINT_OPTS)
_DENORMAL = 5e-324
_PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)


def _precisions() -> Iterator[Flag]:
    if hasattr(_C, "_get_fp32_precision_getter"):  # since torch 2.9
        for one in _PRECISIONS:
            yield _of("float32 precision", _C._get_fp32_precision_getter, _C._set_fp32_precision_setter, *one)


mkldnn_is_enabled: Callable[[], bool] = _C._get_mkldnn_enabled

TORCH_OF_THREAD = (
    Flag("gradients", torch.is_grad_enabled, _C._set_grad_enabled),
    Flag("forward gradients", _C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
    Flag("backward in threads", _C._is_multithreading_enabled, _C._set_multithreading_enabled),
    Flag("view replay", _C._is_view_replay_enabled, _C._set_view_replay_enabled),
    *_both("__torch_function__", "_*_torch_function_state"),
    *(
        _of("autocast dtype", torch.get_autocast_dtype, torch.set_autocast_dtype, kind)
        for kind in thread_state.AUTOCAST
    ),
    Flag("autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    Flag("threads", torch.get_num_threads, torch.set_num_threads),
    Flag("flush denormals", lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    Flag("default device", thread_state.default_device_context, thread_state.set_default_device_context),
    Flag("functions' modes", thread_state.function_modes, thread_state.set_function_modes),
    Flag("function transforms", thread_state.transforms, thread_state.set_transforms),
    Flag("operators' modes", thread_state.dispatch_modes, thread_state.set_dispatch_modes),
    Flag("dispatch keys, autocast", thread_state.dispatch_keys, thread_state.set_dispatch_keys),
)
"""What each thread has of its own."""

TORCH_OF_PROCESS = (
    Flag("default dtype", torch.get_default_dtype, _C._set_default_dtype),
    Flag(
        "deterministic algorithms",
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        lambda old: _C._set_deterministic_algorithms(old[0], warn_only=old[1]),
    ),
    *_both("uninitialized memory is filled", "_*_deterministic_fill_uninitialized_memory"),
    Flag(
        "anomaly detection",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda old: torch.set_anomaly_enabled(*old),
    ),
    *_both("warn always", "_*_warnAlways"),
    Flag("sparse invariants", _C._check_sparse_tensor_invariants, _C._set_check_sparse_tensor_invariants),
    Flag("modes that are on", thread_state.mode_notes, thread_state.set_mode_notes),
    attribute("backends' flags can be set", _plain(_backends), "__allow_nonbracketed_mutation_flag"),
    Flag("attention: fast path", lambda: _backends.mha._is_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    Flag("attention: flash", _C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    Flag("attention: memory-efficient", _C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    Flag("attention: math", _C._get_math_sdp_enabled, _C._set_sdp_use_math),
    Flag("attention: cuDNN", _C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
    Flag("attention: overrideable", _C._get_overrideable_sdp_enabled, _C._set_sdp_use_overrideable),
    *_both("attention: reduced precision", "_*_math_sdp_allow_fp16_bf16_reduction"),
    *_both("attention: order", "_*_sdp_priority_order"),
    *_both("cuDNN", "_*_cudnn_enabled"),
    *_both("cuDNN: benchmark", "_*_cudnn_benchmark"),
    *_both("cuDNN: deterministic", "_*_cudnn_deterministic"),
    *_both("cuDNN: depthwise kernel", "_*_cudnn_depthwise_kernel"),
    *_both("oneDNN", "_*_mkldnn_enabled"),
    *_both("oneDNN: deterministic", "_*_mkldnn_deterministic"),
    *_both("NNPACK", "_*_nnpack_enabled"),
    *_both("MIOpen: immediate", "_*_miopen_immediate"),
    *_both("quantized engine", "_*_qengine"),
    *_both("linear algebra library", "_*_linalg_preferred_backend"),
    *_both("BLAS library", "_*_blas_preferred_backend"),
    *_both("ROCm attention library", "_*_rocm_fa_preferred_backend"),
    attribute("opt_einsum", _plain(_opt_einsum), "enabled"),
    attribute("opt_einsum: strategy", _plain(_opt_einsum), "strategy"),
    *_both("cuBLAS: float16 reductions", "_*_cublas_allow_fp16_reduced_precision_reduction"),
    *_both("cuBLAS: bfloat16 reductions", "_*_cublas_allow_bf16_reduced_precision_reduction"),
    *_both("cuBLAS: float16 sums", "_*_cublas_allow_fp16_accumulation"),
    *_both("CPU: float16 reductions", "_*_cpu_allow_fp16_reduced_precision_reduction"),
    *_both("cuBLAS: TF32", "_*_cublas_allow_tf32"),
    *_both("cuDNN: TF32", "_*_cudnn_allow_tf32"),
    *_both("oneDNN: TF32", "_*_onednn_allow_tf32"),
    *_both("float32 products", "_*_float32_matmul_precision"),
    *_precisions(),
    *_both("conversion overwrites parameters", "*_overwrite_module_params_on_conversion", torch.__future__),
    *_both("conversion swaps parameters", "*_swap_module_params_on_conversion", torch.__future__),
    attribute("parametrizations are cached", torch.nn.utils.parametrize, "_cache_enabled"),
    Flag("torch's print options", _PRINT_OPTIONS.copy, _PRINT_OPTIONS.update),
)
"""What all threads have together."""
