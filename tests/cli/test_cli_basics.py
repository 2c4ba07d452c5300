"""Help, version, listing, errors and exit codes of the command line."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import fx2onnx
from fx2onnx.base.errors import Fx2OnnxError, UserError, VerificationError
from fx2onnx.cli import outcome
from fx2onnx.cli.main import COMMANDS
from tests.cli.support import invoke

_HEAVY = ("torch", "onnx", "numpy", "onnx_ir", "onnxruntime", "transformers", "torchvision")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("export", "--opset-version", "--opset"),
        ("export", "--dynmic", "--dynamic"),
        ("export", "--opset_version", "--opset"),
        ("export", "--input_names", "--input-names"),
        ("quantize", "--scheme", "--kind"),
        ("export", "--dynamic-axes", "--dynamic"),
        ("export", "--fp16", "--dtype float16"),
        ("quantize", "--bits", "--kind"),
        ("run", "--zyx", None),
    ],
)
def test_an_unknown_option_names_what_it_stands_for_alone(command: str, typed: str, meant: str | None) -> None:
    text = json.loads(invoke(command, typed, "--json").stdout)["what"]
    assert text == f"No such option: {typed}" + (f" (Possible options: {meant})" if meant else "")
    assert text in invoke(command, typed).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "--zyx"],
        ["lint"],
        ["zyx"],
        ["run", "a.onnx", "--seed", "x"],
        ["verify", "a.onnx", "b", "c", "d"],
        ["--zyx"],
    ],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_wrong_call_is_an_error_with_its_page(arguments: list[str], as_json: list[str]) -> None:
    done = invoke(*arguments, *as_json)
    assert done.exit_code == 2
    shown = done.stdout if as_json else done.stderr
    assert "E001" in shown
    assert "errors.html#e001" in shown
    assert f"fx2onnx {arguments[0]} --help" in shown or "fx2onnx --help" in shown


def test_a_call_without_arguments_shows_the_commands() -> None:
    done = invoke()
    assert done.exit_code == 2
    assert "Usage: fx2onnx COMMAND" in done.stderr
    assert "\nmake   export " in done.stderr


@pytest.mark.long_cases(but=["arguments5"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["export", "--help"],
        ["export-many", "--help"],
        ["optimize", "--help"],
        ["run", "--help"],
        ["ops", "--help"],
        ["profile", "--help"],
        ["--version"],
    ],
)
def test_help_is_quick_and_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from fx2onnx.cli.main import main
sys.argv = ["fx2onnx", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in {_HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    least_seconds = bare_seconds = float("inf")
    for _ in range(4):
        before = _children_seconds()
        done = run_python(code)
        least_seconds = min(least_seconds, _children_seconds() - before)
        assert done.returncode == 0, done.stderr
        assert done.stderr.strip() == "[]"
        assert "fx2onnx" in done.stdout
        if least_seconds < 0.3:
            return
        before = _children_seconds()
        run_python(_BARE)
        bare_seconds = min(bare_seconds, _children_seconds() - before)
    # A busy machine stretches processor time, too, but that of any such program alike.
    assert least_seconds < 3 * bare_seconds, f"{least_seconds:.2f} s, and {bare_seconds:.2f} s for typer alone"


_BARE = """
import sys, typer
app = typer.Typer(rich_markup_mode="rich")
app.command()(lambda: None)
sys.argv = ["bare", "--help"]
app()
"""


def _children_seconds() -> float:
    """Processor time of the processes that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def test_list_names_models_one_per_line() -> None:
    assert invoke("list", "zoo", "resnet").stdout.split() == ["fcn_resnet50", "resnet18", "resnet50"]
    assert invoke("list", "torchvision", "vgg1?").stdout.split() == ["vgg11", "vgg13", "vgg16", "vgg19"]
    assert json.loads(invoke("list", "hf", "distilbert", "--json").stdout) == ["distilbert"]


