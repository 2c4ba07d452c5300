"""Options over all commands: each word means one thing, old spellings keep working, and the help fits a screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import PANELS, SAMPLING
from fx2onnx.cli import old_spellings
from fx2onnx.cli.main import COMMANDS, app
from tests.cli.support import invoke
from tools import options_page

GROUP: Any = typer.main.get_command(app)
EVERY = {name: GROUP.get_command(None, name) for name in COMMANDS}
OTHER_TYPES = {
    "--engine": "commands that run a file once take one engine, those that compare take several",
    "--target": "lint has the default onnxruntime",
}
"""Flags whose type differs between commands, with the reason."""


def flags() -> dict[str, list[tuple[str, Any]]]:
    """The commands of each flag, and its parameter there."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, command in EVERY.items():
        for param in command.params:
            if param.param_type_name == "option":
                found.setdefault(max(param.opts, key=len), []).append((name, param))
    return found


def test_a_flag_means_one_thing_in_all_commands() -> None:
    for flag, uses in flags().items():
        first = uses[0][1]
        for name, param in uses[1:]:
            if flag != "--output":
                assert param.help == first.help, (flag, name)
            assert sorted(param.opts + param.secondary_opts) == sorted(first.opts + first.secondary_opts), (flag, name)
            assert param.rich_help_panel == first.rich_help_panel, (flag, name)
            if flag not in OTHER_TYPES:
                kinds = [(type(each.type), each.multiple, each.metavar) for each in (param, first)]
                assert kinds[0] == kinds[1] or flag == "--output", (flag, name)


def test_the_words_that_every_command_shares() -> None:
    found = {flag: {name for name, _ in uses} for flag, uses in flags().items()}
    assert found["--json"] == set(COMMANDS)
    makes = {name for name, command in COMMANDS.items() if command.group == "make"}
    assert found["--output"] >= makes | {"run", "train", "profile"}
    assert found["--verify"] >= makes - {"testcase"}
    converts = {"export", "export-folder", "export-many", "optimize"}
    assert found["--dtype"] == converts
    assert found["--module-dtype"] >= {"export", "verify", "locate", "testcase", "profile"}
    assert found["--dynamic"] == {"export", "export-many", "export-training", "optimize", "profile"}


def test_the_tables_of_the_page_are_those_of_the_commands() -> None:
    for file in options_page.FILES:
        assert file.read_text() == options_page.text(file), "python -m tools.options_page writes them"
    assert options_page.commands_without_table() == set()


def test_options_of_export_stand_in_panels() -> None:
    panels = [param.rich_help_panel for param in EVERY["export"].params if param.param_type_name == "option"]
    assert list(dict.fromkeys(panels)) == [panel for panel in PANELS if panel != SAMPLING]


