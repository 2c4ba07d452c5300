"""The help of a command: examples, then its options in panels, in 80 columns and fewer than 60 lines."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from fx2onnx.base.options import PANELS
from fx2onnx.cli.outcome import usage_errors

MOST_LINES = 59
"""Lines of ``--help``. Where all options take more, those of ``RARE`` are shown by ``--help-all`` only."""
_WIDTH = 80
_NAMES_WIDTH = 26
"""Columns of the names of options; longer names have a line of their own."""
RARE = frozenset([
    "block", "exclude", "format", "embeddings", "keep_worst", "accuracy", "calibration", "method", "act_order",
    "activations", "keep", "io", "checks", "capture", "bake", "module_dtype", "functions", "fused", "faults",
    "case_weights", "cluster", "limit", "again", "effort", "external_data", "external_data_bytes", "metadata",
    "attest", "state", "input_names", "output_names", "data_branches", "trust_source", "length_penalty",
    "num_return_sequences", "optimize", "explain", "attention", "write", "fail_if_slower", "speedscope", "image_size",
    "seq", "nms", "num_assistant_tokens", "stand_ins", "package", "layout",
    "kv_calibration", "drafter", "use_mtp",
    "no_repeat_ngram_size",
])  # fmt: skip
"""Parameters that few need."""
EXAMPLES = {
    "export": (
        "fx2onnx export torchvision:resnet18 -o resnet18.onnx",
        "fx2onnx export net.py:make -o net.onnx --dynamic image:0=batch",
    ),
    "export-folder": (
        "fx2onnx export-folder hf:my-llama -o llama --quantize int4",
        "fx2onnx export-folder diffusers:my-sd -o sd",
    ),
    "export-training": ("fx2onnx export-training net:make -o training --optimizer adamw",),
    "export-many": ("fx2onnx export-many 'torchvision:resnet*' -o out --jobs 2",),
    "optimize": ("fx2onnx optimize model.onnx -o smaller.onnx",),
    "quantize": ("fx2onnx quantize model.onnx -o small.onnx --kind int4",),
    "testcase": ("fx2onnx testcase net.onnx --source net:make -o case",),
    "verify": (
        "fx2onnx verify net.onnx net:make",
        "fx2onnx verify net.onnx net:make --input image=image.npy",
    ),
    "locate": ("fx2onnx locate net.onnx net:make",),
    "attest": ("fx2onnx attest model.onnx", "fx2onnx attest model.onnx --check --source net:make"),
    "certify": ("fx2onnx certify model.onnx smaller.onnx",),
    "lint": ("fx2onnx lint model.onnx --target onnxruntime-1.19",),
    "diff": ("fx2onnx diff old.onnx new.onnx --numbers",),
    "inspect": ("fx2onnx inspect model.onnx --html model.html",),
    "profile": ("fx2onnx profile torchvision:resnet18 --compare torch --html cost.html",),
    "list": ("fx2onnx list torchvision resnet", "fx2onnx list hf llama"),
    "ops": ("fx2onnx ops 'aten.conv*'", "fx2onnx ops --missing --opset 17"),
    "run": ("fx2onnx run model.onnx -i image=image.npy -o outputs.npz",),
    "generate": ("fx2onnx generate llama --prompt-ids 1,15043,29892",),
    "train": ("fx2onnx train training --data digits --steps 200",),
    "doctor": ("fx2onnx doctor",),
}
"""Calls of each command that are worth copying."""
_KINDS = {"str": "WORD", "text": "WORD", "int": "N", "integer": "N", "integer range": "N", "int range": "N", "path": "PATH"}  # fmt: skip


class HelpfulCommand(TyperCommand):
    """A command with ``--help`` for the options that most need and ``--help-all`` for all."""

    def get_params(self, ctx: Any) -> list[Any]:
        every = TyperOption(
            param_decls=["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show all options and exit.",
            callback=_show_all,
        )
        return [*super().get_params(ctx), every]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with usage_errors(tuple(args), f"fx2onnx {self.name}"):
            return super().make_context(info_name, args, parent, **extra)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_of(self, ctx, whole=False))


def _show_all(ctx: Any, param: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        typer.echo(help_of(ctx.command, ctx, whole=True))
        ctx.exit()


def help_of(command: Any, ctx: Any, *, whole: bool) -> str:
    """The help; without ``whole`` the rare options are left out where it has too many lines."""
    lines = _lines(command, ctx, frozenset())
    if not whole and len(lines) > MOST_LINES:
        lines = _lines(command, ctx, RARE)
    return "\n".join(lines)


def _lines(command: Any, ctx: Any, left_out: frozenset[str]) -> list[str]:
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.get_params(ctx) if param.param_type_name == "option"]
    shown = [option for option in options if option.name not in left_out]
    words = " ".join(argument.metavar for argument in arguments)
    lines = [f"Usage: fx2onnx {command.name} [OPTIONS] {words}".rstrip(), ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [*textwrap.wrap(" ".join(paragraph.split()), width), ""]
    examples = EXAMPLES.get(command.name, ())
    lines += [_title("Examples" if len(examples) > 1 else "Example"), *(f"  {each}" for each in examples), ""]
    if arguments:
        lines += [_title("Arguments"), *_rows(((each.metavar, each.help or "") for each in arguments), width), ""]
    panels = list(dict.fromkeys(getattr(option, "rich_help_panel", None) or "Options" for option in shown))
    panels.sort(key=lambda panel: PANELS.index(panel) if panel in PANELS else -1)
    for panel in panels:
        inside = [each for each in shown if (getattr(each, "rich_help_panel", None) or "Options") == panel]
        lines += [_title(panel), *_rows(((_names(each), meaning_of(each)) for each in inside), width), ""]
    if len(shown) < len(options):
        lines += [f"{len(options) - len(shown)} more options: fx2onnx {command.name} --help-all", ""]
    return lines[:-1]


def _title(text: str) -> str:
    return typer.style(f"{text}:", bold=True)


def _rows(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Names in one column, what they mean in another."""
    found: list[str] = []
    indent = _NAMES_WIDTH + 4
    for names, meaning in rows:
        text = textwrap.wrap(meaning, width - indent, break_long_words=False, break_on_hyphens=False)
        head = f"  {names:<{_NAMES_WIDTH}}  "
        if len(names) <= _NAMES_WIDTH and text:
            head += text.pop(0)
        found += [head, *(" " * indent + line for line in text)]
    return [line.rstrip() for line in found]


def _names(option: Any) -> str:
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: name.startswith("--"))
    return " ".join(filter(None, (", ".join(names), value_of(option))))


def value_of(option: Any) -> str:
    """The word that stands for an option's value; empty for a flag."""
    choices = getattr(option.type, "choices", None)
    if option.metavar or option.is_flag or option.name == "help":
        return option.metavar or ""
    return ",".join(choices) if choices else _KINDS.get(option.type.name, "NUMBER")


def meaning_of(option: Any) -> str:
    """The meaning of an option, with its default."""
    shown = getattr(option.default, "value", option.default)
    if option.is_flag or shown in (None, "", ()):
        on = " Default: yes." if option.is_flag and option.secondary_opts and option.default else ""
        return f"{option.help}{on}"
    return f"{option.help} Default: {shown}."
