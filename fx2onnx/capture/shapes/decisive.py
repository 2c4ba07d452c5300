"""Which of the equalities and comparisons that a run took for granted matter to the program that it recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from fx2onnx.capture.overloads.op_table import Op
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Guard
from fx2onnx.sizes.certain import certain
from fx2onnx.sizes.expr import Atom, Dim, Scalar
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.rewriting import rewritten
from fx2onnx.sizes.sets import interval, where_true


def is_about(relation: Relation, env: ShapeEnv) -> bool:
    """Whether it holds for some sizes near the sample's, and not for those that are smaller."""
    if env.is_settled(relation) is True:
        return False
    names = relation.symbols()
    true = where_true(relation) if len(names) == 1 else None
    if true is not None:
        (name,) = names
        return true.last() is not None and not interval(2, max(env.hints[name], 2)).is_within(true)
    corners = itertools.product(*({2, env.hints[name]} for name in names))
    return not all(relation.is_true_at(dict(zip(names, corner, strict=True))) for corner in corners)


def holds_around(relation: Relation, hints: Mapping[str, int]) -> bool:
    """Whether each of several sizes may also be one more, or one less: a number rounds what they decide together."""
    names = relation.symbols()
    around = [[{**hints, name: hints[name] + step} for step in (1, -1)] for name in names & set(hints)]
    return len(around) == len(names) > 1 and all(any(map(relation.is_true_at, sizes)) for sizes in around)


def is_decisive(guard: Guard, env: ShapeEnv) -> bool:
    """Whether a run took for granted what no condition says, and other sizes may break."""
    is_asked = guard.by_user or guard.ends_run or not _is_harmless(guard, env)
    return is_asked and env.is_settled(guard.relation) is None


def _is_harmless(guard: Guard, env: ShapeEnv) -> bool:
    """Whether the relation is true at every size of a varied list: true of torch's checks for strides. At capture, the sample's
    size stands for 0 and 1.
    """
    if not guard.by_user and (guard.during in Op.CHOOSES_KERNEL.names or (guard.during, guard.relation.op) == _IS_ALL):
        return True
    forms = [guard.relation] if guard.by_user else [guard.relation, _of_quotients(guard.relation)]
    return any(env.holds_at_ordinary_sizes(form, least=2) for form in forms)


def _of_quotients(relation: Relation) -> Relation:
    """With a size of its own for each quotient: that there is one window, as one size, decides nothing for kernels."""
    found: dict[Atom, Dim] = {}

    def rule(atom: Atom) -> Scalar | None:
        if atom.op != "floordiv" or atom.is_real:
            return None
        sign = -1 if certain("le", atom.args[0], 0) else 1
        return sign * found.setdefault(atom, Dim.symbol(f"quotient{len(found)}"))

    args = tuple(_of_quotients(arg) if isinstance(arg, Relation) else rewritten(arg, rule) for arg in relation.args)
    return Relation(relation.op, args)


_IS_ALL = ("aten::slice", "ne")
"""Whether a slice takes all of an axis says how its memory lies."""
