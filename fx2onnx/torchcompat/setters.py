"""Functions of Python that set what all threads have together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fx2onnx.torchcompat.finding import find, found

_KINDS = ("autograd.anomaly_mode.detect_anomaly", "autograd.anomaly_mode.set_detect_anomaly")
_BACKENDS = ("cudnn", "mkldnn", "nnpack", "miopen", "opt_einsum")
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_LIBRARIES = ("linalg", "blas", "rocm_fa")


def torch_setters() -> Iterator[Callable[..., object]]:
    """Those that this torch has."""
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
