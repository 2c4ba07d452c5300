"""The error of a decision by sizes of which not both branches can be in the file: which ranges would settle it."""

from __future__ import annotations

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.assumptions import put_shortly
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet, interval, where_true
from fx2onnx.sizes.solve import declared

LOOP_IN_TENSORS = "say it in tensors (torch.arange, cumsum, a recurrent layer), or as a loop of the file (torch.while_loop, scan, map)"
_FACTORS = (64, 16, 8, 4, 2, 1)
"""Of the sample's sizes, up to or from which a range is proposed."""


def undeclared(facts: SizeFacts, relation: Relation, where: SourceLocation | None) -> UserError:
    """Python's decision by a size that is asked for by name."""
    names = ", ".join(sorted(relation.symbols()))
    ranges = _deciding(facts, relation if facts.hint(relation) else relation.negated())
    proposed = " and ".join(declared(name, sizes) for name, sizes in ranges.items()) or 'Dim("NAME", min=..., max=...)'
    return UserError(
        "E105",
        f"Python decides by the dynamic size {names}",
        where=where,
        why=f"whether {put_shortly(relation)} holds differs from size to size",
        next=(
            f"declare in dynamic_shapes a range in which it has one answer, such as {proposed}",
            "or keep the decision in tensors: torch.where, or torch.cond for two branches",
        ),
    )


def _deciding(facts: SizeFacts, at_sample: Relation) -> dict[str, SizeSet]:
    """Ranges of the sizes in which they are decided by as at the sample's; none where none are found."""
    names = sorted(at_sample.symbols())
    if len(names) == 1:
        sizes = where_true(at_sample)
        return {} if sizes is None else {names[0]: sizes}
    for is_upper in (True, False):
        for factor in _FACTORS:
            hints = {name: facts.hints.get(name, 1) for name in names}
            ranges = {
                name: interval(1, size * factor) if is_upper else interval(max(size // factor, 1), None)
                for name, size in hints.items()
            }
            known = facts.copied()
            for name, sizes in ranges.items():
                known.narrow(name, sizes)
            if known.is_settled(at_sample):
                return ranges
    return {}
