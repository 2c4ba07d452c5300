"""What a user sees of results and failures: short forms, tracebacks of his own code, torch's error class, the logger."""

from __future__ import annotations

import logging
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.exporting.result import ExportedFolder
from fx2onnx.sources import Source
from fx2onnx.verify.locating.first_wrong import FirstWrong
from fx2onnx.verify.locating.first_wrong import NodeDifference as ValueDifference


class Unknown(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(x.sum().item().hex())


class TooWide(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 2)


def failure(module: torch.nn.Module) -> Any:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module, (torch.randn(3),))
    return caught.value


def files_of(error: BaseException) -> set[str]:
    return {frame.filename for frame in traceback.extract_tb(error.__traceback__)}


@pytest.mark.parametrize("module", [Unknown(), TooWide()])
def test_a_failed_export_shows_frames_of_the_user_only(
    module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = failure(module)
    shown = "".join(traceback.format_exception(error))
    assert files_of(error) == {__file__}
    assert f"fx2onnx{'/'}capture" not in shown
    assert "site-packages/torch/" not in shown
    assert len(shown.splitlines()) < 60
    monkeypatch.setenv("FX2ONNX_TRACEBACK", "full")
    assert len(files_of(failure(module))) > 3


def test_functions_on_files_show_frames_of_the_user_only(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    file = str(tmp_path / "empty.onnx")
    for function in (fx2onnx.inspect, fx2onnx.lint, fx2onnx.optimize, lambda path: fx2onnx.diff(path, path)):
        with pytest.raises(fx2onnx.UserError) as caught:
            function(file)
        assert files_of(caught.value) == {__file__}


def test_handlers_of_torch_onnx_catch_the_errors() -> None:
    with pytest.raises(torch.onnx.OnnxExporterError) as caught:
        fx2onnx.export(Unknown(), (torch.randn(3),))
    error: Any = caught.value
    assert isinstance(error, fx2onnx.UserError)
    assert (type(error).__name__, type(error).__module__, error.code) == ("UserError", "fx2onnx.base.errors", "E104")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, fx2onnx.UserError)
    assert str(again) == str(error)


@pytest.mark.long
def test_exports_in_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(fx2onnx.UserError, match="E104"):
            pool.submit(fx2onnx.export, Unknown(), (torch.randn(3),)).result()
        assert pool.submit(fx2onnx.export, torch.nn.ReLU(), (torch.randn(3),)).result().report.opset == 20


def test_results_are_short_where_they_are_shown(tmp_path: Path) -> None:
    module = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(30)])
    names = [f"{'name' * 30}_{index}" for index in range(1)]
    result = fx2onnx.export(module, (torch.randn(2, 8),), input_names=names, profile=True)
    verdict = fx2onnx.verify(result, torch.nn.Linear(8, 8), (torch.randn(2, 8),), effort="quick")
    optimized = fx2onnx.optimize(result.model_proto, verify=False)
    one, other = str(tmp_path / "one.onnx"), str(tmp_path / "other.onnx")
    result.save(one)
    fx2onnx.export(torch.nn.Sequential(*module[:20]), (torch.randn(2, 8),), other)
    difference = fx2onnx.diff(one, other)
    wrong = FirstWrong(
        "file", ("a",) * 99, "x", None, "", ("b" * 900,), ValueDifference(0.5, 0.1, 2, 3), "c", "d" * 900
    )
    for shown in (result, result.report, result.profile, verdict, optimized, difference, wrong):
        assert len(repr(shown)) < 500
        assert "\n" not in repr(shown)
        assert repr(shown).startswith(f"<fx2onnx.{type(shown).__name__} ")
        page = shown._repr_html_()  # type: ignore[union-attr]
        assert page.startswith("<table>")
        assert len(page) < 5000
    assert "pre-line" in verdict._repr_html_(), "a line for each output that differs"
    assert "differ" not in str(result.report)
    assert str(result.report).startswith("exported in")
    assert str(verdict) == verdict.describe()


@pytest.mark.parametrize("options", [{"kind": "int8"}, {"kind": "int4"}, {}], ids=["int8", "int4", "optimize"])
def test_an_optimized_model_can_be_pickled(options: dict[str, str]) -> None:
    model = fx2onnx.export(torch.nn.Linear(64, 64), (torch.randn(2, 64),)).model_proto
    verb = fx2onnx.quantize if options else fx2onnx.optimize
    result = verb(model, verify=False, **options)  # type: ignore[operator]
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(result)
    feeds = {"input": torch.ones(2, 64).numpy()}
    outputs = [fx2onnx.runner.InferenceSession(each.model).run(None, feeds)[0] for each in (result, again)]
    assert (outputs[0] == outputs[1]).all()


def test_an_exported_folder_leaves_its_modules_out_of_a_pickle() -> None:
    module = torch.nn.Linear(2, 2)
    module.local = lambda: None  # type: ignore[assignment]
    folder = ExportedFolder(Path("x"), ["a.onnx"], sources={"a.onnx": Source("a", module)})
    again = pickle.loads(pickle.dumps(folder))
    assert (again.files, again.sources, len(folder.sources)) == (["a.onnx"], {}, 1)


def test_the_logger_hears_of_exports_and_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fx2onnx"):
        fx2onnx.export(torch.nn.ReLU(), (torch.randn(3),), operator_export_type=1)
    texts = {record.levelname: record.getMessage() for record in caplog.records}
    assert "operator_export_type=1 has no effect" in texts["WARNING"]
    assert texts["INFO"].startswith("exported in")
    assert texts["DEBUG"] == "run of the module: fake"


def test_values_inside_of_a_result() -> None:
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval(), torch.randn(3, 4)
    result = fx2onnx.export(net, (x,))
    inner, last = result.compute_values(["linear_default", "output"], (x,))
    torch.testing.assert_close(inner, net[0](x))
    torch.testing.assert_close(last, net(x))
    torch.testing.assert_close(result.call_reference(x)[0], net(x))
    with pytest.raises(fx2onnx.UserError, match="did you mean linear_default"):
        result.compute_values(["linear_defaults"], (x,))
    assert result.report.output_names == [each.name for each in result.model.graph.outputs]
    result.model.graph.inputs[0].name = "renamed"
    for found in (result(x)[0], result.call_reference(x)[0], result.compute_values(["output"], (x,))[0]):
        torch.testing.assert_close(found, net(x))
