"""The ``fx2onnx`` command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import gc
import os
from typing import Annotated

import typer

import fx2onnx
from fx2onnx.cli import (
    debug,
    diff,
    export,
    generate,
    lint,
    listing,
    ops,
    optimize,
    profile,
    run,
    show,
    testcase,
    train,
    verify,
)

GARBAGE_THRESHOLD = 50_000
"""New containers between two searches for cyclic garbage: importing torch makes a million that all stay, and Python's own
threshold searches them for a tenth of the time."""

app = typer.Typer(
    name="fx2onnx",
    help="Export PyTorch modules to ONNX, run and check the result.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fx2onnx {fx2onnx.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Export PyTorch modules to ONNX, run and check the result."""


app.command("export")(export.export_command)
app.command("run")(run.run_command)
app.command("show")(show.show_command)
app.command("lint")(lint.lint_command)
app.command("diff")(diff.diff_command)
app.command("optimize")(optimize.optimize_command)
app.command("generate")(generate.generate_command)
app.command("train")(train.train_command)
app.command("verify")(verify.verify_command)
app.command("debug")(debug.debug_command)
app.command("testcase")(testcase.case_command)
app.command("profile")(profile.profile_command)
app.command("list")(listing.list_command)
app.command("ops")(ops.ops_command)


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 verification failed or a fault of fx2onnx, 2 a user's error."""
    # Sources are local by definition: the hub client must not go looking for what is missing. Its chatter about random
    # weights would break into the progress display.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    gc.set_threshold(GARBAGE_THRESHOLD)
    app()


if __name__ == "__main__":
    main()
