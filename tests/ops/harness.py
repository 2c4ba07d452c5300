"""One ATen call against its table entry: record the call, emit it through the table, run the model, compare with eager.

Nothing here passes through capture or lowering, so a fault of theirs cannot hide one of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils import _pytree as pytree

from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.dtypes import ONNX_DTYPES
from fx2onnx.aten_map.table.registry import fill_defaults
from fx2onnx.base.errors import UserError
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of, mark_complex, new_value
from fx2onnx.sizes.expr import Dim
from tests.ops.comparing import (
    ANY_INDEX,
    TOLERANCES,
    difference,
    has_free_values,
    in_float64,
    is_nearer,
    is_up_to_signs,
    real_pair,
    resolve_indices,
    to_numpy,
    tolerance_of,
    without_signs,
)
from tests.ops.engines import BY_REFERENCE, NoKernel, Rejected, run_onnxruntime, run_reference, run_runner

DEFAULT_OPSET = 20
BFLOAT16, FLOAT = ir.DataType.BFLOAT16, ir.DataType.FLOAT


@dataclass(slots=True)
class Call:
    """One overload with the arguments it got and the outputs it gave."""

    overload: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Any]

    def describe(self) -> str:
        def short(item: Any) -> str:
            if isinstance(item, torch.Tensor):
                return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
            return f"[{', '.join(map(short, item))}]" if isinstance(item, list | tuple) else str(item)

        shown = [short(item) for item in self.args] + [f"{name}={short(item)}" for name, item in self.kwargs.items()]
        return f"{self.overload}({', '.join(shown)})"


class Recorder(SchemaCheckMode):
    """Sees every operator before composite ones are split. torch admits only its own mode classes on this key."""

    def __init__(self) -> None:
        super().__init__()
        self._dispatch_key = torch._C.DispatchKey.PreDispatch
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kept_args, kept_kwargs = pytree.tree_map_only(torch.Tensor, _kept, _with_storage(func, args, kwargs))
        with no_python_dispatcher():  # else some kernels would be PyTorch's decompositions, which round elsewhere
            outputs = func(*args, **kwargs)
        kept = [_kept(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]
        self.calls.append(Call(func, kept_args, kept_kwargs, kept))
        return outputs


def _with_storage(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call; ``as_strided``, which counts in the storage, gets all of it, as capture gives it."""
    if func not in (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default):
        return args, kwargs
    filled = fill_defaults(func, args, kwargs)
    operand = filled["self"]
    with torch.utils._python_dispatch._disable_current_modes():
        whole = operand.new_empty(0).set_(operand.untyped_storage())
    if filled["storage_offset"] is None:
        filled["storage_offset"] = operand.storage_offset()
    return (whole, filled["size"], filled["stride"], filled["storage_offset"]), {}


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    with torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().resolve_conj().resolve_neg().clone()


def record(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Call]:
    """The overloads that ``function(*args, **kwargs)`` calls, composite ones whole; in-place ones as functional ones."""
    recorder = Recorder()
    with torch.no_grad(), enable_python_dispatcher(), recorder:
        function(*args, **kwargs)
    return [functional for call in recorder.calls if (functional := _functional(call)) is not None]


def _functional(call: Call) -> Call | None:
    schema = call.overload._schema
    if not schema.is_mutable:
        return call
    if any(argument.is_out for argument in schema.arguments):
        return None
    name = schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    overload = getattr(packet, schema.overload_name or "default", None) if packet is not None else None
    return None if overload is None else Call(overload, call.args, call.kwargs, call.outputs)


