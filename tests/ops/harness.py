"""One ATen call against its table entry: record the call, emit it through the table, run the model, compare with eager.

Nothing here passes through capture or lowering, so a fault of theirs cannot hide one of the table.

    python -m tests.ops.harness 'nn.functional.*' --dtype float32 --opset 18     # verdicts of OpInfo entries
"""

from __future__ import annotations

import argparse
import fnmatch
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils import _pytree as pytree

from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.registry import fill_defaults
from fx2onnx.aten_map.scalars import ONNX_DTYPES
from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Builder, Emit
from fx2onnx.irx.values import dims_of, dtype_of, mark_complex, new_value

DEFAULT_OPSET = 20
BFLOAT16, FLOAT = ir.DataType.BFLOAT16, ir.DataType.FLOAT

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (2e-5, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
}
"""(relative, absolute) by dtype of the output; every other dtype must be equal."""

RANDOM = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "randint_like",
        "bernoulli",
        "bernoulli_",
        "normal",
        "normal_",
        "uniform",
        "uniform_",
        "normal_functional",
        "randperm",
        "multinomial",
        "rrelu",
        "rrelu_with_noise",
        "exponential",
        "log_normal",
        "geometric",
        "cauchy",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
    ]
)
"""Random operators: dtype and shape are compared, distributions elsewhere."""
UNSET = frozenset(
    ["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize"]
)
"""Operators whose values are whatever was in memory."""
DROPOUTS = frozenset(
    ["dropout", "dropout_", "native_dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"]
)


# -- recording ----------------------------------------------------------------------------------------------------
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
        kept_args, kept_kwargs = pytree.tree_map_only(torch.Tensor, _kept, (args, kwargs))
        outputs = func(*args, **kwargs)
        kept = [_kept(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]
        self.calls.append(Call(func, kept_args, kept_kwargs, kept))
        return outputs


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


# -- building -----------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Model:
    """A model of one call and what to feed it."""

    proto: bytes
    feeds: dict[str, np.ndarray]
    output_types: list[tuple[ir.DataType, tuple[Any, ...]] | None]
    """What the entry says of each output; None where it gives none."""
    op_types: list[str]
    """Operators of the graph, in order."""


def real_pair(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a trailing pair of reals, others as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


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

    def dims_for(shape: Sequence[int]) -> tuple[Any, ...]:
        return tuple(named.get(size, size) for size in shape)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return tensor_value(leaf)
        if isinstance(leaf, int) and not isinstance(leaf, bool):
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
        if str(dim) not in builder.symbols:  # sizes that only int arguments mention come from an input of their own
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


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


# -- running and comparing ----------------------------------------------------------------------------------------
class NoKernel(Exception):
    """onnxruntime has no kernel for an operator at these dtypes."""


class Rejected(Exception):
    """onnxruntime does not load the model."""


def run_onnxruntime(model: Model) -> list[np.ndarray]:
    """Outputs in onnxruntime. Raises NoKernel, Rejected."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.proto, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error):
            raise NoKernel(str(error)) from error
        raise Rejected(str(error)) from error
    wanted = {given.name for given in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in model.feeds.items() if name in wanted}))


def run_reference(model: Model) -> list[np.ndarray]:
    """Outputs in onnx.reference: the judge where onnxruntime has no kernel."""
    import onnx.reference

    evaluator = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model.proto))
    wanted = set(evaluator.input_names)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = evaluator.run(None, {name: array for name, array in model.feeds.items() if name in wanted})
    return [np.asarray(array) for array in found]


def difference(got: np.ndarray, want: torch.Tensor, tolerance: tuple[float, float] | None = None) -> str:
    """Why ``got`` is not ``want``; empty where it is. dtype (bfloat16 travels as float32), shape, NaN positions and
    infinities must agree; numbers within ``tolerance`` (default: ``TOLERANCES``)."""
    pair = real_pair(want)
    expected = to_numpy(pair)
    if got.dtype != expected.dtype:
        return f"dtype {got.dtype}, not {expected.dtype}"
    if got.shape != expected.shape:
        return f"shape {got.shape}, not {expected.shape}"
    if pair.dtype not in TOLERANCES:
        unequal = got != expected
        return (
            "" if not unequal.any() else f"{int(unequal.sum())} of {got.size} differ: {_first(got, expected, unequal)}"
        )
    nan = np.isnan(expected)
    if (np.isnan(got) != nan).any():
        return f"NaN elsewhere: {_first(got, expected, np.isnan(got) != nan)}"
    relative, absolute = tolerance or TOLERANCES[pair.dtype]
    with np.errstate(all="ignore"):
        near = np.abs(got.astype(np.float64) - expected) <= absolute + relative * np.abs(expected.astype(np.float64))
        wrong = ~((got == expected) | nan | (near & np.isfinite(got) & np.isfinite(expected)))
    return "" if not wrong.any() else f"{int(wrong.sum())} of {got.size} differ: {_first(got, expected, wrong)}"


NEAR_POLES = dict.fromkeys(
    ["polygamma", "special_polygamma", "special_zeta", "digamma", "special_airy_ai"], (0.0002, 1e-05)
)
"""float32 tolerances where eager itself loses digits (its float32 sine beside a pole, its float32 recurrences)."""
_TRANSFORMS = [f"{kind}fft{dims}" for kind in ("", "i", "r", "ir", "h", "ih") for dims in ("", "2", "n")]
NORMWISE = frozenset(["matrix_exp", "linalg_matrix_exp", "stft", "istft", *(f"fft_{name}" for name in _TRANSFORMS)])


def _tolerance(call: Call, dtype: torch.dtype) -> tuple[float, float] | None:
    """Half precision: absolute error in proportion to the largest operand, since eager rounds after every step.
    Matrix functions: in proportion to the largest element of the result, which bounds eager's own error."""
    if call.overload._schema.name.removeprefix("aten::") in NORMWISE:
        relative, absolute = TOLERANCES[dtype.to_real() if dtype.is_complex else dtype]
        largest = max(leaf.abs().max().item() for leaf in call.outputs if leaf.numel())
        return relative, absolute + relative * largest
    if dtype == torch.float32:
        return NEAR_POLES.get(call.overload._schema.name.removeprefix("aten::"))
    if dtype not in (torch.float16, torch.bfloat16):
        return None
    leaves = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, torch.Tensor)]
    sizes = [
        leaf[leaf.isfinite()].abs().max().item()
        for leaf in leaves
        if leaf.is_floating_point() and leaf.isfinite().any()
    ]
    relative, absolute = TOLERANCES[dtype]
    return relative, absolute * max([1.0, *sizes])


