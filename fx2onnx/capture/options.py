"""The options of a capture, and the patches of libraries that it is given. Imports no torch, so that options are made and checked before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import OUTPUT, SIZES, option

if TYPE_CHECKING:
    import torch

    from fx2onnx.sizes.assumptions import Assumption

STRATEGIES = ("auto", "symbolic", "fake", "export")
DATA_BRANCHES = ("error", "if")
BAKE_AUTO = "auto"
"""The capture chooses which inputs are constant."""


@dataclass(frozen=True)
class CaptureOptions:
    """Checked when made. Raises UserError E001.

    strategy: ``auto``, or the one to use. training: the mode to capture in; None: the one of each module. bake: inputs whose sample values become constants;
    ``auto``: those whose numbers Python needs.
    data_branches: ``if`` keeps both branches of a Python data-dependent decision; ``error`` refuses it (E104).
    samples: further calls; sizes that differ among the calls are dynamic.
    gradients: forward is known to take gradients: they are on, and composite operators are recorded by their parts.
    """

    strategy: str = "auto"
    dynamic_shapes: Any = None
    dynamic_axes: Any = None
    input_names: Sequence[str] | None = option(
        None, "Names of inputs in order, repeatable.", panel=OUTPUT, kind=list[str] | None, metavar="NAME"
    )
    output_names: Sequence[str] | None = option(
        None, "Names of outputs in order, repeatable.", panel=OUTPUT, kind=list[str] | None, metavar="NAME"
    )
    training: bool | None = False
    bake: Sequence[str] | str = ()
    data_branches: str = option(
        "if", "Data-dependent branches of Python: if (both are in the file) or error (E104).", panel=SIZES
    )
    samples: Sequence[object] = ()
    gradients: bool = False

    @property
    def baked(self) -> tuple[str, ...]:
        """The inputs that the user bakes."""
        return () if self.bake == BAKE_AUTO else tuple(self.bake)

    def __post_init__(self) -> None:
        check_choice("capture", self.strategy, STRATEGIES)
        check_choice("data_branches", self.data_branches, DATA_BRANCHES)
        if not isinstance(self.samples, list | tuple):
            what = f"samples is a {type(self.samples).__name__}, no list of calls"
            raise UserError("E001", what, next="give a list with the arguments of each call: samples=[(x,), (longer,)]")
        if not isinstance(self.bake, list | tuple | set | frozenset) and self.bake != BAKE_AUTO:
            step = (
                f"bake=[{self.bake if isinstance(self.bake, str) else 'NAME'!r}] for that input, or bake={BAKE_AUTO!r}"
            )
            raise UserError("E001", f"bake={self.bake!r} is not known", next=step)


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise UserError E001 where ``value`` is none of ``known``."""
    if value not in known:
        raise UserError("E001", f"{name}={value!r} is not known", next=f"one of {', '.join(known)}")


def check_kinds(given: Mapping[str, object], flags: Collection[str], tables: Collection[str]) -> None:
    """Raise UserError E001 where one of ``flags`` is neither True, False nor None, or one of ``tables`` is no dict."""
    for name, value in given.items():
        if name in flags and (getattr(value, "ndim", False) or value not in (True, False, None)):
            raise UserError("E001", f"{name}={value!r:.80} is not known", next=f"{name}=True or {name}=False")
        if name in tables and value is not None and not isinstance(value, Mapping):
            step = f"{name}={{key: value}}; help(fx2onnx.export) says of what"
            raise UserError("E001", f"{name} is {value!r:.80}, not a dict", next=step)


TracedCode: TypeAlias = frozenset[CodeType]
"""Functions that are to take the branch for traced code."""

Known: TypeAlias = "Callable[[torch.Tensor], bool]"
"""True for a tensor whose numbers are known during capture."""


class Patches:
    """No patches: every library as it is."""

    def apply(self, traced: TracedCode, known: Known) -> None:
        """Until ``Changes`` end, this thread runs the patched functions, those ``traced`` on their branch for tracing."""

    def notes(self) -> list[Assumption]:
        """Lines for the report about the patches that the last run called."""
        return []

    def warnings(self) -> list[str]:
        """A line for each patch that the last run left out, as the library is another than the patch knows."""
        return []

    def decided_by_data(self, error: BaseException) -> CodeType | None:
        """The function that has to be traced, where it is what raised ``error``."""
        return None
