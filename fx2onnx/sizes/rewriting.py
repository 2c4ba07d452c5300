"""Expressions of sizes with the operations inside them replaced."""

from __future__ import annotations

from collections.abc import Callable

from fx2onnx.sizes.expr import Atom, Dim, Scalar, apply, innermost_first


def rewritten(value: Scalar, rule: Callable[[Atom], Scalar | None]) -> Scalar:
    """``value`` with each atom that ``rule`` has a value for replaced by it, from the innermost outwards: the rule sees atoms
    whose own arguments are rewritten already.
    """
    if not isinstance(value, Dim):
        return value
    values: dict[Atom, Scalar] = {}

    def ruled(atom: Atom) -> Scalar:
        given = rule(atom)
        return Dim({(atom,): 1}) if given is None else given

    for atom in innermost_first(value):
        if atom.depth == 0:
            values[atom] = ruled(atom)
            continue
        args = [arg.with_atoms(values.__getitem__) if isinstance(arg, Dim) else arg for arg in atom.args]
        made = apply(atom.op, *args)  # type: ignore[arg-type]
        values[atom] = made.with_atoms(ruled) if isinstance(made, Dim) else made
    return value.with_atoms(values.__getitem__)
