"""Names of onnxruntime that are refused, each with the reason: they can be imported, and using one is the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fx2onnx.base.errors import UserError

_COMPILED = "it loads compiled code, and this runner is NumPy alone"
_CONTEXT = "compiled parts of a model belong to a provider that this runner does not have"
_SPARSE = "values are dense here; sparse initializers of a file are read as dense ones"
_ADAPTERS = "there are no LoRA adapters; add their product to the weights, or make them inputs of the model"
_STREAM = "nothing runs beside the caller, so there is no stream to wait for"

REFUSED: dict[str, str] = {
    "AdapterFormat": _ADAPTERS,
    "LoraAdapter": _ADAPTERS,
    "ModelCompiler": _CONTEXT,
    "OrtEpAssignedNode": _CONTEXT,
    "OrtEpAssignedSubgraph": _CONTEXT,
    "OrtEpContextData": _CONTEXT,
    "OrtEpContextDataBuffer": _CONTEXT,
    "OrtExternalInitializerInfo": "weights in other files are found by the file itself",
    "OrtSyncStream": _STREAM,
    "SparseTensor": _SPARSE,
    "register_execution_provider_library": _COMPILED,
    "unregister_execution_provider_library": _COMPILED,
}
"""Names of the module that exist so that they can be imported; using one is E001, with this reason."""

REFUSED_METHODS: dict[str, str] = {
    "add_active_adapter": _ADAPTERS,
    "add_external_initializers_from_files_in_memory": "give the model's weights by add_external_initializers, as arrays",
    "as_sparse_tensor": _SPARSE,
    "ort_value_from_sparse_tensor": _SPARSE,
    "get_provider_graph_assignment_info": _CONTEXT,
    "register_custom_ops_library": f"{_COMPILED}; register a kernel with @fx2onnx.runner.kernel",
    "set_ep_context_data_read_func": _CONTEXT,
}
"""Methods of ``InferenceSession``, ``SessionOptions``, ``RunOptions`` and ``OrtValue`` that are E001, with this reason."""


def refusal(name: str) -> UserError:
    """The error for the use of a name that is not supported."""
    return UserError("E001", f"{name} is not supported", why={**REFUSED, **REFUSED_METHODS}[name])


class _Refused(type):
    """The type of names that are refused: making one, or asking one for something, is the error."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise refusal(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refusal(cls.__name__)


def refused(name: str) -> Any:
    """The stand-in for a name of ``REFUSED``."""
    return _Refused(name, (), {"__doc__": f"Not supported: {REFUSED[name]}."})


def refuses(name: str) -> Callable[..., Any]:
    """A method that onnxruntime has and that is an error here, as ``REFUSED_METHODS`` says."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(name)

    return refuse
