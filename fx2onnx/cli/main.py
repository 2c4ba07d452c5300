"""The ``fx2onnx`` command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import DOCS


class Command(NamedTuple):
    """A command: its group in the help, its function as ``file:function`` of this folder, and the first line of its own help."""

    group: str
    place: str
    help: str


COMMANDS = {
    name: Command(group, place, help)
    for group, name, place, help in (
        ("make", "export", "export:export_command", "Export a model and compare the file with PyTorch."),
        ("make", "export-folder", "export_folder:export_folder_command", "Export a generative model or a pipeline as a folder."),
        ("make", "export-training", "export_training:export_training_command", "Export training steps as a folder of ONNX files."),
        ("make", "export-many", "export_folder:export_many_command", "Export several models in processes of their own."),
        ("make", "optimize", "optimize:optimize_command", "Optimize any ONNX file and check the result."),
        ("make", "quantize", "optimize:quantize_command", "Quantize the weights of any ONNX file."),
        ("make", "testcase", "testcase:case_command", "Write an ONNX test directory with inputs and outputs."),
        ("check", "verify", "verify:verify_command", "Compare an ONNX file with its PyTorch module."),
        ("check", "locate", "verify:locate_command", "Find the first wrong node of an ONNX file."),
        ("check", "lint", "lint:lint_command", "Check whether a runtime can run an ONNX file."),
        ("check", "attest", "attest:attest_command", "Write or check a statement about an ONNX file."),
        ("check", "certify", "attest:certify_command", "Prove that one ONNX file computes what another does."),
        ("check", "diff", "diff:diff_command", "Compare two ONNX files."),
        ("look", "inspect", "show:inspect_command", "Show what is in an ONNX file or exported folder."),
        ("look", "profile", "profile:profile_command", "Measure what an export costs."),
        ("look", "list", "listing:list_command", "List the models of a source."),
        ("look", "ops", "listing:ops_command", "List the ATen operators that can be exported."),
        ("look", "doctor", "listing:doctor_command", "Show what is installed, missing or broken."),
        ("run", "run", "run:run_command", "Run an ONNX file and show its outputs."),
        ("run", "generate", "generate:generate_command", "Generate tokens from an exported folder."),
        ("run", "train", "train:train_command", "Train an exported folder without PyTorch."),
    )
}  # fmt: skip
_HEAD = f"""
Usage: fx2onnx COMMAND ...            fx2onnx COMMAND --help shows its options
Export PyTorch models to ONNX. Docs: {DOCS}
"""
_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class Commands(TyperGroup):
    """The commands, each imported when it is asked for; each costs its imports and the reading of its signature."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        from fx2onnx.cli.outcome import usage_errors

        with usage_errors(tuple(args), "fx2onnx"):
            return super().make_context(info_name, args, parent, **extra)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name) is None and cmd_name in COMMANDS:
            from fx2onnx.cli.help import HelpfulCommand

            file, _, function = COMMANDS[cmd_name].place.partition(":")
            alone = typer.Typer(add_completion=False, **_SETTINGS)
            alone.command(cmd_name, cls=HelpfulCommand)(
                getattr(importlib.import_module(f"fx2onnx.cli.{file}"), function)
            )
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:
            from fx2onnx.cli.old_spellings import respelled
            from fx2onnx.cli.outcome import end_with, usage_errors

            try:
                args = respelled(args, lambda name: self.get_command(ctx, name))
            except UserError as error:
                end_with(error, as_json="--json" in args)
            with usage_errors(args, "fx2onnx"):
                return super().resolve_command(ctx, args)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """All commands on one screen."""
        lines = _HEAD.splitlines()[1:]
        before = ""
        for name, (group, _, help) in COMMANDS.items():
            lines.append(f"{group if group != before else '':<7}{name:<17}{help}")
            before = group
        flags = "  ".join(max(param.opts, key=len) for param in self.get_params(ctx))
        formatter.write("\n".join([*lines, f"{'':<7}{flags}"]))


app = typer.Typer(name="fx2onnx", cls=Commands, no_args_is_help=True, add_completion=True, **_SETTINGS)


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
    """Export PyTorch models to ONNX; check, inspect and run ONNX files."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 verification failed or a bug in fx2onnx, 2 a user's error."""
    # Sources are local by definition: the hub client must not go looking for what is missing. Its chatter about random
    # weights would break into the progress display.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()


if __name__ == "__main__":
    main()
