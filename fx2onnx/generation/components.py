"""An exported diffusers pipeline: diffusers' own pipeline, whose components run in the graphs of the folder."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import require
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.files.pipeline_index import IndexEntry, PipelineIndex, is_pipeline, quiet, read_index
from fx2onnx.generation.engine import Graph
from fx2onnx.generation.opened import OpenedFolder, Outputs
from fx2onnx.manifest.form import PipelineComponent

_OUT = "out_"
_WITHOUT_EFFECT = frozenset({"return_dict", "generator", "output_hidden_states", "output_attentions", "use_cache"})
"""Arguments that change what is returned, not the numbers in it."""
_CONSTANT: Mapping[str, Any] = MappingProxyType({"force_not_quantize": True})
_FIRST = re.compile(r"^(\w+)\.\d+")
_OF_METHODS = {"forward_onnx": "forward"}
"""Methods of the package that stand for another one in a graph."""


@public_methods
class LoadedPipeline(OpenedFolder):
    """An exported diffusers pipeline, or a model that is called part by part, opened in one engine.

    Calling it runs diffusers' pipeline of that class on the graphs: ``pipe("a cat", num_inference_steps=20).images``. Tokenizers
    and the scheduler are diffusers' own. ``call("unet", **inputs)`` runs one graph, without diffusers: ``call("encoder", input_values=sound)``.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of diffusers' pipeline. Raises UserError E401 for what the graphs do not take, E602 without diffusers."""
        return self.pipeline(*args, **kwargs)

    def call(self, name: str, **inputs: Any) -> Outputs:
        """The outputs of the graph ``name``. Raises UserError E401."""
        if name not in self.graphs:
            raise UserError("E401", f"the folder has no graph '{name}'", next=f"it has {', '.join(self.graphs)}")
        return self.run(self.graphs[name], inputs)

    @functools.cached_property
    def pipeline(self) -> Any:
        """The diffusers pipeline. Raises UserError E602 without diffusers or torch, E302 for a folder that lacks its configs."""
        for package in ("torch", "diffusers", "transformers"):
            require(package)
        if not is_pipeline(self.folder):
            what = f"the folder '{self.folder}' is no diffusers pipeline"
            raise UserError("E401", what, next=f"call(NAME, **inputs) runs one of {', '.join(self.graphs)}")
        index = read_index(self.folder)
        known = {component.name: component for component in self.manifest.components}
        with _offline(), quiet():
            made = {
                entry.name: self._component(entry, known[entry.name]) for entry in index.entries if entry.name in known
            }
            return self._pipeline(index, made)

    def _pipeline(self, index: PipelineIndex, made: Mapping[str, Any]) -> Any:
        try:
            return index.pipeline_class().from_pretrained(str(self.folder), local_files_only=True, **made)
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise UserError(
                "E302",
                f"diffusers cannot open the pipeline in '{self.folder}'",
                why=f"{type(error).__name__}: {str(error)[:300]}",
                next="export the folder again",
            ) from error

    def _component(self, entry: IndexEntry, component: PipelineComponent) -> Any:
        """A module of the component's class without weights, whose methods run the graphs."""
        module = _outline(entry, self.folder)
        for method, file in component.graphs.items():
            own = _OF_METHODS.get(method, method)
            graph = self.graphs[file.removesuffix(".onnx")]
            setattr(module, own, GraphMethod(self, graph, entry.name, inspect.signature(getattr(type(module), own))))
        for name, value in component.values.items():
            _give(module, name, value)
        return module

    def __repr__(self) -> str:
        return f"<fx2onnx.LoadedPipeline {self.folder}, {self.engine}: {', '.join(self.graphs)}>"


