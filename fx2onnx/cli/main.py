"""The ``fx2onnx`` command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

import fx2onnx

COMMANDS = {
    "export": "export_command",
    "run": "run_command",
    "show": "show_command",
    "lint": "lint_command",
    "diff": "diff_command",
    "optimize": "optimize_command",
    "generate": "generate_command",
    "train": "train_command",
    "verify": "verify_command",
    "debug": "debug_command",
    "testcase": "case_command",
    "profile": "profile_command",
    "list": "list_command",
    "ops": "ops_command",
}
"""The function behind each command, in the file of ``fx2onnx/cli`` named as the command (``list`` in ``listing``)."""

app: typer.Typer
"""All commands; made when somebody asks for it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fx2onnx {fx2onnx.__version__}")
        raise typer.Exit()


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Export PyTorch modules to ONNX, run and check the result."""


def application(names: Iterable[str]) -> typer.Typer:
    """The command line with some of its commands. Each costs its imports and the reading of its signature."""
    made = typer.Typer(
        name="fx2onnx",
        help="Export PyTorch modules to ONNX, run and check the result.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        module = importlib.import_module(f"fx2onnx.cli.{'listing' if name == 'list' else name}")
        made.command(name)(getattr(module, COMMANDS[name]))
    return made


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = application(COMMANDS)
    return made


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 verification failed or a fault of fx2onnx, 2 a user's error."""
    # Sources are local by definition: the hub client must not go looking for what is missing. Its chatter about random
    # weights would break into the progress display.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    first = sys.argv[1:2]
    application(first if COMMANDS.keys() & set(first) else COMMANDS)()


if __name__ == "__main__":
    main()