def call_of(overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Call:
    """A call made here and now."""
    kept_args, kept_kwargs = pytree.tree_map_only(torch.Tensor, _kept, (args, kwargs))
    with torch.no_grad():
        outputs = overload(*args, **kwargs)
    return Call(overload, kept_args, kept_kwargs, pytree.tree_leaves(outputs))


@dataclass(slots=True)
class Model:
    """A model of one call and what to feed it."""

    proto: bytes
    feeds: dict[str, np.ndarray]
    output_types: list[tuple[ir.DataType, tuple[Any, ...]] | None]
    """What the entry says of each output; None where it gives none."""
    op_types: list[str]
    """Operators of the graph, in order."""


def build(
    call: Call, opset: int = DEFAULT_OPSET, symbols: Mapping[int, str] | None = None, fixed: bool = False
) -> Model:
    """The call as a model through the table. ``symbols``: sizes that become named dims wherever they occur, in shapes
    and in int arguments. ``fixed``: tensors become initializers, not inputs.

    Raises: UserError E201 without an entry, E202/E203 where the entry refuses.
    """
    leaves = [
        leaf for leaf in pytree.tree_leaves((call.args, call.kwargs, call.outputs)) if isinstance(leaf, torch.Tensor)
    ]
    entry = TABLE.find(call.overload, opset, any(leaf.is_complex() for leaf in leaves))
    if entry is None:
        raise UserError("E201", f"no entry for {call.overload} at opset {opset}")
    named = {size: Dim.symbol(name) for size, name in (symbols or {}).items()}
    builder = Builder(opset)
    op = Emit(builder)
    inputs: list[ir.Value] = []
    feeds: dict[str, np.ndarray] = {}
    seen: dict[str, bool] = {}
    mentioned: set[int] = set()

    def dims_for(shape: Sequence[int]) -> tuple[Any, ...]:
        return tuple(named.get(size, size) for size in shape)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return tensor_value(leaf)
        if isinstance(leaf, int) and not isinstance(leaf, bool):
            mentioned.add(leaf)
            return named.get(leaf, leaf)
        return leaf

    def tensor_value(tensor: torch.Tensor) -> ir.Value:
        pair = real_pair(tensor)
        dtype, array = ONNX_DTYPES[pair.dtype], to_numpy(pair)
        if fixed:
            value = builder.add_initializer("weight", ir.Tensor(array.astype(dtype.numpy()), dtype=dtype), pair.shape)
        else:
            fed = FLOAT if dtype == BFLOAT16 else dtype
            value = new_value(builder.unique(f"input{len(inputs)}"), fed, dims_for(pair.shape))
            inputs.append(value)
            feeds[str(value.name)] = array
            for axis, dim in enumerate(dims_of(value)):
                if isinstance(dim, Dim) and not seen.get(str(dim)):
                    seen[str(dim)] = True
                    builder.symbols[str(dim)] = (value, axis)
            value = op.cast(value, dtype)
        if tensor.is_complex():
            mark_complex(value)
        return value

    args, kwargs = pytree.tree_map(convert, (call.args, call.kwargs))
    for size, dim in named.items():
        if (
            size in mentioned and str(dim) not in builder.symbols
        ):  # sizes that only int arguments mention come from an input of their own
            value = new_value(f"size_of_{dim}", FLOAT, (dim,))
            inputs.append(value)
            feeds[f"size_of_{dim}"] = np.zeros(size, np.float32)
            builder.symbols[str(dim)] = (value, 0)
    op.result = tuple(
        (ONNX_DTYPES[real_pair(leaf).dtype], (*dims_for(leaf.shape), *([2] if leaf.is_complex() else [])))
        for leaf in call.outputs
        if isinstance(leaf, torch.Tensor)
    )
    emitted = entry.call(op, fill_defaults(call.overload, args, kwargs))
    results = [emitted] if isinstance(emitted, ir.Value) or emitted is None else list(emitted)
    outputs: list[ir.Value] = []
    for index, value in enumerate(results):
        if value is None:
            continue
        final = op.cast(value, FLOAT) if dtype_of(value) == BFLOAT16 else op.Identity(value)
        final.name = f"output{index}"
        outputs.append(final)
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports=builder.opset_imports,
        name="call",
    )
    model = ir.Model(graph, ir_version=8 if opset <= 20 else 10 if opset <= 22 else 11 if opset <= 24 else 12)
    return Model(
        proto=ir.to_proto(model).SerializeToString(),
        feeds=feeds,
        output_types=[None if value is None else (dtype_of(value), dims_of(value)) for value in results],
        op_types=[node.op_type for node in list(graph)[: len(builder.nodes) - len(outputs)]],
    )


