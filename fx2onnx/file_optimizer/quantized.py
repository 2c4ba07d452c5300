"""The rewritten file with its weights in few bits, and what it is compared with: the same file on the numbers of the codes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.file_optimizer.compare import Original, random_outputs
from fx2onnx.file_optimizer.opened import Opened
from fx2onnx.file_optimizer.result import ComparedFile
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.io import Written, save
from fx2onnx.judge.feeds import conditions_of, inputs_of
from fx2onnx.judge.verdict import Verdict
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.quantize.accuracy import Feeds, rounded_as_in_graph
from fx2onnx.quantize.measured import quantize_measured
from fx2onnx.quantize.model import Quantized
from fx2onnx.quantize.options import Quantize
from fx2onnx.quantize.places import Place
from fx2onnx.targets.form import Target

IR_OF_CODES = {ir.DataType.INT4: 10, ir.DataType.UINT4: 10, ir.DataType.FLOAT8E4M3FN: 9}
"""The first IR version with codes of these dtypes; all others are in each."""


@dataclass
class Quantizer:
    """Quantises models that ``fresh`` makes: the rewritten graph, as often as one is needed."""

    options: Quantize
    target: Target
    fresh: Callable[[], ir.Model]
    write: Callable[[ir.Model, str], Written]

    def run(
        self, folder: str, name: str, original: Original | None, engines: Sequence[str], seed: int
    ) -> ComparedFile[Quantized]:
        """Write the quantised file into ``folder``, compared where ``original`` was.

        Raises: UserError E001, E202 (``plan_for``); VerificationError E501 where it differs from what the codes stand for.
        """
        feeds = self._feeds(original)
        if self.options.keep_worst and feeds is None:
            raise UserError("E001", "keep_worst needs to run the model", next="leave out --no-verify and --no-accuracy")
        model = self.fresh()
        infer_types(model)
        done, places = quantize_measured(model, self.options, self.target, feeds)
        dtypes = [value.dtype for value in model.graph.initializers.values() if value.dtype in IR_OF_CODES]
        model.ir_version = max([model.ir_version or 0, *(IR_OF_CODES[dtype] for dtype in dtypes)])
        path = os.path.join(folder, "quantized")
        os.mkdir(path)
        written = self.write(model, os.path.join(path, name))
        comparison = None
        if original is not None:
            with record("compare with the codes' numbers"):
                comparison = self._compared(folder, places, written.path, engines, seed)
        return ComparedFile(model, written, done, comparison)

    def _feeds(self, original: Original | None) -> Feeds | None:
        if original is None or not original.samples or not self.options.accuracy:
            return None
        return original.samples[0].feeds

    def _compared(self, folder: str, places: Sequence[Place], path: str, engines: Sequence[str], seed: int) -> Verdict:
        plain = self.fresh()
        for place in places:
            value = plain.graph.initializers[place.value.name or ""]
            value.const_value = _numbers_of(place)
        reference = save(plain, os.path.join(folder, "numbers.onnx"), external_data=True).path
        infer_types(plain)
        comparison = same_as(plain, reference, engines, seed).compare(path)
        if comparison.is_wrong:
            comparison.raise_if_failed(
                "the quantised file differs from the same file on the numbers of its codes",
                "another --format, or --no-verify; report it with the file",
            )
        return comparison


def same_as(model: ir.Model, path: str, engines: Sequence[str], seed: int) -> Original:
    """What the file of ``model`` at ``path`` gives, for others that compute the same."""
    outputs = [value.name or "" for value in model.graph.outputs]
    return Original(path, inputs_of(model), outputs, random_outputs(model), engines, seed, conditions_of(model))


def _numbers_of(place: Place) -> DerivedTensor:
    tensor = place.value.const_value
    assert tensor is not None
    return DerivedTensor(
        lambda: rounded_as_in_graph(place, tensor), (), tensor.dtype, tensor.shape.numpy(), place.value.name or ""
    )


def needed_opset(opened: Opened, asked: int | None, options: Quantize) -> int | None:
    """The opset to convert to: the one asked for, else none where the file's has the operators."""
    own = next((each.version for each in opened.proto.opset_import if each.domain in ("", "ai.onnx")), 0)
    return asked if asked is not None or own >= options.least_opset else options.least_opset
