"""``SessionOptions``, ``RunOptions`` and the enumerations that onnxruntime scripts use."""

from __future__ import annotations

import enum
from typing import Any

from fx2onnx.base.errors import UserError


class GraphOptimizationLevel(enum.IntEnum):
    """How much the graph is rewritten before it runs."""

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


CONFIG_KEYS = {
    "fx2onnx.memory_limit_bytes": "the most bytes one tensor may take; default: four fifths of the machine's memory",
    "fx2onnx.loop_limit": "the most iterations of one Loop or Scan; default: 10 million",
    "session.model_external_initializers_file_folder_path": "the folder of external data for a model given as bytes",
}
"""The config entries that mean something here. Others are kept and ignored, as they steer other engines."""


class SessionOptions:
    """Settings of a session, with onnxruntime's names and defaults."""

    def __init__(self) -> None:
        self.graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_profiling = False
        self.profile_file_prefix = "fx2onnx_profile"
        self.optimized_model_filepath = ""
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_cpu_mem_arena = True
        self.use_deterministic_compute = True
        self.use_per_session_threads = True
        self.free_dimension_overrides: dict[str, int] = {}
        self.free_denotation_overrides: dict[str, int] = {}
        self._config: dict[str, str] = {}
        self._external: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and "_config" in self.__dict__ and name not in self.__dict__:
            raise UserError(
                "E001", f"SessionOptions has no setting {name!r}", next=f"use one of {', '.join(self.settings())}"
            )
        object.__setattr__(self, name, value)

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

    @property
    def external_initializers(self) -> dict[str, Any]:
        return self._external


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
        self._config: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._config[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise UserError("E001", f"no config entry {key!r} was set")
        return self._config[key]
