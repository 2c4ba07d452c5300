"""Flags of commands: dataclasses of options as groups of flags, and the flags that no dataclass has, each with one meaning in all
commands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import CHECKS, INPUTS, OUTPUT, PANELS, SIZES, Flag, flag_of, kind_of

if TYPE_CHECKING:
    from fx2onnx.sources import Source


class Group(NamedTuple):
    """The fields of ``options`` that have a flag. The command gets them as keywords, or as the dataclass with ``is_made``: None
    where the field that the others belong to is not given.
    """

    options: type
    is_made: bool = False
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def fields(self) -> Iterator[tuple[str, Field[Any], Flag]]:
        """Each with the name of its parameter, which is its longest flag."""
        for item in dataclasses.fields(self.options):
            flag = flag_of(item)
            if flag is not None and item.name not in self.skip and (not self.only or item.name in self.only):
                longest = max((name.partition("/")[0] for name in flag.names), key=len, default=item.name)
                yield longest.removeprefix("--").replace("-", "_"), item, flag

    def taken(self, given: dict[str, Any]) -> Any:
        """The values of the group, which leave ``given``. Raises UserError E001 where one is given without what it belongs to."""
        values, asked, key = {}, [], None
        for name, item, flag in self.fields():
            value = given.pop(name)
            if isinstance(value, list):
                value = tuple(value)
            default = item.default if item.default is not MISSING else None
            if item.default is MISSING and self.is_made:
                key = name, value, flag
            elif value not in (None, default):
                asked.append(name)
            values[item.name] = default if value is None else value
        if not self.is_made:
            return values
        if key is not None and key[1] is None:
            if asked:
                needed = f"--{key[0].replace('_', '-')}"
                example = "int8" if key[0] == "quantize" else "float16"
                raise UserError(
                    "E001", f"--{asked[0].replace('_', '-')} is for {needed}", next=f"add {needed} {example}"
                )
            return None
        return self.options(**values)


def groups_of(command: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Group]]:
    """The signature with a parameter for each flag, and the groups by the parameters that they stand in for."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Group] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = next((one for one in _annotations(parameter) if isinstance(one, Group)), None)
        if group is None:
            parameters.append(parameter)
            continue
        groups[parameter.name] = group
        parameters += [_parameter(name, item, flag) for name, item, flag in group.fields()]
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    required = [item.replace(kind=kinds[0]) for item in parameters if item.default is item.empty]
    others = [item.replace(kind=kinds[1]) for item in parameters if item.default is not item.empty]
    others.sort(key=_place_of_panel)
    return signature.replace(parameters=[*required, *others]), groups


def _place_of_panel(parameter: inspect.Parameter) -> int:
    asked = next(iter(_annotations(parameter)), None)
    panel = getattr(asked, "rich_help_panel", None)
    return PANELS.index(panel) if panel in PANELS else -1


def _annotations(parameter: inspect.Parameter) -> tuple[Any, ...]:
    return get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()


def _parameter(name: str, item: Field[Any], flag: Flag) -> inspect.Parameter:
    kind = kind_of(item, flag)
    default = None if item.default is MISSING or flag.kind is not None else item.default
    word = f"--{name.replace('_', '-')}"
    names = flag.names or ((f"{word}/--no-{word[2:]}",) if item.default is True or kind == bool | None else (word,))
    asked = typer.Option(*names, help=flag.help, rich_help_panel=flag.panel, metavar=flag.metavar)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, asked])


def gathered(groups: Mapping[str, Group], given: Mapping[str, Any]) -> dict[str, Any]:
    """The command's own arguments, from one for each flag. Raises UserError E001."""
    left = dict(given)
    taken = {name: group.taken(left) for name, group in groups.items()}
    return left | taken


