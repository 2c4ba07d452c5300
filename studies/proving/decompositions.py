"""Decompositions of the table of ATen overloads against eager PyTorch and PyTorch's own definitions.

Calls are drawn from the schema. Each entry that writes more than one node is proved in one of these ways: by places, where it moves data
alone; by PyTorch's decomposition of the same call, on symbols; on all numbers of a narrow dtype, where each element is computed by itself;
on all small arrays of a few numbers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from benchmarks.overload_call import OneCall, drawn_call, run_eager
from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.families import load_all, read_families
from studies.proving.algebra import Exact, Poly, Real
from studies.proving.arrays import all_arrays, by_arrays, by_values, tensors_of, units
from studies.proving.cases import Case
from studies.proving.eager import Eager
from studies.proving.operators import terms_of
from tests.ops.comparing import has_free_values
from tests.ops.harness import Call, Model, build

DRAWS, CASES, LARGEST = 40, 3, 24
"""Drawn calls, those of them that are proved, and the elements of the tensors of one."""
MOST = 8.0
"""Roundings that factors may be apart."""
WORDS = {
    "exact": "the same terms as PyTorch's definition: bit for bit",
    "real": "the same polynomials of real numbers as PyTorch's definition",
    "values": "each element alone, on",
    "arrays": "all small arrays of a few numbers, in both engines",
    "units": "linear: all arrays of one 1 and zeros, in both engines",
}
NOT_ALGEBRA = {
    "sampling": "random numbers; their distribution is compared",
    "dropout": "random numbers; their distribution is compared",
    "sorting": "the order of equal elements is free; drawn calls are compared",
    "eigen": "vectors up to sign by iteration; products with the operand are compared",
    "spectral": "vectors up to sign by iteration; products with the operand are compared",
    "factorizations": "a loop over rows; products of the factors are compared with the operand",
    "linear_solve": "a loop over rows; drawn calls are compared",
    "ctc": "a loop over time; drawn calls are compared",
    "recurrent": "one LSTM, GRU or RNN node a layer; drawn calls are compared",
    "stft": "a product with tables of sines; drawn calls are compared",
}
"""The reason of an entry without a proof, by its family."""
UNDEFINED = {
    **dict.fromkeys(
        ("aten.histogram.bins_tensor", "aten.histogramdd.TensorList_bins"),
        "PyTorch does not say what bins that do not increase give; drawn calls are compared",
    ),
    "aten.linalg_cond.p_str": "a singular matrix has the number infinity or 1 by a rounding; drawn calls are compared",
    "aten.logit_backward.default": "at -0 the vectorized kernel of eager PyTorch gives another infinity than its scalar one; drawn calls are compared",
}  # fmt: skip
KERNELS = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "PyTorch's definition compares each row with minus infinity, for rows that are masked whole",
    "aten._weight_norm_interface_backward.default": "PyTorch has no definition but a kernel, and four tensors are too many for all small arrays",
    "aten.adaptive_max_pool3d.default": "PyTorch has no definition but a kernel, and windows of 3 axes are too large for all small arrays",
    "aten.fractional_max_pool2d.default": "PyTorch has no definition but a kernel, whose windows lie where drawn samples put them",
    "aten.grid_sampler_2d_backward.default": "PyTorch has no definition but a kernel, of places that are rounded and compared",
    "aten.grid_sampler_3d_backward.default": "PyTorch has no definition but a kernel, of places that are rounded and compared",
    "aten.max_pool3d_with_indices.default": "PyTorch has no definition but a kernel, and windows of 3 axes are too large for all small arrays",
    "aten.native_batch_norm_backward.default": "a drawn call ends the process: its kernel reads beyond short tensors",
    "aten.slow_conv_transpose2d.default": "PyTorch changes the sizes of arguments without a batch, so that a call is not made twice",
    "aten.resize.default": "numbers behind those that are given are what memory holds",
}  # fmt: skip
"""The reason of an entry that is algebra and has no proof."""
ONE_NODE = "one node of the same name or meaning: nothing to prove"
UNDRAWN = "no node or no small call is drawn: the operator database compares it"
ELSEWHERE = "this version of PyTorch does not have it"
UNPROVED = "no small call has a definition that is written out; drawn calls are compared in both engines"


@dataclass
class Row:
    """The proofs of the decomposition of one overload."""

    overload: str
    nodes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    why: str = ""
    roundings: float = 0.0
    sets: set[str] = field(default_factory=set)
    proved: list[tuple[Call, Model, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The row of the page, what it counts, and no wrong decompositions yet."""
        counts = {"nodes": self.nodes, "proved": bool(self.kinds), "planted": 0, "through": 0}
        return {"overload": self.overload, "line": self.line(), **counts}

    def line(self) -> str:
        """The row of the page."""
        if not self.kinds and self.nodes < 2:
            return f"| `{self.overload}` | {self.nodes or ''} | | {self.why if self.why == ELSEWHERE else ONE_NODE if self.nodes else UNDRAWN} |"
        told = "; ".join(f"{WORDS[kind]} ({self.kinds[kind]})" for kind in WORDS if self.kinds[kind])
        told = told.replace(WORDS["values"], f"{WORDS['values']} {', '.join(sorted(self.sets))}")
        told += f", factors {self.roundings:.2g} roundings apart" if self.kinds["real"] else ""
        return (
            f"| `{self.overload}` | {self.nodes} | {sum(self.kinds.values())} | {told or 'not proved: ' + self.why} |"
        )


