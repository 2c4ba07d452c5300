"""Differences between versions of torch: names that some have, found out by looking and not by the number of the version, and the words
of errors for which torch has no class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # which torch itself imports only when an operator runs
from torch.utils import checkpoint

SYMBOLIC_SHAPES = torch.fx.experimental.symbolic_shapes
"""The file of torch's own questions about sizes."""


def find(path: str) -> Any:
    """The object at ``torch.PATH``; None where this torch has nothing there."""
    try:
        return reduce(getattr, path.split("."), torch)
    except AttributeError:
        return None


def found(*paths: str) -> Iterator[Callable[..., object]]:
    """The functions and classes at those of the paths that this torch has."""
    for path in paths:
        there = find(path)
        if there is not None:
            yield there


AROUND = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpoint, name)
)
"""The generator that ``torch.utils.checkpoint.checkpoint`` runs around the function, so that it is run again for a gradient.
Where torch has both names, the second calls the first."""


_DTYPES = re.compile(
    r"dtype|type|not implemented for '|floating|integral|integer|\b(bool|boolean|float|half|double|long|complex)\b",
    re.I,
)
_CPU = re.compile(
    r"not implemented for '(Half|BFloat16|ComplexHalf|Float8|Float4|UInt16|UInt32|UInt64|Bits)|MKL FFT|Could not run"
    r"|half.*(CPU|GPU)|(?<!and )(on|for) (the )?CPU|deterministic|compil(ed|ing|ation)",
    re.I,
)
_NOWHERE = re.compile(
    r"\"(airy_ai\w*|\w*bessel_\w+|\w*polynomial_\w+|cdist\w*|pdist\w*|\w*cholesky\w*|ctc_loss\w*|erfcx\w*|geqrf\w*|histogram\w*"
    r"|ldl_\w+|linalg[._](eig|svd|lstsq|lu)\w*|log_ndtr\w*|lu_\w+|ndtri\w*|or[gm]qr\w*|triangular_solve\w*|zeta\w*)\" not implemented"
)
"""Kernels that no device of PyTorch has in half precision (``dtypes`` and ``dtypesIfCUDA`` of its operator database)."""
_OF_FAKES = re.compile(r"FakeTensor|tensor subclasses|meta tensor|Cannot access (storage|data)")
_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\((?P<name>[\w:.]+)\)>")


def is_about_dtypes(error: BaseException) -> bool:
    """True if a kernel says something of dtypes, rather than of sizes or numbers."""
    return _DTYPES.search(str(error)) is not None


def is_about_cpu(error: BaseException | str) -> bool:
    """True if a kernel refuses what kernels of other devices may take; also for the text of an error."""
    return _CPU.search(str(error)) is not None and _NOWHERE.search(str(error)) is None


def is_of_fakes(error: BaseException) -> bool:
    """True if torch refuses what it does with tensors that have numbers."""
    return isinstance(error, NotImplementedError) or _OF_FAKES.search(str(error)) is not None


def has_no_gradient(error: BaseException | None) -> bool:
    """True if autograd was asked for a gradient of what it did not track."""
    return "does not require grad and does not have a grad_fn" in str(error)


def is_overwritten(error: BaseException) -> bool:
    """True if what autograd saved for a gradient was written."""
    return "modified by an inplace operation" in str(error)


def overwritten_sizes(error: BaseException) -> list[int]:
    """The sizes of the tensor that was written, where the error says them."""
    found = re.search(r"Tensor \[([\d, ]*)\]", str(error))
    return [] if found is None else [int(size) for size in found[1].split(",") if size.strip()]


def is_of_script(error: BaseException) -> bool:
    """True if the TorchScript interpreter made this exception of another one."""
    return str(error).startswith("The following operation failed in the TorchScript interpreter")


def operator_without_fake(error: BaseException) -> str:
    """The name of an operator made by ``torch.library.custom_op`` that has no fake kernel; empty for other errors."""
    found = _NO_FAKE.search(str(error))
    return "" if found is None else found["name"]
