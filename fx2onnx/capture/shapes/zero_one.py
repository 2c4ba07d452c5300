"""Sizes that are 1 at the sample alone, such as the number of windows in a short text: looked at where they are more.

torch's kernels check whether a size is 1 (does it broadcast? which strides count?), and what they do then holds for that
size only, though the general way gives the same at 1. So the module is run with larger sizes in the sample's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Guard
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation

_LARGEST_STEP = 1 << 14


def sizes_above_one(env: ShapeEnv, hints: Mapping[str, int]) -> dict[str, int]:
    """Larger numbers for the symbols of sizes that are 1 for a kernel; none where there is no such size.

    Powers of 2 are added, so that what is left over in windows of such a size stays what it is in the sample.
    """
    larger: dict[str, int] = {}
    for size in _ones(env):
        for name in sorted(size.symbols() & set(hints)):
            step = 2
            while step <= _LARGEST_STEP and size.evaluate({**hints, name: hints[name] + step}) <= 1:
                step *= 2
            if step <= _LARGEST_STEP:
                larger[name] = max(larger.get(name, 0), hints[name] + step)
    return larger


def _ones(env: ShapeEnv) -> Iterator[Dim]:
    for guard in env.guards.values():
        relation = guard.relation
        if not guard.by_user and relation.op == "eq":
            for size, other in (relation.args, relation.args[::-1]):
                is_derived = isinstance(size, Dim) and size.as_symbol() is None
                if is_derived and other == 1 and not size.symbols() & env.unbacked:
                    yield size


def user_guards_hold_at(env: ShapeEnv, hints: Mapping[str, int]) -> bool:
    """Whether the module's own code decided everything, and took the numbers, as it does at the sizes ``hints``."""
    numbers = (done.relation for done in env.specializations.values() if done.size.symbols() <= set(hints))
    return not any(guard.by_user for guard in _false_at(env, hints).values()) and all(
        relation.is_true_at(hints) for relation in numbers
    )


def kernels_differ_at(env: ShapeEnv, hints: Mapping[str, int]) -> frozenset[tuple[Relation, bool]]:
    """What kernels decide otherwise at the sizes ``hints``, for which the program is right, too."""
    return frozenset(key for key, guard in _false_at(env, hints).items() if not guard.by_user)


def _false_at(env: ShapeEnv, hints: Mapping[str, int]) -> dict[tuple[Relation, bool], Guard]:
    return {
        key: guard
        for key, guard in env.guards.items()
        if guard.relation.symbols() <= set(hints) and not guard.relation.is_true_at(hints)
    }