@dataclass(slots=True)
class Verdict:
    """``status``: ok, missing (no entry), refused (a clear error), wrong, rejected (does not load), broken (an entry
    raised something else), unjudged (no runtime has the kernels), ignored (nothing to compare).

    ``note`` of an ok call: ``BY_REFERENCE`` where onnxruntime has no kernel."""

    status: str
    call: str
    note: str = ""
    op_types: list[str] = field(default_factory=list)


def check(
    call: Call,
    opset: int = DEFAULT_OPSET,
    symbols: Mapping[int, str] | None = None,
    tolerance: tuple[float, float] | None = None,
    fixed: bool = False,
) -> Verdict:
    """Translate, run in onnxruntime and judge one call."""
    return check_engines(call, ["onnxruntime"], opset, symbols, tolerance, fixed)["onnxruntime"]


def check_engines(
    call: Call,
    engines: Sequence[str],
    opset: int = DEFAULT_OPSET,
    symbols: Mapping[int, str] | None = None,
    tolerance: tuple[float, float] | None = None,
    fixed: bool = False,
) -> dict[str, Verdict]:
    """Translate one call once and judge it in each of ``engines`` (onnxruntime, runner)."""
    model = _translated(call, opset, symbols, fixed)
    if isinstance(model, Verdict):
        return dict.fromkeys(engines, model)
    judges = {"onnxruntime": _judged_by_onnxruntime, "runner": _judged_by_runner}
    return {engine: judges[engine](call, model, tolerance) for engine in engines}


def _translated(call: Call, opset: int, symbols: Mapping[int, str] | None, fixed: bool) -> Model | Verdict:
    shown = call.describe()
    wanted = [leaf for leaf in call.outputs if isinstance(leaf, torch.Tensor)]
    if not wanted:
        return Verdict("ignored", shown, "no tensor output")
    if any(
        leaf.layout != torch.strided
        for leaf in pytree.tree_leaves((call.args, call.outputs))
        if isinstance(leaf, torch.Tensor)
    ):
        return Verdict("ignored", shown, "not strided")
    try:
        model = build(call, opset, symbols, fixed)
    except UserError as error:
        return Verdict(
            "missing" if error.code == "E201" else "refused", shown, f"{error.code} {error.what}; {error.why}"
        )
    except Exception as error:  # whatever an entry raises but UserError is the verdict: broken
        return Verdict("broken", shown, f"{type(error).__name__}: {error}")
    note = _type_fault(call, model, wanted)
    return Verdict("wrong", shown, note, model.op_types) if note else model


def _judged_by_onnxruntime(call: Call, model: Model, tolerance: tuple[float, float] | None) -> Verdict:
    shown, note = call.describe(), ""
    try:
        outputs = run_onnxruntime(model)
    except NoKernel as error:
        try:
            outputs, note = run_reference(model), BY_REFERENCE
        except Exception:  # onnx.reference, too, lacks kernels, and says so by many classes
            return Verdict("unjudged", shown, str(error).splitlines()[0], model.op_types)
    except Rejected as error:
        return Verdict("rejected", shown, str(error), model.op_types)
    except Exception as error:  # whatever an engine raises on a model it loaded is the verdict: wrong
        return Verdict("wrong", shown, f"run: {error}", model.op_types)
    faults = faults_of(call, model, outputs, tolerance)
    return Verdict("wrong" if faults else "ok", shown, "; ".join(faults) or note, model.op_types)


