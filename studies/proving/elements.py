"""Terms of single elements in z3, in the dtypes that they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from fx2onnx.base.packages import require
from studies.proving.algebra import Exact, Unproved

SECONDS = 5


def equal_in_z3(algebra: Exact, pairs: list[tuple[int, int]]) -> bool:
    """Return whether no numbers tell the terms of any pair apart. Pairs that differ in the names of symbols alone are one."""
    require("z3")
    import z3

    seen = set()
    for one, other in pairs:
        names: dict[int, int] = {}
        shape = _shape(algebra, one, names), _shape(algebra, other, names)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            solver = z3.Solver()
            solver.set("timeout", SECONDS * 1000)
            solver.add(z3.Not(_in_z3(z3, algebra, one) == _in_z3(z3, algebra, other)))
        except (Unproved, z3.Z3Exception):
            return False
        if solver.check() != z3.unsat:
            return False
    return True


def _shape(algebra: Exact, term: Any, names: dict[int, int]) -> Any:
    if not isinstance(term, int):
        return tuple(_shape(algebra, part, names) for part in term) if isinstance(term, tuple) else term
    key = algebra.keys[term]
    if key[0] == "symbol":
        return "symbol", key[3], names.setdefault(term, len(names))
    return key if key[0] == "constant" else (key[0], *(_shape(algebra, part, names) for part in key[1:]))


def _in_z3(z3: Any, algebra: Exact, term: int) -> Any:
    """A term of elements in z3. Raises Unproved."""
    op, *rest = algebra.keys[term]
    if op == "symbol":
        return _variable(z3, f"{rest[0]}[{rest[1]}]", rest[2])
    if op == "constant":
        number = np.frombuffer(rest[0], rest[1])[0]
        sort = _variable(z3, "", rest[1]).sort()
        if rest[1] == "bool":
            return z3.BoolVal(bool(number))
        return z3.BitVecVal(int(number), sort.size()) if rest[1].startswith("int") else z3.FPVal(float(number), sort)
    key, *terms = ("", *rest[0]) if op == "most" else rest
    if not terms or not all(isinstance(each, int) for each in terms):
        raise Unproved(f"{op} in z3")
    args = [_in_z3(z3, algebra, each) for each in terms]
    if op == "Cast" or (op in _Z3 and op != "Where" and any(each.sort() != args[0].sort() for each in args)):
        same = (
            op == "Cast"
            and _variable(z3, "", str(onnx.helper.tensor_dtype_to_np_dtype(dict(key)["to"]))).sort() == args[0].sort()
        )
        if same:
            return args[0]
        op, key = f"{op} {key} {[str(each.sort()) for each in args]}", ""
    if op not in _Z3:  # a function of which nothing is known
        sorts = [each.sort() for each in args]
        return z3.Function(f"{op} {key}", *sorts, sorts[0])(*args)
    is_float, near = z3.is_fp(args[0]), z3.RNE()
    functions = {
        "Add": lambda a, b: z3.fpAdd(near, a, b) if is_float else a + b,
        "Sub": lambda a, b: z3.fpSub(near, a, b) if is_float else a - b,
        "Mul": lambda a, b: z3.fpMul(near, a, b) if is_float else a * b,
        "Div": lambda a, b: z3.fpDiv(near, a, b) if is_float else a / b,
        "Neg": lambda a: z3.fpNeg(a) if is_float else -a,
        "Not": z3.Not, "And": z3.And, "Or": z3.Or, "Xor": z3.Xor, "Where": z3.If,
        "Pow": lambda a, b: a if z3.is_true(z3.simplify(z3.fpEQ(b, z3.FPVal(1, b.sort())) if is_float else b == 1)) else None,
    }  # fmt: skip
    found = functions[op](*args)
    if found is None:
        return z3.Function(op, *[each.sort() for each in args], args[0].sort())(*args)
    return found


_Z3 = frozenset(["Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Where", "Pow"])


def _variable(z3: Any, name: str, dtype: str) -> Any:
    floats = {"float16": z3.Float16, "float32": z3.Float32, "float64": z3.Float64}
    if dtype in floats:
        return z3.FP(name, floats[dtype]())
    if dtype == "bool":
        return z3.Bool(name)
    if dtype.startswith("int"):
        return z3.BitVec(name, int(dtype[3:]))
    raise Unproved(f"{dtype} in z3")
