"""``InferenceSession``: a model ready to run, with onnxruntime's names and behaviour."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import record
from fx2onnx.base.metadata import CONDITIONS, PRODUCER
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.base.targets import check_target
from fx2onnx.files.staging import write_text
from fx2onnx.runner import fast
from fx2onnx.runner.execute import Executor
from fx2onnx.runner.feeds import REFUSE_TWO_SIZES, FeedChecker, NodeArg, fix_denoted, logger
from fx2onnx.runner.fuse import fuse
from fx2onnx.runner.options import GraphOptimizationLevel, RunOptions, SessionOptions, refuses
from fx2onnx.runner.ort_value import IOBinding, OrtValue, as_plain
from fx2onnx.semantics.kernels.contrib import NCHWC
from fx2onnx.semantics.kernels.threads import threads
from fx2onnx.semantics.limits import DEFAULT_LIMIT_BYTES, MAX_ITERATIONS, iteration_budget, memory_limit
from fx2onnx.semantics.reading.build import build_program
from fx2onnx.semantics.reading.load import load_model
from fx2onnx.semantics.reading.program import Program, Slot, Step
from fx2onnx.semantics.reading.static_shapes import check_static_shapes, sizes_of_outputs
from fx2onnx.semantics.types import Value, describe, is_tensor_type, listed, type_name

if TYPE_CHECKING:
    from fx2onnx.sizes.stated import SizeCondition

PROVIDER = "CPUExecutionProvider"
NO_VERSION = (1 << 63) - 1
"""The version of a model whose file has none, as in onnxruntime."""
LOG_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR, 4: logging.CRITICAL}


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of the model file."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@public_methods
class InferenceSession:
    """Load once, ``run`` often; ``run`` may be called from several threads at a time."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._options = sess_options or SessionOptions()
        _check_providers(providers or self._options.providers)
        self._limit_bytes = self._options.config_int("fx2onnx.memory_limit_bytes", DEFAULT_LIMIT_BYTES)
        self._loop_limit = self._options.config_int("fx2onnx.loop_limit", MAX_ITERATIONS)
        _set_level(LOG_LEVELS.get(self._options.log_severity_level, logging.WARNING))
        start_ns = time.perf_counter_ns()
        with memory_limit(self._limit_bytes), record("session"):
            folder = self._options.config_text("session.model_external_initializers_file_folder_path")
            loaded = load_model(path_or_bytes, folder)
            if self._options.config_int("fx2onnx.check_digests", 0):
                from fx2onnx.irx.model_files import check_data_digests

                check_data_digests(loaded.proto, loaded.folders)
            self._model_path = loaded.path
            self._meta = _metadata(loaded.proto)
            self._program = build_program(
                loaded, {name: as_plain(given) for name, given in self._options.external_initializers.items()}
            )
            if any(entry.domain == NCHWC for entry in loaded.proto.opset_import):
                _lay_out(self._program, self._options)
            fixed = self._options.free_dimension_overrides
            if self._options.free_denotation_overrides:
                fixed = fix_denoted(self._program, loaded.proto.graph, self._options.free_denotation_overrides, fixed)
            with np.errstate(all="ignore"):
                check_static_shapes(self._program, fixed)
            if self._options.optimized_model_filepath:
                from fx2onnx.runner.dump import save_optimized

                save_optimized(loaded, self._options)
            if self._options.graph_optimization_level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED:
                fuse(self._program)
                fast.improve(self._program, bool(self._options.config_int(fast.ENTRY, 1)))
            self._executor = Executor(self._program)
        slots = self._program.slots
        self._inputs = [_node_arg(slots[index].name, slots[index], fixed) for index in self._program.inputs]
        self._output_names = [info.name for info in loaded.proto.graph.output]
        self._output_args: list[NodeArg] | None = None
        self._optional = frozenset(slots[index].name for index in self._program.defaults)
        says_sizes = self._meta.producer_name == PRODUCER
        refuses = bool(self._options.config_int(REFUSE_TWO_SIZES, 0))
        conditions = _conditions(self._meta.custom_metadata_map.get(CONDITIONS, ""))
        given = self._inputs, self._optional, fixed, conditions
        self._checker = FeedChecker(*given, says_sizes=says_sizes, refuses_two_sizes=refuses)
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._profile_start_ns = start_ns
        self._is_profiling = self._options.enable_profiling
        if self._is_profiling:
            self._add_event("model_loading", "Session", start_ns, time.perf_counter_ns(), {})

    def get_inputs(self) -> list[NodeArg]:
        return [arg for arg in self._inputs if arg.name not in self._optional]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return [arg for arg in self._inputs if arg.name in self._optional]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs; sizes that follow from the graph are numbers, also where the file has a name or nothing."""
        with self._lock:
            if self._output_args is None:
                fixed, slots = self._checker.fixed, self._program.slots
                names = zip(self._output_names, self._program.outputs, strict=True)
                self._output_args = self._refined([_node_arg(name, slots[index], fixed) for name, index in names])
            return list(self._output_args)

    def _refined(self, args: list[NodeArg]) -> list[NodeArg]:
        if all(arg.dims is not None and all(isinstance(dim, int) for dim in arg.dims) for arg in args):
            return args
        with memory_limit(self._limit_bytes), np.errstate(all="ignore"):
            found = sizes_of_outputs(self._program, self._options.free_dimension_overrides)
        return [arg.refined(sizes) if sizes is not None else arg for arg, sizes in zip(args, found, strict=True)]

    def get_modelmeta(self) -> ModelMetadata:
        return self._meta

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def get_session_options(self) -> SessionOptions:
        return self._options

    @property
    def program(self) -> Program:
        """The steps that ``run`` executes."""
        return self._program

    @property
    def executor(self) -> Executor:
        """The executor of the program; it holds the plans made so far."""
        return self._executor

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Value]:
        """The named outputs (all where None) for the feeds.

        Raises: UserError E401 for feeds or names that do not fit, E403 and E404 for a node that fails.
        """
        wanted = self._wanted(output_names)
        ordered = self.check_feeds(input_feed if run_options is None else run_options.with_adapters(input_feed))
        if run_options is not None and run_options.terminate:
            raise UserError("E403", "the run was stopped because RunOptions.terminate is set")
        start_ns = time.perf_counter_ns()
        with (
            memory_limit(self._limit_bytes),
            iteration_budget(self._loop_limit),
            threads(self._options.intra_op_num_threads),
            np.errstate(all="ignore"),
        ):
            outputs = self._executor.run(ordered, self._observe if self._is_profiling else None)
        if self._is_profiling:
            self._add_event("model_run", "Session", start_ns, time.perf_counter_ns(), {})
        return [outputs[position] for position in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Value], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """``run`` in a thread of its own; then ``callback`` with the outputs, ``user_data``, and an error's text or ``""``."""
        feeds = dict(input_feed)

        def work() -> None:
            try:
                outputs, error_text = self.run(output_names, feeds, run_options), ""
            except Fx2OnnxError as error:
                outputs, error_text = [], str(error)
            callback(outputs, user_data, error_text)

        threading.Thread(target=work, name="fx2onnx-run-async").start()

    def check_feeds(self, input_feed: Mapping[str, Any]) -> list[Value]:
        """The feeds as arrays in the order of the program's inputs. Raises: UserError E401."""
        feeds = self._checker.check(input_feed)
        inputs = zip(self._program.inputs, self._checker.args, strict=True)
        return [feeds[name] if name in feeds else self._program.defaults[index] for index, name in inputs]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """``run`` with values wrapped as ``OrtValue``."""
        feeds = {name: as_plain(value) for name, value in input_dict.items()}
        return [OrtValue(value) for value in self.run(output_names, feeds, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Any,
    ) -> None:
        """``run`` that appends the outputs to ``fetches``."""
        given = dict(zip(feed_names, feeds, strict=True))
        for value in self.run_with_ort_values(fetch_names, given, run_options):
            fetches.append(value)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run(self, run_options)

    def set_providers(self, providers: Sequence[Any], provider_options: Sequence[Any] | None = None) -> None:
        """Accept the one provider there is, and warn of others."""
        _check_providers(providers)

    def get_input_memory_infos(self) -> list[Any]:
        """The memory of each input: the machine's own."""
        from fx2onnx.runner.devices import OrtMemoryInfo

        return [OrtMemoryInfo() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[Any]:
        """The memory of each output: the machine's own."""
        from fx2onnx.runner.devices import OrtMemoryInfo

        return [OrtMemoryInfo() for _ in self._output_names]

    def get_input_epdevices(self) -> list[Any]:
        """The processor of each input: there is one."""
        from fx2onnx.runner.devices import OrtEpDevice

        return [OrtEpDevice() for _ in self.get_inputs()]

    get_provider_graph_assignment_info = refuses("get_provider_graph_assignment_info")

    def get_tuning_results(self) -> list[Any]:
        """Nothing is tuned by trial."""
        return []

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Accepted: nothing is tuned by trial."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted: the one provider has no such options."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted: no graph of a processor is kept."""

    def enable_fallback(self) -> None:
        """Do nothing: there is one provider, so nothing to fall back to."""

    def disable_fallback(self) -> None:
        """Do nothing: there is one provider, so nothing to fall back to."""

    def _wanted(self, output_names: Sequence[str] | None) -> list[int]:
        if not output_names:
            return list(range(len(self._output_names)))
        places = {name: place for place, name in reversed([*enumerate(self._output_names)])}
        for name in output_names:
            if name not in places:
                raise UserError(
                    "E401",
                    f"the model has no output {name!r}",
                    why=f"its outputs are {listed(map(repr, self._output_names))}",
                    next="fx2onnx inspect FILE prints the outputs, and session.get_outputs() has them",
                )
        return [places[name] for name in output_names]

    def _observe(self, program: Program, step: Step, start_ns: int, end_ns: int, results: Sequence[Value]) -> None:
        args = {"op_name": step.op_type, "node": str(step.origin), "outputs": [describe(value) for value in results]}
        self._add_event(step.name or f"{program.name}/{step.index}:{step.op_type}", "Node", start_ns, end_ns, args)

    def _add_event(self, name: str, category: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        with self._lock:
            self._events.append(
                {
                    "cat": category,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "ph": "X",
                    "name": name,
                    "ts": (start_ns - self._profile_start_ns) // 1000,
                    "dur": (end_ns - start_ns) // 1000,
                    "args": args,
                }
            )

    def get_profiling_start_time_ns(self) -> int:
        return self._profile_start_ns

    def end_profiling(self) -> str:
        """Write the Chrome trace and stop; returns its path, or an empty string where nothing is profiled."""
        if not self._is_profiling:
            return ""
        self._is_profiling = False
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        path = f"{self._options.profile_file_prefix}_{stamp}.json"
        with self._lock:
            events, self._events = self._events, []
        write_text(check_target(path, what="the profile"), json.dumps(events))
        return path


def _set_level(level: int) -> None:
    if logger.level != level:  # setting it empties the caches of all loggers
        logger.setLevel(level)


def _lay_out(program: Program, options: SessionOptions) -> None:
    """Put the filters of a file that onnxruntime laid out for one CPU in plain order."""
    from fx2onnx.semantics.kernels.contrib import nchwc

    key = "fx2onnx.nchwc_block"
    try:
        is_open = nchwc.lay_out(program, options.config_int(key, 0))
    except ValueError as error:
        raise UserError("E303", "the model's convolutions in blocks cannot be read", why=str(error)) from error
    if is_open:
        logger.warning(
            "the file does not say how many channels its blocks of com.microsoft.nchwc have; taken for %d, as onnxruntime"
            " does on this CPU; the config entry %r says it, and a file of the level ORT_ENABLE_EXTENDED has no blocks",
            nchwc.block_of_this_machine(),
            key,
        )


def _check_providers(providers: Sequence[Any] | None) -> None:
    names = [item[0] if isinstance(item, tuple) else item for item in providers or ()]
    if names and PROVIDER not in names:
        logger.warning("providers %s are not available; running on %s", names, PROVIDER)


def _node_arg(name: str, slot: Slot, fixed: Mapping[str, int]) -> NodeArg:
    dims = None if slot.shape is None else [fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in slot.shape]
    shape = dims if dims is not None and is_tensor_type(slot.type) else []
    return NodeArg(name, type_name(slot.type), shape, slot.type, dims)


def _conditions(text: str) -> Sequence[SizeCondition]:
    """The conditions on sizes in the file's metadata; few files have some."""
    if not text:
        return ()
    from fx2onnx.sizes.stated import read

    return read(text)


def _metadata(proto: Any) -> ModelMetadata:
    graph = proto.graph
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=graph.doc_string,
        version=proto.model_version if proto.HasField("model_version") else NO_VERSION,
        custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
    )
