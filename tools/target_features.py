"""The attributes, optional inputs and dynamic sizes that a runtime lacks, from the cases that it runs and those that it
does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fx2onnx.targets.match import DYNAMIC
from tools.target_cases import without_rank
from tools.target_nodes import Case

Dtypes = tuple[tuple[str, str], ...]


def lacking(every: Sequence[Case], said: Sequence[str]) -> dict[str, list[str]]:
    """``{"::Resize": ["antialias=1"]}``: what the runtime has in no case that it runs, and is all that tells one that it does not
    run from those, of the same operator, version and dtypes.

    A case that fails by two such features at once accuses neither, nor one with dynamic sizes whose like without them fails. The rank of the first input excuses a case, and is accused of
    nothing: a few ranks are tried at most.
    """
    runs: dict[str, set[str]] = defaultdict(set)
    taken: set[tuple[str, int, Dtypes]] = set()
    named: set[tuple[str, str, int, Dtypes]] = set()
    for case, problem in zip(every, said, strict=True):
        if not problem:
            runs[case.op_type] |= case.features
            taken.add((case.op_type, case.version, _dtypes(case)))
            named.add((case.name, case.op_type, case.version, _dtypes(case)))
    lacked: dict[str, set[str]] = defaultdict(set)
    for case, problem in zip(every, said, strict=True):
        unseen = case.features - runs[case.op_type]
        if DYNAMIC in unseen and (case.name, case.op_type, case.version, _dtypes(case)) not in named:
            continue
        if problem and len(unseen) == 1 and (case.op_type, case.version, _dtypes(case)) in taken:
            lacked[f"::{case.op_type}"] |= without_rank(unseen)
    return {op_type: sorted(names) for op_type, names in sorted(lacked.items()) if names}


def _dtypes(case: Case) -> Dtypes:
    return tuple(sorted(case.types.items()))
