"""Files that onnxruntime's own tools make of the zoo, run by the runner beside onnxruntime.

    python -m studies.onnxruntime_tools [--only resnet18 ...] [--tools dynamic-uint8 ...]

Its quantizer (dynamic; static as QDQ and as QOperator; uint8 and int8, per tensor and per channel), its optimizer for
transformers, and ``optimized_model_filepath`` at three levels.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.transformers import optimizer as transformers_optimizer

Feeds = dict[str, np.ndarray]
LEVELS = {"basic": 1, "extended": 2, "all": 99}
TRANSFORMERS = {"bert": "bert", "gpt2": "gpt2", "t5": "t5", "vit": "vit", "clip": "clip", "whisper": "bart"}
"""The ``model_type`` of the optimizer by what the name of a model has in it."""


class _Reader(quantization.CalibrationDataReader):
    """The example's inputs, a few times with other numbers."""

    def __init__(self, feeds: Feeds, count: int = 2) -> None:
        scales = [1.0, 0.7, 1.3][:count]
        self.left = iter(
            {name: x * x.dtype.type(scale) if x.dtype.kind == "f" else x for name, x in feeds.items()}
            for scale in scales
        )

    def get_next(self) -> Feeds | None:
        return next(self.left, None)


def _dynamic(dtype: str, by_channel: bool) -> Callable[[str, str, Feeds, str], None]:
    def make(source: str, target: str, feeds: Feeds, name: str) -> None:
        weight_type = getattr(quantization.QuantType, dtype)
        quantization.quantize_dynamic(source, target, weight_type=weight_type, per_channel=by_channel)

    return make


def _static(form: str, dtype: str, by_channel: bool) -> Callable[[str, str, Feeds, str], None]:
    def make(source: str, target: str, feeds: Feeds, name: str) -> None:
        quantization.quantize_static(
            source,
            target,
            _Reader(feeds),
            quant_format=getattr(quantization.QuantFormat, form),
            activation_type=getattr(quantization.QuantType, dtype),
            weight_type=quantization.QuantType.QInt8,
            per_channel=by_channel,
        )

    return make


def _optimized(level: int) -> Callable[[str, str, Feeds, str], None]:
    def make(source: str, target: str, feeds: Feeds, name: str) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
        options.optimized_model_filepath = target
        options.log_severity_level = 3
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return make


def _transformers(source: str, target: str, feeds: Feeds, name: str) -> None:
    kind = next((value for key, value in TRANSFORMERS.items() if key in name), "bert")
    made = transformers_optimizer.optimize_model(source, kind, num_heads=0, hidden_size=0, opt_level=0)
    made.save_model_to_file(target)


def _then(*tools: str) -> Callable[[str, str, Feeds, str], None]:
    """Several tools, one after the other."""

    def make(source: str, target: str, feeds: Feeds, name: str) -> None:
        for place, tool in enumerate(tools):
            into = target if place == len(tools) - 1 else str(Path(source).with_name(f"step{place}.onnx"))
            TOOLS[tool](source, into, feeds, name)
            source = into

    return make


TOOLS: dict[str, Callable[[str, str, Feeds, str], None]] = {
    **{f"dynamic-{d.lower()[1:]}": _dynamic(d, False) for d in ("QUInt8", "QInt8")},
    "dynamic-int8-channels": _dynamic("QInt8", True),
    **{f"qdq-{d.lower()[1:]}": _static("QDQ", d, False) for d in ("QUInt8", "QInt8")},
    "qdq-uint8-channels": _static("QDQ", "QUInt8", True),
    **{f"qoperator-{d.lower()[1:]}": _static("QOperator", d, False) for d in ("QUInt8", "QInt8")},
    "qoperator-uint8-channels": _static("QOperator", "QUInt8", True),
    "transformers": _transformers,
    **{f"level-{name}": _optimized(level) for name, level in LEVELS.items()},
    "dynamic-uint8, level-all": _then("dynamic-uint8", "level-all"),
    "qdq-uint8, level-extended": _then("qdq-uint8", "level-extended"),
    "qdq-int8, level-all": _then("qdq-int8", "level-all"),
    "transformers, dynamic-uint8": _then("transformers", "dynamic-uint8"),
}