def _judged_by_runner(call: Call, model: Model, tolerance: tuple[float, float] | None) -> Verdict:
    shown = call.describe()
    try:
        outputs = run_runner(model, runs=1 if has_free_values(call) else 3)
    except NoKernel as error:
        return Verdict("refused", shown, str(error), model.op_types)
    except Rejected as error:
        return Verdict("rejected", shown, str(error), model.op_types)
    except Exception as error:  # whatever an engine raises on a model it loaded is the verdict: wrong
        return Verdict("wrong", shown, f"run: {type(error).__name__}: {error}", model.op_types)
    faults = faults_of(call, model, outputs, tolerance)
    return Verdict("wrong" if faults else "ok", shown, "; ".join(faults), model.op_types)


def faults_of(
    call: Call, model: Model, outputs: list[np.ndarray], tolerance: tuple[float, float] | None = None
) -> list[str]:
    """What differs from eager; of random and unset values the shapes only."""
    wanted = [leaf for leaf in call.outputs if isinstance(leaf, torch.Tensor)]
    if has_free_values(call):
        return [
            f"shape {got.shape}, not {tuple(want.shape)}"
            for got, want in zip(outputs, wanted, strict=False)
            if got.shape != tuple(real_pair(want).shape)
        ]
    if call.overload in ANY_INDEX:
        resolve_indices(call, outputs, wanted)
    if is_up_to_signs(call):
        outputs = [each.numpy() for each in without_signs(call, [torch.as_tensor(each) for each in outputs])]
        wanted = without_signs(call, wanted)
    kept = [want for want, typed in zip(wanted, model.output_types, strict=True) if typed is not None]
    limits = [
        tolerance or tolerance_of(call, want.dtype) or TOLERANCES.get(real_pair(want).dtype, (0, 0)) for want in kept
    ]
    faults = [difference(got, want, limit) for got, want, limit in zip(outputs, kept, limits, strict=True)]
    if any(faults) and (exact := in_float64(call)) is not None:
        typed = [value for value, given in zip(exact, model.output_types, strict=False) if given is not None]
        for index, (want, value) in enumerate(zip(kept, typed, strict=False)):
            if faults[index] and is_nearer(outputs[index], want, value, limits[index]):
                faults[index] = ""
    return [fault for fault in faults if fault]


def check_resized(
    call: Call, other: Call, sizes: Sequence[tuple[str, int, int]], opset: int = DEFAULT_OPSET
) -> Verdict:
    """The model of ``call``, its named sizes dynamic, judged on ``other``: the same call at other sizes.

    ``sizes``: (name, size in ``call``, size in ``other``).
    """
    shown = other.describe()
    try:
        model = build(call, opset, {size: name for name, size, _ in sizes})
        resized = build(other, opset, {size: name for name, _, size in sizes})
    except UserError as error:
        return Verdict("refused", shown, f"{error.code} {error.what}; {error.why}")
    model.feeds = resized.feeds
    try:
        outputs = run_onnxruntime(model)
    except (NoKernel, Rejected, RuntimeError) as error:
        return Verdict("wrong", shown, str(error), model.op_types)
    wanted = [leaf for leaf in other.outputs if isinstance(leaf, torch.Tensor)]
    if has_free_values(other):
        faults = [str(got.shape) for got, want in zip(outputs, wanted, strict=False) if got.shape != tuple(want.shape)]
    else:
        faults = [fault for got, want in zip(outputs, wanted, strict=True) if (fault := difference(got, want))]
    return Verdict("wrong" if faults else "ok", shown, "; ".join(faults), model.op_types)


def _type_fault(call: Call, model: Model, wanted: list[torch.Tensor]) -> str:
    if len(model.output_types) != len(wanted):
        return f"{len(model.output_types)} outputs, not {len(wanted)}"
    for typed, want in zip(model.output_types, wanted, strict=True):
        pair = real_pair(want)
        if typed is not None and (typed[0] != ONNX_DTYPES[pair.dtype] or len(typed[1]) != pair.dim()):
            return f"the entry gives {typed[0].name}{list(typed[1])}, not {pair.dtype}{list(pair.shape)}"
    return ""