class GraphMethod:
    """A method of a component that runs a graph: it takes the arguments of the method, and gives what that gives."""

    def __init__(self, folder: OpenedFolder, graph: Graph, name: str, signature: inspect.Signature) -> None:
        self.folder = folder
        self.graph = graph
        self.name = name
        self.signature = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.signature.bind(None, *args, **kwargs).arguments
        given = {name: value for name, value in list(given.items())[1:] if value is not None}
        given |= given.pop("kwargs", {})
        inputs = dict(_flat(given))
        self._check(inputs)
        feeds = {name: value for name, value in inputs.items() if name in self.graph.inputs}
        outputs = self.folder.run(self.graph, self._filled(feeds))
        return _returned(outputs, self.graph, as_tuple=given.get("return_dict") is False, given=given)

    def _check(self, inputs: Mapping[str, Any]) -> None:
        """Raises UserError E401 for an argument that the graph does not heed."""
        for name, value in inputs.items():
            if name in self.graph.inputs or name in _WITHOUT_EFFECT or _CONSTANT.get(name) is value:
                continue
            first = _FIRST.sub(r"\1.0", name, count=1)
            if first != name and _is_equal(value, inputs.get(first)):  # a list with an entry for each of the batch
                continue
            parameter = self.signature.parameters.get(name)
            if parameter is None or not _is_equal(value, parameter.default):
                raise UserError(
                    "E401",
                    f"the pipeline gives {self.name} the argument {name}, which {self.graph.path.name} does not take",
                    why=f"its inputs: {', '.join(self.graph.inputs)}",
                    next="call the pipeline without the option that needs it",
                )

    def _filled(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """The inputs as tensors of the graph's rank, with a mask of ones where the pipeline gives none."""
        import torch

        feeds = {name: torch.as_tensor(value) for name, value in feeds.items()}
        sizes = {
            size: given
            for name, value in feeds.items()
            for size, given in zip(self.graph.inputs[name].shape, value.shape, strict=False)
        }
        for name, arg in self.graph.inputs.items():
            if name in feeds and feeds[name].dim() == 0 and len(arg.shape) == 1:
                batch = next(value.shape[0] for value in feeds.values() if value.dim() > 1)
                feeds[name] = feeds[name].expand(batch)
            elif name.endswith("_mask") and name not in feeds and all(size in sizes for size in arg.shape):
                feeds[name] = torch.ones([sizes[size] for size in arg.shape], dtype=torch.bool)
        return feeds


def _is_equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and isinstance(value, bool | int | float | str) and value == default


def _flat(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers of the arguments under the names of a graph's inputs."""
    for name, value in given.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            yield from _flat({f"{name}.{key}": item for key, item in value.items()})
        elif value is not None:
            yield name, value


def _returned(outputs: Outputs, graph: Graph, *, as_tuple: bool, given: Mapping[str, Any]) -> Any:
    """The outputs as the method returns them: lists are tuples, parameters of a distribution are that."""
    found: dict[str, Any] = {}
    for flat, value in outputs.items():
        own = flat.removeprefix(_OUT) if flat.removeprefix(_OUT) in graph.inputs else flat
        name, _, place = own.partition(".")
        if place:
            found[name] = (*found.get(name, ()), value)
        else:
            found[name] = _distribution(value) if name == "latent_dist" else value
    if not given.get("output_hidden_states"):
        found.pop("hidden_states", None)
    if list(found) == ["output"]:
        return found["output"]
    is_unnamed = all(name.startswith("output_") for name in found)
    return tuple(found.values()) if as_tuple or is_unnamed else Outputs(found)


def _distribution(parameters: Any) -> Any:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    return DiagonalGaussianDistribution(parameters)


def _outline(entry: IndexEntry, folder: Path) -> Any:
    """The module by its config. Its weights take no memory and are not numbers, and no submodule can be called."""
    import torch

    kind, place = entry.component_class(), folder / entry.name
    if entry.library == "diffusers":
        make: Callable[[], Any] = functools.partial(
            kind.from_config, kind.load_config(str(place), local_files_only=True)
        )
    else:
        make = functools.partial(kind, kind.config_class.from_pretrained(place, local_files_only=True))
    with torch.device("meta"):
        module = make().eval()
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, value in tensors.items():
                if value is not None:
                    tensors[name] = _no_numbers(value)
        if part is not module:
            part.forward = _refuse(entry.name)
    return module


def _no_numbers(value: Any) -> Any:
    """A tensor of that shape and dtype on the CPU, of one number: NaN, or 0 of integers."""
    import torch

    empty = torch.full((), float("nan") if value.is_floating_point() else 0, dtype=value.dtype, device="cpu")
    found = empty.expand(value.shape)
    return torch.nn.Parameter(found, requires_grad=False) if isinstance(value, torch.nn.Parameter) else found


def _refuse(name: str) -> Callable[..., Any]:
    def forward(*_: Any, **__: Any) -> Any:
        raise UserError(
            "E401",
            f"the pipeline calls a part of {name}, and the folder has graphs of whole components",
            next="call the pipeline without the option that needs it",
        )

    return forward


def _give(module: Any, name: str, value: Any) -> None:
    import torch

    for tensors in (module._parameters, module._buffers):
        if tensors.get(name) is not None:
            found = torch.tensor(value, dtype=tensors[name].dtype).reshape(tensors[name].shape)
            is_parameter = isinstance(tensors[name], torch.nn.Parameter)
            tensors[name] = torch.nn.Parameter(found, requires_grad=False) if is_parameter else found


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Inside, huggingface_hub refuses requests."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
