"""What torch has set for this thread and for the process: how each is read, set and put back, and modes that an interrupt may leave."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.utils.parametrize
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from fx2onnx.torchcompat.versions import find, found

DispatchModes: TypeAlias = tuple[list[TorchDispatchMode], SchemaCheckMode | None]

_C: Any = torch._C
_overrides: Any = torch.overrides
_python_dispatch: Any = torch.utils._python_dispatch
_functorch = torch._C._functorch


def default_device_context() -> object:
    """The mode that ``torch.set_default_device`` entered in this thread, if anything."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def set_default_device_context(context: object) -> None:
    torch.set_default_device(getattr(context, "device", None))
    if context is None:  # torch 2.8 would ask None for its device
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


def list_device_constructors() -> None:
    """torch notes once, at the first use of a default device, which functions make tensors: not while one is replaced."""
    _device_constructors()


def function_modes() -> list[TorchFunctionMode]:
    if not _C._len_torch_function_stack():
        return []
    found: list[TorchFunctionMode] = _overrides._get_current_function_mode_stack()
    context = default_device_context()
    return [mode for mode in found if mode is not context]


def set_function_modes(modes: list[TorchFunctionMode]) -> None:
    context = default_device_context()
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    for mode in ([] if context is None else [context]) + modes:
        _C._push_on_torch_function_stack(mode)


def dispatch_modes() -> DispatchModes:
    """The modes on operators, and the one that sees them before composite ones are split."""
    stack = _python_dispatch._get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else []
    return stack, torch._ops._mode_stack_state_for_pre_dispatch._schema_check_mode


def set_dispatch_modes(modes: DispatchModes) -> None:
    for mode in reversed(_python_dispatch._get_current_dispatch_mode_stack()):
        _C._pop_torch_dispatch_stack(getattr(mode, "_mode_key", None))
    for mode in modes[0]:
        _C._push_on_torch_dispatch_stack(mode)
    torch._ops._mode_stack_state_for_pre_dispatch._schema_check_mode = modes[1]


_IGNORED_BY_COMPILER = "_is_in_any_mode_without_ignore_compile_internals"
_NOTES = tuple(
    name
    for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", _IGNORED_BY_COMPILER)
    if hasattr(_python_dispatch, name)
)


def mode_notes() -> tuple[bool, ...]:
    """torch's notes, for all threads, of modes that are on in some."""
    space = vars(_python_dispatch)
    return tuple([space[name] for name in _NOTES])


def set_mode_notes(notes: tuple[bool, ...]) -> None:
    vars(_python_dispatch).update(zip(_NOTES, notes, strict=True))
    if _IGNORED_BY_COMPILER in _NOTES:
        _python_dispatch.set_is_in_mode_without_ignore_compile_internals(notes[-1])


def dispatch_keys() -> tuple[int, int]:
    """The dispatch keys that are on and off; autocast is on for a kind of device where its key is not off."""
    return _C._dispatch_tls_local_include_set().raw_repr(), _C._dispatch_tls_local_exclude_set().raw_repr()


def set_dispatch_keys(keys: tuple[int, int]) -> None:
    include, exclude = (_C.DispatchKeySet.from_raw_repr(key) for key in keys)
    for key in _KEYS:
        if _C._dispatch_tls_is_dispatch_key_included(key) != include.has(key):
            _C._dispatch_tls_set_dispatch_key_included(key, include.has(key))
        if _C._dispatch_tls_is_dispatch_key_excluded(key) != exclude.has(key):
            _C._dispatch_tls_set_dispatch_key_excluded(key, exclude.has(key))
    off = str(exclude)
    for kind, name in AUTOCAST.items():
        torch.set_autocast_enabled(kind, f"Autocast{name}" not in off)


_KEYS = tuple(
    getattr(_C.DispatchKey, name)
    for name in (
        "Python", "PythonTLSSnapshot", "PythonDispatcher", "PreDispatch", "BackendSelect", "ADInplaceOrView", "Functionalize",
        "FuncTorchDynamicLayerBackMode", "FuncTorchDynamicLayerFrontMode", "FuncTorchBatched", "FuncTorchVmapMode",
        "FuncTorchGradWrapper", "Conjugate", "Negative", "Tracer", "Autograd", "AutogradCPU", "AutogradCUDA", "AutogradMeta",
    )
    if hasattr(_C.DispatchKey, name)
)  # fmt: skip


AUTOCAST = {
    "cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU", "mtia": "MTIA", "maia": "MAIA", "xla": "XLA",
    "ipu": "IPU", "privateuseone": "PrivateUse1",
}  # fmt: skip
"""Kinds of devices, as their keys name them."""


def transforms() -> int:
    """The number of function transforms: how many of ``torch.vmap``, ``torch.func.grad`` and the like are running."""
    return int(_functorch.get_dynamic_layer_stack_depth())


def set_transforms(depth: int) -> None:
    if transforms() > depth:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


_KINDS = ("autograd.anomaly_mode.detect_anomaly", "autograd.anomaly_mode.set_detect_anomaly")
_BACKENDS = ("cudnn", "mkldnn", "nnpack", "miopen", "opt_einsum")
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_LIBRARIES = ("linalg", "blas", "rocm_fa")


def torch_setters() -> Iterator[Callable[..., object]]:
    """Functions of Python that set what all threads have together, of those that this torch has."""
    yield from found(
        "set_default_dtype",
        "set_default_tensor_type",
        "use_deterministic_algorithms",
        "set_deterministic_debug_mode",
        "set_float32_matmul_precision",
        "set_warn_always",
        "set_printoptions",
        "backends.ContextProp.__set__",
        *(f"backends.{name}.set_flags" for name in _BACKENDS),
        "backends.mha.set_fastpath_enabled",
        *(f"backends.cuda.enable_{way}_sdp" for way in _SDP),
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        "backends.cuda.cuBLASModule.__setattr__",
        *(f"backends.cuda.preferred_{kind}_library" for kind in _LIBRARIES),
        "__future__.set_overwrite_module_params_on_conversion",
        "__future__.set_swap_module_params_on_conversion",
        "multiprocessing.set_sharing_strategy",
    )
    for kind in found(*_KINDS):
        yield from (vars(kind)[name] for name in ("__init__", "__enter__", "__exit__") if name in vars(kind))
    precision = find("backends.cudnn.conv")
    if precision is not None:
        yield type(precision).__setattr__
    yield type(vars(type(find("backends.quantized")))["engine"]).__set__


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
    *(_of("autocast dtype", torch.get_autocast_dtype, torch.set_autocast_dtype, kind) for kind in AUTOCAST),
    Flag("autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    Flag("threads", torch.get_num_threads, torch.set_num_threads),
    Flag("flush denormals", lambda: _DENORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    Flag("default device", default_device_context, set_default_device_context),
    Flag("functions' modes", function_modes, set_function_modes),
    Flag("function transforms", transforms, set_transforms),
    Flag("operators' modes", dispatch_modes, set_dispatch_modes),
    Flag("dispatch keys, autocast", dispatch_keys, set_dispatch_keys),
)
"""Flags that each thread has of its own."""

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
    Flag("modes that are on", mode_notes, set_mode_notes),
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
"""Flags that all threads have together."""
