"""``torch.onnx.export``'s own phases, measured from outside: its functions are wrapped by the recorder's spans.

The names are torch's private ones, so all of them stand in this one table; one that a version of torch does not have is
left out, and the profile names it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fx2onnx.base.events import details

_CORE = "torch.onnx._internal.exporter._core"
_SCRIPT = "torch.onnx._internal.torchscript_exporter.utils"


@dataclass(frozen=True)
class Probe:
    """A function to wrap. ``name`` of its span; None: the class of its first argument, or the operator among them."""

    module: str
    attribute: str
    name: str | None
    label: Callable[[tuple[Any, ...]], object] | None = None


def _class_of_self(args: tuple[Any, ...]) -> object:
    return type(args[0]).__name__


def _operator(position: int) -> Callable[[tuple[Any, ...]], object]:
    def found(args: tuple[Any, ...]) -> object:
        item = args[position] if len(args) > position else "?"
        return getattr(item, "target", item)

    return found


def _kind_of_node(args: tuple[Any, ...]) -> object:
    return args[2].kind()


DYNAMO = (
    Probe("torch.onnx._internal.exporter._registration", "ONNXRegistry.from_torchlib", "registry"),
    Probe("torch.onnx._internal.exporter._capture_strategies", "CaptureStrategy.__call__", "capture"),
    Probe("torch.export", "export", "torch.export"),
    Probe("torch.export._trace", "_export_to_aten_ir_make_fx", "make_fx"),
    Probe("torch.export._trace", "_export_to_torch_ir", "dynamo"),
    Probe("torch.export._trace", "_non_strict_export", "non-strict trace"),
    Probe("torch.export.exported_program", "ExportedProgram.run_decompositions", "run_decompositions"),
    Probe("torch.export._trace", "_export_to_aten_ir", "aot export"),
    Probe("torch._functorch._aot_autograd.graph_capture", "_create_graph", "trace joint graph"),
    Probe("torch.fx.experimental.proxy_tensor", "dispatch_trace", "trace with proxies"),
    Probe("torch.fx.experimental.proxy_tensor", "proxy_call", None, _operator(1)),
    Probe("torch.fx.graph_module", "GraphModule.recompile", "recompile"),
    Probe("torch._subclasses.fake_tensor", "FakeTensorMode.dispatch", "fake op"),
    Probe(_CORE, "_prepare_exported_program_for_export", "decompose"),
    Probe("torch.onnx._internal.exporter._fx_passes", "decompose_with_registry", "decompose with registry"),
    Probe("torch.onnx._internal.exporter._fx_passes", "insert_type_promotion_nodes", "insert type promotion"),
    Probe("torch.onnx._internal.exporter._fx_passes", "remove_assertion_nodes", "remove assertions"),
    Probe(_CORE, "_exported_program_to_onnx_program", "translate"),
    Probe(_CORE, "_handle_call_function_node_with_lowering", None, _operator(1)),
    Probe(_CORE, "_set_shape_types", "set shapes"),
    Probe("onnxscript.version_converter", "convert_version", "convert version"),
    Probe("torch.onnx._internal.exporter._onnx_program", "ONNXProgram.optimize", "optimize"),
    Probe("onnx_ir.passes", "PassBase.__call__", None, _class_of_self),
    Probe("torch.onnx._internal.exporter._onnx_program", "ONNXProgram.save", "save"),
    Probe("onnx_ir.external_data", "unload_from_model", "write weights"),
    Probe("onnx_ir.external_data", "convert_tensors_to_external", "write weights"),
    Probe("onnx_ir.serde", "serialize_model", "serialize"),
    Probe("onnx", "save", "write model"),
)
TORCHSCRIPT = (
    Probe(_SCRIPT, "_model_to_graph", "convert"),
    Probe(_SCRIPT, "_create_jit_graph", "capture"),
    Probe(_SCRIPT, "_trace_and_get_graph_from_model", "trace"),
    Probe(_SCRIPT, "_optimize_graph", "optimize graph"),
    Probe(_SCRIPT, "_run_symbolic_function", None, _kind_of_node),
    Probe(_SCRIPT, "_get_named_param_dict", "parameters"),
    Probe("torch._C", "Graph._export_onnx", "serialize"),
    Probe("torch.onnx._internal.torchscript_exporter.onnx_proto_utils", "_add_onnxscript_fn", "add functions"),
    Probe("torch.onnx._internal.torchscript_exporter.onnx_proto_utils", "_export_file", "save"),
)


@contextlib.contextmanager
def probed(probes: tuple[Probe, ...]) -> Iterator[list[str]]:
    """Wrap the functions for the block; yields the names of those that this torch does not have."""
    undo: list[tuple[Any, str, Any]] = []
    missing: list[str] = []
    try:
        for probe in probes:
            owner = _owner(probe)
            name = probe.attribute.rpartition(".")[2]
            original = vars(owner).get(name) if owner is not None else None
            if original is None:
                missing.append(f"{probe.module}.{probe.attribute}")
                continue
            setattr(owner, name, _wrapped(original, probe))
            undo.append((owner, name, original))
        yield missing
    finally:
        for owner, name, original in reversed(undo):
            setattr(owner, name, original)


def _owner(probe: Probe) -> Any:
    try:
        owner: Any = importlib.import_module(probe.module)
    except ImportError:
        return None
    for part in probe.attribute.split(".")[:-1]:
        owner = getattr(owner, part, None)
    return owner


def _wrapped(original: Any, probe: Probe) -> Any:
    kind = type(original) if isinstance(original, staticmethod | classmethod) else None
    function = original.__func__ if kind is not None else original

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = details()
        if recorder is None:
            return function(*args, **kwargs)
        start_ns = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            recorder.detail(probe.name if probe.label is None else probe.label(args), start_ns)

    return timed if kind is None else kind(timed)
