"""A user's file that takes the whole public API: ``mypy --strict`` finds nothing in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx.model_patches import patches
from fx2onnx.sources import KINDS, Options, Source, SourceKind, names, resolve


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


@fx2onnx.translates(nn.Hardswish)
def hardswish(op: Any, module: nn.Module, x: Any, *, weights: Mapping[str, Any]) -> Any:
    return op.HardSwish(x)


@ort.kernel("SoftClip", domain="acme")
def soft_clip(x: np.ndarray[Any, Any], *, limit: float) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = limit * np.tanh(x / limit)
    return result


@patches("acme.layers:at_most_one")
def at_most_one(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=1)


def export(folder: Path) -> dict[str, Any]:
    warnings.simplefilter("error", fx2onnx.ExportWarning)
    try:
        result: fx2onnx.ExportResult = fx2onnx.export(
            Net(),
            (torch.randn(3, 4),),
            folder / "net.onnx",
            input_names=["x"],
            dynamic_shapes={"x": {0: "batch"}},
            opset_version=20,
            verify=True,
        )
    except fx2onnx.VerificationError as error:
        raise SystemExit(f"{error.code}: {error.what}; {error.next}") from error
    except (fx2onnx.UserError, fx2onnx.InternalError) as error:
        raise SystemExit(error.render()) from error
    report: fx2onnx.Report = result.report
    lines: list[str] = report.warnings
    result.save(folder / "again.onnx", external_data=True)
    restored: Any = result.restore_outputs([torch.zeros(3, 2)])
    return {"lines": lines, "restored": restored, **report.as_dict()}


def small(folder: Path) -> None:
    few_bits = fx2onnx.Quantize("int8", exclude=["head"])
    half = fx2onnx.Precision("float16", io="float32")
    fx2onnx.export(Net(), (torch.randn(3, 4),), folder / "few_bits.onnx", quantize=few_bits)
    fx2onnx.export(Net(), (torch.randn(3, 4),), folder / "half.onnx", dtype=half)


def judged(result: fx2onnx.ExportResult) -> tuple[bool, list[str], fx2onnx.FirstWrong | None]:
    verdict: fx2onnx.Verdict = fx2onnx.verify(result, Net(), (torch.randn(3, 4),), engines=["runner"])
    wrong = None if verdict.ok else fx2onnx.locate(result, Net(), (torch.randn(3, 4),))
    return verdict.ok, [row.output for row in verdict.rows], wrong


def looked_at(file: Path, other: Path) -> list[Any]:
    difference: fx2onnx.Difference = fx2onnx.diff(file, other)
    findings: list[fx2onnx.Finding] = fx2onnx.lint(file, "onnxruntime-1.19")
    facts: dict[str, Any] = fx2onnx.inspect(file)
    cost: fx2onnx.Profile = fx2onnx.profile(Net(), (torch.randn(3, 4),), repeat=1)
    names = fx2onnx.testcase(file, file.with_suffix(""), feeds={"x": np.zeros((2, 4), np.float32)})
    small: fx2onnx.OptimizeResult = fx2onnx.quantize(file, other, "int8", verify=False)
    proved: fx2onnx.Certificate = fx2onnx.certify(file, other)
    bounds: fx2onnx.ValueRanges = fx2onnx.value_ranges(file, {"x": (0, 1)})
    done = [small.as_dict(), proved.ok, bounds, fx2onnx.attest(file)]
    return [difference.equal, findings, facts, cost.report, names, *done]


def train(folder: Path) -> float:
    net = Net()
    fx2onnx.export_training(
        net,
        (torch.randn(3, 4),),
        folder,
        loss=nn.functional.cross_entropy,
        targets=torch.tensor([0, 1, 0]),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    )
    rule = fx2onnx.UpdateRule
    training = fx2onnx.Training(loss=nn.functional.mse_loss, targets=torch.zeros(3, 2))
    fx2onnx.export(net, (torch.randn(3, 4),), folder / "gradients.onnx", training=training)
    print(fx2onnx.verify_training, rule)
    trainer = ort.Trainer(folder)
    trainer.save(folder / "state.safetensors")
    return float(trainer.step({"x": np.zeros((3, 4), np.float32)})["loss"])


def generate(folder: Path) -> Any:
    fx2onnx.export_folder("hf:./my-model", folder, cache="static")
    model: fx2onnx.LoadedModel = fx2onnx.load(folder)
    return model.generate(input_ids=np.array([[1, 2, 3]]), max_new_tokens=4)


def optimize(file: Path) -> dict[str, Any]:
    result: fx2onnx.OptimizeResult = fx2onnx.optimize(file, file.with_suffix(".small.onnx"), fix={"batch": 1})
    return result.as_dict()


def run(file: Path) -> list[str]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.execution_order = ort.ExecutionOrder.DEFAULT
    ort.set_seed(0)
    ort.set_default_logger_severity(3)
    ort.set_default_logger_verbosity(0)
    ort.enable_telemetry_events()
    ort.disable_telemetry_events()
    session = ort.InferenceSession(file, options, providers=ort.get_available_providers())
    meta: ort.ModelMetadata = session.get_modelmeta()
    shapes = [node.shape for node in session.get_inputs()]
    first: ort.NodeArg = session.get_outputs()[0]
    feeds = {"x": np.zeros((2, 4), np.float32)}
    plain = session.run(None, feeds, ort.RunOptions())
    value = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 4), np.float32))
    binding: ort.IOBinding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    session.run_with_iobinding(binding)
    facts = [ort.get_device(), ort.get_version_string(), ort.__version__, fx2onnx.__version__, *ort.get_all_providers()]
    return [meta.graph_name, first.name, str(shapes), str(plain[0]), ort.capi.__name__, *facts]


def folders(spec: str, out: Path) -> list[str]:
    exported: fx2onnx.ExportedFolder = fx2onnx.export_folder(spec, out)
    loaded: fx2onnx.LoadedModel | fx2onnx.LoadedPipeline = fx2onnx.load(exported.path, "runner")
    trained: fx2onnx.TrainingFolder = fx2onnx.export_training(
        Net(), (torch.ones(3, 4),), out, loss=nn.functional.mse_loss, targets=torch.ones(3, 2)
    )
    return [str(loaded), *exported.files, str(trained.path)]


def stateful(file: Path) -> Any:
    session = ort.StatefulSession(ort.InferenceSession(file), {})
    return session.run(None, {"x": np.zeros((2, 4), np.float32)})


def source(name: str) -> Source:
    kind = SourceKind("acme", "models of Acme", "acme.source", options=frozenset({"batch"}))
    options = Options(batch=2)
    print(kind.prefix, options.batch_or(), names("zoo"), *KINDS)
    found: Source = resolve(name, batch=2)
    return found


def code(error: fx2onnx.Fx2OnnxError) -> str:
    error.add_next(["look again"])
    return f"{error.code} {error.where} {error.as_dict()}"
