"""Commands and flags as they were spelled before: they keep working, with a line on stderr that says the new spelling."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.files.pipeline_index import is_parted, is_pipeline_source

PATTERN = r"(?P<kind>[\w.-]+):(?P<name>[^?]*[*\[][^?]*)(?P<query>\?.*)?"
"""A source that stands for several models: ``torchvision:resnet*``, ``timm:vit_[st]*?img_size=224``."""

COMMANDS = {"debug": "locate", "show": "inspect"}
_MEANT = {
    "convert": "export",
    "check": "verify or lint",
    "validate": "verify",
    "compare": "verify or diff",
    "simplify": "optimize",
    "info": "inspect",
    "benchmark": "run --profile",
}
"""Commands that other tools have."""
FLAGS = {
    "run": {"--save-outputs": "--output", "--random": "--seed"},
    "train": {"--log": "--report", "--batch": "--batch-size", "--state": "--resume"},
    "optimize": {"--float16": "--dtype=float16"},
}
"""The old names of flags and those of today, by command."""
_EXPORTS = frozenset({"export", "export-folder", "export-training", "export-many"})
_WITHOUT_EFFECT = frozenset(
    {("--dynamic", "default"), ("--capture", "auto"), ("--cache", "dynamic"), ("--logits", "all")}
)
"""Options of ``export`` and their defaults, which are dropped where the form is a command of its own now."""
_OF_MODULES = ("float32", "float64")
_OF_A_FILE = frozenset({"verify", "locate", "testcase"})


def respelled(args: list[str], command_of: Callable[[str], Any]) -> list[str]:
    """``args`` of the program in today's spelling. ``command_of`` gives the command of a name."""
    if not args:
        return args
    name, rest = args[0], _with_strict(args[1:])
    if name in COMMANDS:
        _say(name, COMMANDS[name])
        name = COMMANDS[name]
    if name in _MEANT:
        raise UserError(
            "E001", f"fx2onnx has no command {name!r}", next=[f"did you mean {_MEANT[name]}?", "fx2onnx --help"]
        )
    if name == "export":
        name, rest = _export_form(rest, command_of)
    if name in _EXPORTS:
        rest = _with_module_dtype(name, rest)
        _check_flags(name, rest, command_of)
    if name in _OF_A_FILE and any(flag == "--dtype" for _, flag, _ in _pairs(rest)):
        raise UserError(
            "E001",
            f"{name} has no --dtype: the file says what it was converted to",
            next=["leave it out", "where the module was cast before its export: --module-dtype"],
        )
    if name == "profile":
        rest = _with_output(rest)
    for index, word in enumerate(rest):
        flag, equals, value = word.partition("=")
        new = FLAGS.get(name, {}).get(flag)
        if new is not None:
            _say(f"{name} {flag}", f"{name} {new.replace('=', ' ')}")
            rest[index] = new + equals + value
    return [name, *rest]


def _with_strict(args: list[str]) -> list[str]:
    """``--fail-on warnings``, which other tools have, as ``--strict``."""
    words = list(args)
    for index, flag, value in reversed(list(_pairs(args))):
        if flag == "--fail-on":
            if value != "warnings":
                raise UserError("E001", f"--fail-on {value} is not known", next="--fail-on warnings, or --strict")
            words[index : index + (1 if "=" in args[index] else 2)] = ["--strict"]
    return words


def _say(old: str, new: str) -> None:
    typer.echo(f"DeprecationWarning: fx2onnx {old} is spelled fx2onnx {new} now", err=True)


def _pairs(args: list[str]) -> Iterator[tuple[int, str, str]]:
    """The place, the flag and the value (or the next word) of each word that begins with a dash."""
    for index, word in enumerate(args):
        if word == "--":
            return
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            yield index, flag, value if equals else (args[index + 1] if index + 1 < len(args) else "")


