"""``SessionOptions``, ``RunOptions``, the enumerations that onnxruntime scripts use, and the names that are refused."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public_methods

_COMPILED = "it loads compiled code, and this runner is NumPy alone"
_CONTEXT = "compiled parts of a model belong to a provider that this runner does not have"
_SPARSE = "values are dense here; sparse initializers of a file are read as dense ones"
_STREAM = "nothing runs beside the caller, so there is no stream to wait for"

REFUSED: dict[str, str] = {
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


class GraphOptimizationLevel(enum.IntEnum):
    """The level to which the graph is rewritten before it runs."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Accepted for compatibility; steps always run one after the other."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Accepted for compatibility."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@public_methods
class SessionOptions:
    """Settings of a session, with onnxruntime's names and defaults."""

    free_dimension_overrides: dict[str, int]
    free_denotation_overrides: dict[str, int]
    _config: dict[str, str]
    _external: dict[str, Any]
    _providers: list[str]

    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_profiling: bool = False
    profile_file_prefix: str = "fx2onnx_profile"
    optimized_model_filepath: str = ""
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_cpu_mem_arena: bool = True
    use_deterministic_compute: bool = True
    use_per_session_threads: bool = True

    def __init__(self) -> None:
        self.__dict__.update(_DEFAULTS)
        self.__dict__.update(
            free_dimension_overrides={}, free_denotation_overrides={}, _config={}, _external={}, _providers=[]
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise UserError(
                "E001", f"SessionOptions has no setting {name!r}", next=f"use one of {', '.join(self.settings())}"
            )
        default = _DEFAULTS.get(name)
        wanted = (
            (str, os.PathLike)
            if isinstance(default, str)
            else (int, np.integer, np.bool_)
            if default is not None
            else object
        )
        if not isinstance(value, wanted):
            kind = "text" if isinstance(default, str) else "a number"
            raise UserError("E001", f"the setting {name!r} is {kind}, not {value!r:.80}")
        self.__dict__[name] = os.fspath(value) if isinstance(value, os.PathLike) else value

    def settings(self) -> list[str]:
        return sorted(name for name in self.__dict__ if not name.startswith("_"))

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._config[key] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise UserError("E001", f"no config entry {key!r} was set")
        return self._config[key]

    def config_int(self, key: str, default: int) -> int:
        """A config entry as a whole number. Raises: UserError E001 where it is none."""
        text = self._config.get(key)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise UserError("E001", f"the config entry {key!r} must be a whole number, not {text!r}") from None

    def config_text(self, key: str) -> str:
        return self._config.get(key, "")

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the symbolic dim ``name`` of all inputs."""
        self.free_dimension_overrides[name] = int(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        self.free_denotation_overrides[denotation] = int(value)

    def add_initializer(self, name: str, value: Any) -> None:
        """Use ``value`` for the initializer ``name`` in place of the file's."""
        self._external[name] = value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        self._external.update(zip(names, values, strict=True))

    register_custom_ops_library = refuses("register_custom_ops_library")
    add_external_initializers_from_files_in_memory = refuses("add_external_initializers_from_files_in_memory")
    set_ep_context_data_read_func = refuses("set_ep_context_data_read_func")

    def clear_ep_context_data_read_func(self) -> None:
        """Nothing to take away."""

    def add_provider(self, name: str, options: Any = None) -> None:
        """Ask for a provider; another than the CPU's is answered with a warning when the session is made."""
        self._providers.append(name)

    def add_provider_for_devices(self, devices: list[Any], options: Any = None) -> None:
        """Ask for the provider of each device."""
        self._providers += [device.ep_name for device in devices]

    def has_providers(self) -> bool:
        return bool(self._providers)

    @property
    def providers(self) -> list[str]:
        """The providers that ``add_provider`` asked for."""
        return self._providers

    def set_provider_selection_policy(self, policy: Any) -> None:
        """Accepted: there is one processor."""

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        """Accepted: there is one processor."""

    def set_load_cancellation_flag(self, value: bool) -> None:
        """Accepted: making a session is not interrupted."""

    @property
    def external_initializers(self) -> dict[str, Any]:
        return self._external


_DEFAULTS = {
    name: getattr(SessionOptions, name) for name in SessionOptions.__annotations__ if hasattr(SessionOptions, name)
}


@public_methods
class RunOptions:
    """Settings of one ``run``."""

    def __init__(self) -> None:
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.tag = ""
        self.terminate = False
        self.only_execute_path_to_fetches = False
        self.training_mode = False
        self._adapters: list[Mapping[str, Any]] = []
        self._config: dict[str, str] = {}

    def add_active_adapter(self, adapter: Any) -> None:
        """Take the arrays of a ``LoraAdapter`` for inputs that have defaults."""
        self._adapters.append(adapter.parameters)

    def with_adapters(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The feeds, and the arrays of the adapters for inputs without one."""
        for parameters in self._adapters:
            feeds = {**parameters, **feeds}
        return feeds

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._config[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise UserError("E001", f"no config entry {key!r} was set")
        return self._config[key]