def examined(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row for each overload of ATen that has an entry, or for ``names``, in processes that a kernel may end."""
    load_all()
    here = {str(each) for each in TABLE.entries if each.namespace == "aten"}
    real = {name for kinds in read_families().values() for name in kinds.get("real", ()) if name.startswith("aten.")}
    known = real & ({*names} or real)
    found = [Row(name, why=ELSEWHERE).as_dict() for name in known - here]
    todo, is_probed = sorted(known & here), False
    while todo:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            made = pool.map(partial(_examined, is_probed=is_probed), todo[:1] if is_probed else todo)
            try:
                for name, row in zip(list(todo), made, strict=False):
                    found.append(row)
                    todo.remove(name)
                    print(row["line"], flush=True)
                is_probed = False
            except BrokenProcessPool:
                if is_probed:
                    found.append(
                        Row(
                            todo.pop(0), 2, why="a drawn call ends the process; the operator database compares it"
                        ).as_dict()
                    )
                is_probed = not is_probed
    return sorted(found, key=lambda each: str(each["overload"]))


def _survives(overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> bool:
    """Return whether a call leaves the process alive: some kernels check nothing, and read and write beyond memory."""
    child = os.fork()
    if not child:
        try:
            run_eager(overload, args, kwargs)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _examined(name: str, is_probed: bool = False) -> dict[str, Any]:
    """The row of one overload, and a wrong decomposition of it that was proved all the same. ``is_probed``: calls that end the process are
    left out.
    """
    from studies.proofs import wrong

    torch.set_num_threads(1)
    load_all()
    overload = next(each for each in TABLE.entries if str(each) == name)
    families = (each for each, kinds in read_families().items() if name in kinds.get("real", ()))
    row = row_of(overload, next(families).rpartition(".")[2], _survives if is_probed else lambda *_: True)
    found = {
        "overload": name,
        "nodes": row.nodes,
        "line": row.line(),
        "proved": bool(row.kinds),
        "planted": 0,
        "through": 0,
    }
    for call, model, kind in row.proved[:1]:
        proto = onnx.load_from_string(model.proto)
        with contextlib.suppress(Exception):  # drawn integers may be no indices
            made = next(wrong(Case((name,), proto, proto)), None) if kind in ("exact", "real") else None
            if made is not None:
                found |= {"planted": 1, "through": int(bool(by_symbols(call, made)[0]))}
    return found


def row_of(overload: torch._ops.OpOverload, family: str, is_offered: Callable[..., bool] = lambda *_: True) -> Row:
    """The proofs of drawn calls of an overload."""
    row = Row(str(overload))
    for call, model in calls_of(overload, is_offered):
        nodes = len([op for op in model.op_types if op not in ("Constant", "Identity")])
        row.nodes = max(row.nodes, nodes)
        if any(op.startswith("Random") or op in ("Bernoulli", "Multinomial") for op in model.op_types):
            return Row(row.overload, row.nodes, why=NOT_ALGEBRA["sampling"])
        if nodes > 1 and not has_free_values(call):
            try:
                kind, wrong = _proof(row, call, model)
            except Exception:  # lists of tensors, and what else is not compared here
                continue
            if wrong:
                why = UNDEFINED.get(row.overload) or NOT_ALGEBRA.get(family) or f"differs from eager PyTorch: {wrong}"
                return Row(row.overload, row.nodes, why=why)
            if kind:
                row.kinds[kind] += 1
                row.proved.append((call, model, kind))
    why = KERNELS.get(row.overload)
    row.why = f"{why}; drawn calls are compared" if why else NOT_ALGEBRA.get(family, UNPROVED)
    return row


def _proof(row: Row, call: Call, model: Model) -> tuple[str, str]:
    """The kind of proof of a call, empty for none, and the first difference from eager PyTorch."""
    kind, apart = by_symbols(call, onnx.load_from_string(model.proto))
    if kind:
        row.roundings = max(row.roundings, apart)
        return kind, ""
    sets, wrong = by_values(call, model)
    row.sets |= {*sets}
    if sets or wrong:
        return "values", wrong
    for kind, given in (("arrays", all_arrays(call)), ("units", units(call, model))):
        count, wrong = by_arrays(call, model, given)
        if count or wrong:
            return kind if count else "", wrong
    return "", ""


def calls_of(overload: torch._ops.OpOverload, is_offered: Callable[..., bool]) -> list[tuple[Call, Model]]:
    """Drawn calls of few elements, in float32 before others, with the models that the table makes of them."""
    found = []
    for index in range(DRAWS):
        call = drawn_call(overload, 7, index, is_offered)
        if call is None or not any(each.numel() for each in call.outputs):
            continue
        leaves = tensors_of(call)
        count = sum(each.numel() for each in leaves)
        if count <= LARGEST:
            narrow = any(each.dtype in (torch.float16, torch.bfloat16, torch.float64) for each in leaves)
            is_whole = not any(each.is_floating_point() for each in leaves)
            found.append((narrow, is_whole, _is_degenerate(call), count, index, call))
    made: list[tuple[Call, Model]] = []
    for *_, call in sorted(found, key=lambda each: each[:5]):
        with contextlib.suppress(Exception):  # what is refused, and tensors in lists
            made.append((call, build(call)))
        if len(made) == CASES:
            break
    return made


def _is_degenerate(call: Call) -> bool:
    """True for tensors of no or hardly any elements, and for results that are no number: many a wrong form gives the same there."""
    sizes = [each.numel() for each in tensors_of(call)]
    return not sizes or min(sizes) == 0 or max(sizes) < 3 or any(bool(each.isnan().any()) for each in call.outputs)


# -- symbols ----------------------------------------------------------------------------------------------------------
def by_symbols(call: Call, model: onnx.ModelProto) -> tuple[str, float]:
    """The kind of proof by PyTorch's definition on symbols, empty where there is none, and the roundings between factors."""
    tensors = {f"input{place}": each for place, each in enumerate(tensors_of(call))}
    floats = {each.dtype for each in tensors.values() if each.is_floating_point() or each.is_complex()}
    if floats != {torch.float32}:  # integers are constants, so that without floats it would be one sample
        return "", 0.0
    model = _with_constants(model, tensors)
    function = OneCall(call.overload, call.args, call.kwargs)
    for algebra in (Exact(), Real(MOST)):
        try:
            made, want = terms_of(model, algebra, {}), Eager(function, tensors, algebra).outputs
        except Exception:  # what is not written out, and graphs that cannot be evaluated
            continue
        if [each.shape for each in made] != [each.shape for each in want]:
            return "", 0.0
        pairs = [
            pair for a, b in zip(made, want, strict=True) for pair in zip(a.reshape(-1), b.reshape(-1), strict=True)
        ]
        if isinstance(algebra, Exact):
            if all(a == b for a, b in pairs):
                return "exact", 0.0
        elif all(each.is_floating_point() for each in call.outputs if isinstance(each, torch.Tensor)):
            polys: list[tuple[Poly, Poly]] = pairs
            worst = max([algebra.worst, *(a.apart(b) for a, b in polys)])
            if worst <= MOST:
                return "real", worst
    return "", 0.0


def _with_constants(model: onnx.ModelProto, tensors: Mapping[str, torch.Tensor]) -> onnx.ModelProto:
    """The model with inputs that hold no floats as constants."""
    kept = [value for value in model.graph.input if tensors[value.name].is_floating_point()]
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            model.graph.initializer.append(numpy_helper.from_array(tensor.numpy(), name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model