def flag(names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    """An option of a command: its names, apart by blanks, its help and the panel of the help that it stands in."""
    return typer.Option(*names.split(), help=help, rich_help_panel=panel, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument of the command line, which has no flag."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


DATA = flag(
    "--data", "A .npz file with an array for each input and target (in verify: labels). In train also: digits.",
    INPUTS, metavar="FILE.npz",
)  # fmt: skip
_SPECS = "zoo:NAME, torchvision:NAME, timm:NAME, hf:FOLDER_OR_TYPE or package.module:factory, with ?key=value"
SourceArgument = Annotated[str, argument("SOURCE", f"{_SPECS}.")]
SourcesArgument = Annotated[
    list[str],
    argument("SOURCE...", f"{_SPECS}; NAME may be a pattern: 'resnet*'."),
]
SourceFlag = Annotated[
    str | None,
    flag("--source", "The PyTorch module whose results are expected, such as hf:FOLDER.", INPUTS, metavar="SOURCE"),
]
Seed = Annotated[int, flag("--seed", "Seed of random numbers.", INPUTS)]
Inputs = Annotated[
    list[str] | None,
    flag(
        "--input -i",
        "Values of an input, repeatable. Default: random, or the example inputs of the source.",
        INPUTS,
        metavar="NAME=FILE.npy",
    ),
]


def names_of(texts: Iterable[str] | None) -> tuple[str, ...]:
    """The names of a repeatable option that takes several, ``--bake a,b``."""
    return tuple(name for text in texts or () for name in text.split(","))


Dim = Annotated[
    list[str] | None,
    flag("--dim", "Size of a dynamic dimension, repeatable. A small size where not given.", INPUTS, metavar="NAME=N"),
]
Bake = Annotated[
    list[str] | None,
    flag(
        "--bake",
        "Example inputs whose values are constants of the file, repeatable. auto: of inputs whose values Python needs.",
        INPUTS,
        metavar="NAME,...",
    ),
]
Dynamic = Annotated[
    list[str] | None,
    flag(
        "--dynamic",
        "Dynamic axes, repeatable: input_ids:0=batch,1=sequence; none; or default: those of the source.",
        SIZES,
        metavar="NAME:AXIS=DIM,...",
    ),
]
Json = Annotated[bool, flag("--json", "Print the result, or the error, as JSON on stdout.", OUTPUT)]
Quiet = Annotated[bool, flag("--quiet -q", "Show no progress and no summary.", OUTPUT)]
Report = Annotated[
    Path | None,
    flag("--report", "Write the result as JSON to this file, too.", OUTPUT, metavar="FILE.json"),
]
Html = Annotated[
    Path | None,
    flag("--html", "Write the result as a page.", OUTPUT, metavar="FILE"),
]
Trace = Annotated[
    Path | None,
    flag("--trace", "Write a Chrome trace, which Perfetto opens.", OUTPUT, metavar="FILE"),
]
Verify = Annotated[
    bool,
    flag("--verify/--no-verify", "Compare the result with what it was made from.", CHECKS),
]
Strict = Annotated[
    bool,
    flag("--strict", "Fail where there is a warning, and write nothing. Also: --fail-on warnings.", CHECKS),
]
_ENGINE = flag(
    "--engine",
    "What runs the file: runner, onnxruntime, onnxruntime:PROVIDER, reference or openvino. Repeatable in verify, locate and "
    "optimize; run, generate and train take one of the first two.",
    CHECKS,
    metavar="NAME",
)
Engines = Annotated[list[str] | None, _ENGINE]
OneEngine = Annotated[str | None, _ENGINE]
Faults = Annotated[
    Path | None,
    flag(
        "--faults",
        "A table of known faults of engines beside those of fx2onnx. locate adds what it finds.",
        CHECKS,
        metavar="FILE",
    ),
]
CaseWeights = Annotated[
    str,
    flag(
        "--case-weights",
        "Weights of the test case: full, or statistics: random numbers like them (and weights.json).",
        OUTPUT,
    ),
]


def output(help: str, metavar: str = "FILE") -> Any:
    """``-o``: where the result of a command goes."""
    return flag("--output -o", help, OUTPUT, metavar=metavar)


@contextlib.contextmanager
def stand_ins_of(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Hand on the options of a source without ``stand_ins``, whose packages of GPU kernels can be imported within the block."""
    others = {name: value for name, value in sample.items() if name != "stand_ins"}
    packages: str | None = sample.get("stand_ins")
    if packages is None:
        yield others
        return
    from fx2onnx.model_patches import stand_ins

    with stand_ins(*(() if packages == "missing" else packages.split(","))):
        yield others


def resolve_source(spec: str, **asked: Any) -> Source:
    """``fx2onnx.sources.resolve`` without the warnings of the libraries that it imports; ``stand_ins``: packages of GPU kernels."""
    from fx2onnx import sources

    with warnings.catch_warnings(action="ignore"), stand_ins_of(asked) as others:
        return sources.resolve(spec, **others)