def _session(source: Any, level: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """The largest difference, as a share of the largest number of an output; infinite for another shape or dtype."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            return float("inf")
        if mine.dtype.kind in "fiub" and mine.size:
            a, b = mine.astype(np.float64), theirs.astype(np.float64)
            same_places = np.array_equal(np.isfinite(a), np.isfinite(b))
            a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
            worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() or 1)) if same_places else float("inf"))
    return worst


def node_by_node(path: str, feeds: Feeds) -> tuple[float, str]:
    """The largest difference that one node of the file makes, given onnxruntime's own values, and which node it is.

    Of whole runs of quantized files little can be said: a rounding error turns into another code, and grows.
    """
    import fx2onnx.runner as ort

    model = onnx.load(path)
    graph = model.graph
    outputs = {info.name for info in graph.output}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    made = dict.fromkeys(name for node in graph.node for name in node.output if name and name not in outputs)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    session = _session(whole.SerializeToString(), 0)
    values = dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True)) | feeds
    weights = {tensor.name: tensor for tensor in graph.initializer}
    worst = 0.0, ""
    for node in graph.node:
        has_body = any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)
        if has_body or node.domain.endswith("nchwc"):  # values between those lie in blocks
            continue
        given = {name: values[name] for name in node.input if name and name not in weights}
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        ]
        names = [name for name in node.output if name]
        results = [onnx.ValueInfoProto(name=name) for name in names]
        own = [weights[name] for name in dict.fromkeys(node.input) if name in weights]
        single = onnx.helper.make_model(
            onnx.helper.make_graph([node], "node", infos, results, own),
            opset_imports=model.opset_import,
            ir_version=model.ir_version,
        )
        off = apart(ort.InferenceSession(single).run(None, given), [values[name] for name in names])
        worst = max(worst, (off, f"{node.op_type} {node.name}"))
    return worst


def compared(source: str, feeds: Feeds, name: str, tool: str) -> tuple[float, tuple[float, str], str]:
    """The distance of the runner from onnxruntime on the file that ``tool`` makes: in a whole run, and at the node that
    differs most; and the path of the file.
    """
    import fx2onnx.runner as ort

    path = str(Path(source).with_name("made.onnx"))  # onnxruntime leaves large weights where the source has them
    TOOLS[tool](source, path, feeds, name)
    off = apart(ort.InferenceSession(path).run(None, feeds), _session(path, 0).run(None, feeds))
    return off, node_by_node(path, feeds), path


def exported(name: str, folder: str) -> tuple[str, Feeds]:
    """A model of the zoo as a file with its sample's inputs."""
    import fx2onnx
    import fx2onnx.runner as ort
    from benchmarks.graph_economy import feeds_for
    from fx2onnx.sources import resolve

    source = resolve(f"zoo:{name}")
    path = f"{folder}/{name}.onnx"
    fx2onnx.export(source.module, source.args, path, kwargs=source.kwargs, opset_version=17, verify=False)
    return path, feeds_for(ort.InferenceSession(path), source)


def rows(names: Sequence[str], tools: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Model, tool, and what came of it."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                source, feeds = exported(name, folder)
            except Exception as error:  # a model that does not export is a row of the page
                yield name, "export", f"{type(error).__name__}: {str(error)[:200]}"
                continue
            for tool in tools:
                try:
                    off, (worst, node), _ = compared(source, feeds, name, tool)
                    yield name, tool, f"{off:.1e} (of one node at most {worst:.1e}, {node})"
                except Exception as error:  # whatever a tool or an engine raises is its row's result
                    yield name, tool, f"{type(error).__name__}: {str(error)[:300]}"


def main() -> None:
    from models_zoo import registry

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=registry.names())
    parser.add_argument("--tools", nargs="+", default=list(TOOLS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for row in rows(given.only, given.tools):
        print(" | ".join(row))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