def _first(got: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> str:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"at {list(index)} {got[index]!r}, not {expected[index]!r}"


@dataclass(slots=True)
class Verdict:
    """``status``: ok, missing (no entry), refused (a clear error), wrong, rejected (does not load), broken (an entry
    raised something else), unjudged (no runtime has the kernels), ignored (nothing to compare)."""

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
    """Translate, run and judge one call."""
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
    except Exception as error:
        return Verdict("broken", shown, f"{type(error).__name__}: {error}")
    note = _type_fault(call, model, wanted)
    if note:
        return Verdict("wrong", shown, note, model.op_types)
    try:
        outputs = run_onnxruntime(model)
    except NoKernel as error:
        try:
            outputs = run_reference(model)
        except Exception:
            return Verdict("unjudged", shown, str(error).splitlines()[0], model.op_types)
    except Rejected as error:
        return Verdict("rejected", shown, str(error), model.op_types)
    except Exception as error:
        return Verdict("wrong", shown, f"run: {error}", model.op_types)
    if has_free_values(call):
        faults = [
            f"shape {got.shape}, not {tuple(want.shape)}"
            for got, want in zip(outputs, wanted, strict=False)
            if got.shape != tuple(real_pair(want).shape)
        ]
    else:
        if call.overload in ANY_INDEX:
            _resolve_indices(call, outputs, wanted)
        kept = [want for want, typed in zip(wanted, model.output_types, strict=True) if typed is not None]
        faults = [
            fault
            for got, want in zip(outputs, kept, strict=True)
            if (fault := difference(got, want, tolerance or _tolerance(call, want.dtype)))
        ]
    return Verdict("wrong" if faults else "ok", shown, "; ".join(faults), model.op_types)


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


def has_free_values(call: Call) -> bool:
    """Whether the values of the outputs are random or unset."""
    name = call.overload._schema.name.removeprefix("aten::")
    if name in DROPOUTS:
        filled = fill_defaults(call.overload, call.args, call.kwargs)
        return bool(filled.get("train")) and filled.get("p") not in (0, 0.0)
    if fill_defaults(call.overload, call.args, call.kwargs).get("dropout_p"):
        return True
    return name in RANDOM or name in UNSET


ANY_INDEX = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in [
        ("topk", "default"),
        ("sort", "default"),
        ("argsort", "default"),
        ("kthvalue", "default"),
        ("mode", "default"),
        ("median", "dim"),
        ("nanmedian", "dim"),
    ]
)
"""Operators that may name any of several equal elements; their last output holds indices along a dim."""