def _export_form(args: list[str], command_of: Callable[[str], Any]) -> tuple[str, list[str]]:
    """The command that makes what ``export`` with these arguments made."""
    flags = {flag for _, flag, _ in _pairs(args)}
    task = next((value for _, flag, value in _pairs(args) if flag == "--task"), None)
    sources = _positions(args, command_of("export"))
    is_folder = task is not None and _is_folder_task(task)
    name = "export"
    if len(sources) > 1 and sources[-1].endswith(".onnx"):
        raise UserError("E001", f"{sources[-1]} is no source", next=f"name the file to write with -o {sources[-1]}")
    if len(sources) > 1 or any(re.fullmatch(PATTERN, source) for source in sources):
        name = "export-many"
        for form, chosen in ((f"--task {task}", is_folder), ("--training", "--training" in flags)):
            if chosen:
                raise UserError("E001", f"{form} takes one model at a time")
    elif is_folder:
        name = "export-folder"
    elif any(map(is_pipeline_source, sources)) and not (_is_for_a_file(args) and any(map(is_parted, sources))):
        return "export-folder", args
    elif "--training" in flags:
        name, args = "export-training", [word for word in args if word != "--training"]
    known = {flag for param in command_of(name).params for flag in param.opts}
    for index, flag, value in reversed(list(_pairs(args))):
        if flag not in known and ((flag, value) in _WITHOUT_EFFECT or flag in ("--jobs", "-j")):
            del args[index : index + (1 if "=" in args[index] else 2)]
    if name != "export":
        said = {"export-folder": f"export --task {task}", "export-training": "export --training"}
        _say(said.get(name, "export with several models"), name)
    return name, args


def _is_for_a_file(args: list[str]) -> bool:
    return any(flag in ("-o", "--output") and value.endswith(".onnx") for _, flag, value in _pairs(args))


def _check_flags(name: str, args: list[str], command_of: Callable[[str], Any]) -> None:
    """Raises UserError E001 for an option that another of the export commands has."""

    def flags_of(command: str) -> set[str]:
        return {flag for param in command_of(command).params for flag in (*param.opts, *param.secondary_opts)}

    for flag in [flag for _, flag, _ in _pairs(args) if flag.startswith("--") and flag not in flags_of(name)]:
        others = [f"fx2onnx {other}" for other in sorted(_EXPORTS) if flag in flags_of(other)]
        if others:
            raise UserError(
                "E001",
                f"{flag} is no option of fx2onnx {name}",
                next=f"{' and '.join(others)} {'has' if len(others) == 1 else 'have'} it",
            )


def _is_folder_task(task: str) -> bool:
    from fx2onnx.cli.export import is_folder_task

    return is_folder_task(task)


def _positions(args: list[str], command: Any) -> list[str]:
    """The words that are neither flags nor values of flags."""
    alone = {
        flag
        for param in command.params
        if getattr(param, "is_flag", False)
        for flag in (*param.opts, *param.secondary_opts)
    }
    alone |= {"--training", "--again", "-h", "--help"}
    found: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            return [*found, *words]
        if not word.startswith("-") or word == "-":
            found.append(word)
        elif "=" not in word and word not in alone and not (word[1] != "-" and len(word) > 2):
            next(words, None)
    return found


def _with_module_dtype(name: str, args: list[str]) -> list[str]:
    """``--dtype`` converts the file; float32 and float64, and all dtypes of a training, were the module's."""
    for index, flag, value in _pairs(args):
        if flag == "--dtype" and (value in _OF_MODULES or name == "export-training"):
            _say(f"{name} --dtype {value}", f"{name} --module-dtype {value}")
            args[index] = args[index].replace("--dtype", "--module-dtype", 1)
    return args


def _with_output(args: list[str]) -> list[str]:
    """``profile --json FILE``, which prints the profile now. No source ends with ``.json``."""
    for index, flag, value in _pairs(args):
        if flag == "--json" and ("=" in args[index] or value == "-" or value.endswith(".json")):
            rest = args[index + (1 if "=" in args[index] else 2) :]
            new = ["--json"] if value == "-" else ["--output", value]
            _say(f"profile --json {value}", f"profile {' '.join(new)}")
            return [*args[:index], *new, *rest]
    return args
