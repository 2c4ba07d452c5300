"""The case of a test directory: an ONNX file with a module's example inputs and eager PyTorch's outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import bind, normalise_args
from fx2onnx.capture.python.module_state import snapshot_of
from fx2onnx.judge.verdict import Verdict
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.verify.eager import as_array, in_mode, on_cpu, outputs_of
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.rounded_weights import as_input, as_quantized, narrowed, rounded_inputs
from fx2onnx.verify.testcase import Case


def case_of_module(
    model: ir.Model, path: str, module: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
) -> Case:
    """The model of the file ``path`` with the module's sample call: its inputs, and what eager PyTorch gives with the file's
    weights and in its dtypes. Raises UserError E001, E101.
    """
    root = as_module(module)
    arguments = bind(root.forward, *normalise_args(root, args, kwargs), None)
    proto = onnx.load(path, load_external_data=False)
    file = Interface.of(proto)
    own = [leaf.name for leaf in arguments.leaves]
    tensors = rounded_inputs([leaf.tensor.detach().cpu() for leaf in arguments.leaves], own, file)
    arrays = dict(zip(own, map(as_array, tensors), strict=True))
    state = {name: as_array(tensor) for name, tensor in Names(snapshot_of(ModuleTree(root))).tensors().items()}
    names = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
    missing = [name for name in names if name not in arrays and name not in state]
    if missing:
        raise UserError(
            "E001",
            f"the module has no argument for the input '{missing[0]}'",
            why=f"its tensors are {', '.join(arrays)}",
            next="export with names that are those of forward, or give the inputs as files",
        )
    folder = os.path.dirname(os.path.abspath(path))
    call = normalise_args(root, args, kwargs)
    with in_mode(root, training=False), on_cpu(root, call), as_quantized(Verdict(), proto, folder, root, call):
        results = list(map(as_array, outputs_of(root, arguments, tensors)))
    if file.grain.epsilon:
        dtypes = [None if value.dtype is None else value.dtype.numpy() for value in model.graph.outputs]
        results = [narrowed(got, dtype) for got, dtype in zip(results, dtypes, strict=False)]
    outputs = [value.name or "" for value in model.graph.outputs]
    feeds = {name: as_input(arrays[name] if name in arrays else state[name], name, file) for name in names}
    return Case(model, feeds, dict(zip(outputs, results, strict=False)))