def _resolve_indices(call: Call, outputs: list[np.ndarray], wanted: list[torch.Tensor]) -> None:
    """Make indices that name equal elements equal."""
    source = call.args[0]
    got, want = torch.from_numpy(outputs[-1].copy()), wanted[-1]
    if source.dim() == 0 or got.shape != want.shape or got.dtype != want.dtype:
        return
    filled = fill_defaults(call.overload, call.args, call.kwargs)
    dim = filled["dim"] % source.dim()
    if not filled.get("keepdim", True):
        got, want = got.unsqueeze(dim), want.unsqueeze(dim)
    chosen = torch.take_along_dim(source, got.clamp(0, source.shape[dim] - 1), dim)
    expected = torch.take_along_dim(source, want, dim)
    equal = (chosen == expected) | ((chosen != chosen) & (expected != expected))
    resolved = torch.where(equal, want, got)
    outputs[-1] = (resolved if filled.get("keepdim", True) else resolved.squeeze(dim)).numpy()


# -- PyTorch's operator database ------------------------------------------------------------------------------------
def op_infos(patterns: Sequence[str] = ("*",)) -> Iterator[Any]:
    """OpInfo entries whose full name (``name`` or ``name.variant``) matches any of ``patterns``."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if any(fnmatch.fnmatchcase(name_of(info), pattern) for pattern in patterns):
            yield info


def name_of(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def calls_of(info: Any, dtype: torch.dtype, samples: int = 5) -> Iterator[Call]:
    """The calls that the entry's first ``samples`` sample inputs make, evenly spread over all samples."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = list(info.sample_inputs("cpu", dtype, requires_grad=False))
        step = max(1, len(every) / samples)
        for index in sorted({int(i * step) for i in range(min(samples, len(every)))}):
            sample = every[index]
            yield from record(info.op, sample.input, *sample.args, **sample.kwargs)


def sweep(info: Any, dtype: torch.dtype, samples: int = 5, opset: int = DEFAULT_OPSET) -> list[Verdict]:
    """Verdicts of all calls of one entry."""
    if dtype not in info.supported_dtypes("cpu"):
        return []
    try:
        calls = list(calls_of(info, dtype, samples))
    except Exception as error:
        return [Verdict("ignored", name_of(info), f"eager: {type(error).__name__}: {error}")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [check(call, opset) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--dtype", default="float32", help="comma-separated")
    parser.add_argument("--opset", type=int, default=DEFAULT_OPSET)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--verbose", "-v", action="store_true", help="print every verdict that is not ok")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for info in op_infos(arguments.patterns):
        worst = "ok"
        for dtype_name in arguments.dtype.split(","):
            verdicts = sweep(info, getattr(torch, dtype_name), arguments.samples, arguments.opset)
            counts = Counter(verdict.status for verdict in verdicts)
            totals += counts
            missing.update(verdict.call.split("(")[0] for verdict in verdicts if verdict.status == "missing")
            shown = {v.status + v.call.split("(")[0]: v for v in verdicts if v.status not in ("ok", "ignored")}
            faults = verdicts if arguments.verbose else shown.values()
            for verdict in faults:
                if verdict.status == "missing" and not arguments.verbose:
                    continue
                if verdict.status not in ("ok", "ignored"):
                    note = " ".join(verdict.note.split())
                    print(f"{verdict.status:9} {name_of(info)}: {verdict.call[:300]}\n          {note[:400]}")
                    print(f"          {' '.join(verdict.op_types[:40])}")
            for status in ("wrong", "rejected", "broken", "unjudged", "missing", "refused"):
                if counts[status] and worst == "ok":
                    worst = status
        entries[worst] += 1
    print("calls", dict(totals))
    print("entries", dict(entries))
    print("missing", dict(missing.most_common()))


if __name__ == "__main__":
    main()