def test_list_without_a_kind_shows_the_kinds() -> None:
    shown = invoke("list").stdout
    assert all(f"{kind}:" in shown for kind in ("zoo", "torchvision", "timm", "hf", "package.module"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list", "zoo", "nothing_like_it"], "E601"),
        (["list", "zooo"], "E601"),
        (["export", "zoo:resnet5", "-o", "{folder}/x.onnx"], "E601"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/missing/x.onnx"], "E301"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}"], "E301"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--report", "{folder}/missing/r.json"], "E301"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--report", "{folder}/../{name}/x.onnx"], "E001"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "x=0"], "E001"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "x:0=batch,0=n"], "E001"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "x:-5=n"], "E105"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", ""], "E001"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "y:0=batch"], "E105"),
        (["inspect", "{folder}/missing.onnx"], "E302"),
        (["inspect", "{folder}"], "E302"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "x:4=batch"], "E105"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--batch", "0"], "E001"),
        (["verify", "{folder}/missing.onnx", "zoo:mnist_cnn"], "E302"),
        (["run", "{folder}/missing.onnx"], "E302"),
        (["run", "{folder}"], "E302"),
        (["export", "zoo:mnist_cnn", "-o", "{folder}/x.onnx", "--dynamic", "auto"], "E001"),
        (["export-many", "models:*", "-o", "{folder}/out"], "E601"),
        (["export-many", "my.models:net_[ab]", "-o", "{folder}/out"], "E601"),
    ],
)
def test_a_users_mistake_is_one_block_and_exit_code_2(arguments: list[str], code: str, tmp_path: Path) -> None:
    arguments = [argument.format(folder=tmp_path, name=tmp_path.name) for argument in arguments]
    plain = invoke(*arguments)
    assert plain.exit_code == 2
    assert f"[{code}]" in plain.stderr
    assert "Traceback" not in plain.output
    assert plain.stdout == ""
    as_json = invoke(*arguments, "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["code"] == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["export", "zoo:mnist_cnn"], ["exprot"], ["run"], ["list", "--nope"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    plain, as_json = invoke(*arguments), invoke(*arguments, "--json")
    assert (plain.exit_code, plain.stdout) == (as_json.exit_code, as_json.stderr) == (2, "")
    error = json.loads(as_json.stdout)
    assert error["code"] == "E001"
    assert error["next"]


def test_a_missing_file_names_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    for name, step in (
        ("modle.onnx", f"did you mean {tmp_path / 'model.onnx'}?"),
        ("other", f"it is not in '{tmp_path}'"),
        ("none/model.onnx", "there is no folder"),
    ):
        for command in ("inspect", "lint", "run", "attest"):
            assert step in json.loads(invoke(command, tmp_path / name, "--json").stdout)["next"][0]
        with pytest.raises(UserError) as caught:
            fx2onnx.lint(tmp_path / name)
        assert step in caught.value.next[0]


@pytest.mark.long
def test_an_unwritable_path_fails_before_anything_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from fx2onnx.cli.main import main
sys.argv = ["fx2onnx", "export", "zoo:resnet50", "-o", {str(tmp_path / "missing" / "x.onnx")!r}]
try:
    main()
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
    assert run_python(code).stdout.split() == ["2", "False"]


class TestReportsErrors:
    @pytest.mark.parametrize(
        ("error", "exit_code", "shown"),
        [
            (UserError("E001", "wrong argument"), 2, "[E001] wrong argument"),
            (VerificationError("E501", "outputs differ"), 1, "[E501] outputs differ"),
            (KeyError("gone"), 1, "[E900] fx2onnx failed with KeyError"),
        ],
    )
    def test_exit_codes(self, error: Exception, exit_code: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = self._end_of(error, capsys)
        assert code == exit_code
        assert shown in err
        assert "Traceback" not in err
        assert out == ""

    def test_json_has_every_field(self, capsys: pytest.CaptureFixture[str]) -> None:
        error = UserError("E001", "wrong argument", why="a reason", next=["one", "two"])
        _, out, err = self._end_of(error, capsys, json_output=True)
        assert json.loads(out) == error.as_dict()
        assert err == ""

    def test_json_has_no_numbers_that_json_lacks(self, capsys: pytest.CaptureFixture[str]) -> None:
        outcome.print_json({"a": [float("nan"), -float("inf")], "b": {"c": float("inf"), "d": 1.5}})
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert found == {"a": ["nan", "-inf"], "b": {"c": "inf", "d": 1.5}}

    @pytest.mark.parametrize("error", [UserError("E001", "wrong"), KeyError("gone")])
    def test_the_traceback_is_shown_on_request(
        self, error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FX2ONNX_TRACEBACK", "1")
        _, _, err = self._end_of(error, capsys)
        assert "Traceback" in err
        assert "in failing" in err

    def _end_of(self, error: Exception, capsys: pytest.CaptureFixture[str], **keywords: bool) -> tuple[int, str, str]:
        import typer

        def failing(json_output: bool = False) -> None:
            raise error

        with pytest.raises(typer.Exit) as ended:
            outcome.reports_errors(failing)(**keywords)
        captured = capsys.readouterr()
        return ended.value.exit_code, captured.out, captured.err


def test_error_classes_have_the_exit_codes_that_the_help_promises() -> None:
    assert (Fx2OnnxError.exit_code, UserError.exit_code, VerificationError.exit_code) == (1, 2, 1)


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "fx2onnx", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fx2onnx ")


@pytest.mark.long
def test_a_command_is_made_without_the_others() -> None:
    code = """
import sys
from fx2onnx.cli.main import COMMANDS, main
sys.argv = ["fx2onnx", "run", "--help"]
try:
    main()
except SystemExit:
    places = {command.place.partition(":")[0] for command in COMMANDS.values()}
    print([name for name in places if f"fx2onnx.cli.{name}" in sys.modules], file=sys.stderr)
"""
    assert run_python(code).stderr.split() == ["['run']"]


def test_every_command_is_known() -> None:
    folder = Path(outcome.__file__).parent
    defined = [
        name for file in folder.glob("*.py") for name in re.findall(r"^def (\w+_command)\(", file.read_text(), re.M)
    ]
    assert sorted(defined) == sorted(command.place.partition(":")[2] for command in COMMANDS.values())
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from fx2onnx.cli.main import nothing  # noqa: F401


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    code = "import sys; sys.argv = ['fx2onnx']; from fx2onnx.cli.main import main; main()"

    def said(**variables: str) -> str:
        environment = {**os.environ, **variables}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout

    assert "_FX2ONNX_COMPLETE" in said(_FX2ONNX_COMPLETE=f"source_{shell}")
    asked = {"_FX2ONNX_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for words, wanted in (("fx2onnx li", {"lint", "list"}), ("fx2onnx lint --tar", {"--target"})):
        given = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words}
        assert wanted <= set(re.findall(r"[-\w]+", said(**asked, **given)))
