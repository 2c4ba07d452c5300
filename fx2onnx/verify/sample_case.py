"""A test case of a module's sample call: what ``testcase.py`` writes, with the results of eager PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import bind, normalise_args
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.verify.eager import as_array, in_mode, outputs_of
from fx2onnx.verify.on_cpu import on_cpu
from fx2onnx.verify.testcase import Case


def case_of_module(model: ir.Model, module: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Case:
    """The model with the module's sample call: its inputs, and what eager PyTorch gives. Raises UserError E001, E101."""
    root = as_module(module)
    arguments = bind(root.forward, *normalise_args(root, args, kwargs), None)
    arrays = {leaf.name: as_array(leaf.tensor) for leaf in arguments.leaves}
    state = {name: as_array(tensor) for name, tensor in Names(Snapshot(ModuleTree(root).named)).tensors().items()}
    names = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
    missing = [name for name in names if name not in arrays and name not in state]
    if missing:
        raise UserError(
            "E001",
            f"the module has no argument for the input '{missing[0]}'",
            why=f"its tensors are {', '.join(arrays)}",
            next="export with names that are those of forward, or give the inputs as files",
        )
    with in_mode(root, training=False), on_cpu(root, (args, kwargs)):
        results = outputs_of(root, arguments, [leaf.tensor.detach().cpu() for leaf in arguments.leaves])
    outputs = [value.name or "" for value in model.graph.outputs]
    feeds = {name: arrays[name] if name in arrays else state[name] for name in names}
    return Case(model, feeds, dict(zip(outputs, map(as_array, results), strict=False)))