def test_the_help_fits_a_screen() -> None:
    lines = invoke("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for name, command in COMMANDS.items():
        assert any(f"{name:<17}{command.help}" in line for line in lines), name
    assert any("--version" in line for line in lines)


def test_the_first_line_of_a_commands_help_is_that_of_the_overview() -> None:
    for name, command in EVERY.items():
        first = command.help.splitlines()[0]
        assert first.startswith(COMMANDS[name].help.removesuffix(".")), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["debug", "m.onnx", "zoo:a"], ["locate", "m.onnx", "zoo:a"]),
        (["show", "m.onnx", "--json"], ["inspect", "m.onnx", "--json"]),
        (["run", "m", "--save-outputs", "o.npz"], ["run", "m", "--output", "o.npz"]),
        (["run", "m", "--save-outputs=o.npz", "--random=3"], ["run", "m", "--output=o.npz", "--seed=3"]),
        (["train", "f", "--log", "l.json", "--batch", "3"], ["train", "f", "--report", "l.json", "--batch-size", "3"]),
        (["optimize", "a", "b", "--float16"], ["optimize", "a", "b", "--dtype=float16"]),
        (["profile", "zoo:a", "--json", "p.json"], ["profile", "zoo:a", "--output", "p.json"]),
        (["profile", "zoo:a", "--json=p"], ["profile", "zoo:a", "--output", "p"]),
        (["profile", "--json", "-", "zoo:a"], ["profile", "--json", "zoo:a"]),
        (["export", "zoo:a", "zoo:b", "-o", "out"], ["export-many", "zoo:a", "zoo:b", "-o", "out"]),
        (["export", "-o", "out", "-q", "zoo:*"], ["export-many", "-o", "out", "-q", "zoo:*"]),
        (["export", "zoo:a", "--training", "-o", "out"], ["export-training", "zoo:a", "-o", "out"]),
        (
            ["export", "hf:a", "--task=text-generation", "--dynamic", "default", "--capture=auto", "-o", "out"],
            ["export-folder", "hf:a", "--task=text-generation", "-o", "out"],
        ),
        (["export", "zoo:a", "--dtype", "float64"], ["export", "zoo:a", "--module-dtype", "float64"]),
        (["export", "a:b", "--training", "--dtype=float16"], ["export-training", "a:b", "--module-dtype=float16"]),
    ],
)
def test_an_old_spelling_works_and_says_the_new_one(
    old: list[str], new: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert old_spellings.respelled(old, EVERY.get) == new
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "DeprecationWarning: fx2onnx" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "zoo:a", "-o", "a.onnx", "--no-verify", "--opset", "18", "--task", "fill-mask"],
        ["export", "--bake", "x", "-o=a.onnx", "-q", "zoo:a?x=*"],
        ["export", "zoo:a", "--dtype", "float16", "--dynamic", "default"],
        ["profile", "--json", "zoo:a"],
        ["verify", "m.onnx", "zoo:a", "--module-dtype", "float16"],
        ["run", "m.onnx", "--output", "o.npz"],
        ["--help"],
        [],
    ],
)
def test_what_is_spelled_as_today_stays_so(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert old_spellings.respelled(list(arguments), EVERY.get) == arguments
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command", [("verify", "m.onnx", "zoo:a"), ("locate", "m.onnx", "zoo:a"), ("testcase", "zoo:a", "-o", "c")]
)
def test_dtype_of_the_file_is_no_option_of_commands_that_read_it(command: tuple[str, ...]) -> None:
    done = invoke(*command, "--dtype", "float16")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "[E001]" in done.stderr
    assert "--module-dtype" in done.stderr
    assert json.loads(invoke(*command, "--dtype", "float16", "--json").stdout)["code"] == "E001"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "zoo:mnist_cnn", "-o", "m.onnx", "--block", "32"], "--block is for --quantize"),
        (["optimize", "m.onnx", "o.onnx", "--keep", "Relu"], "--keep is for --dtype"),
        (["export", "zoo:mnist_cnn", "p.onnx"], "-o p.onnx"),
        (["optimize", "m.onnx"], "-o smaller.onnx"),
        (["export", "zoo:mnist_cnn", "-o", "o.onnx", "--dtype", "half"], "did you mean float16?"),
        (["export", "zoo:mnist_cnn", "-o", "o.onnx", "--quantize", "itn8"], "did you mean int8?"),
        (["export", "zoo:mnist_cnn", "-o", "o.onnx", "--module-dtype", "double"], "did you mean float64?"),
        (["optimize", "m.onnx", "o.onnx", "-o", "p.onnx"], "OUT and --output"),
        (["optimize", "m.onnx", "o.onnx", "--dynamic", "default"], "is for a source"),
        (["diff", "m.onnx", "m.onnx", "--engine", "runner", "--engine", "onnxruntime"], "one engine"),
    ],
)
def test_options_that_do_not_fit_are_one_error(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"")
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "[E001]" in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"), [("convert", "export"), ("simplify", "optimize"), ("check", "verify or lint")]
)
def test_a_command_of_another_tool_names_ours(name: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"did you mean {meant}"):
        old_spellings.respelled([name, "m.onnx"], EVERY.get)
