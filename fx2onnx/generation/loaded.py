"""``load(FOLDER)``: an exported folder as something to call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public, public_methods
from fx2onnx.generation.components import LoadedPipeline
from fx2onnx.generation.engine import Graph, as_array, cast, check_known
from fx2onnx.generation.generate import generate
from fx2onnx.generation.media import encode_media
from fx2onnx.generation.opened import CACHE, OpenedFolder, Outputs, from_torch
from fx2onnx.judge.engines import SESSIONS, chosen_engines
from fx2onnx.manifest.form import read_manifest
from fx2onnx.manifest.names import DECODER_IDS, EMBEDDED, IDS, MASK

if TYPE_CHECKING:
    from os import PathLike


def run_forward(model: OpenedFolder, inputs: Mapping[str, Any]) -> Outputs:
    """The outputs of the main graph for ``inputs``, which may be those of the whole model: images, the encoder's text.

    Raises:   UserError E401 for an input that is unknown or missing, or does not fit.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    main, encoder, prompt, embedding = model.main, model.encoder, model.graph("prompt"), model.graph("embed")
    if encoder is not None and _is_for(encoder, main, given):
        return _decoded(model, encoder, given)
    if embedding is not None and IDS in given and EMBEDDED not in given:
        return _embedded(model, embedding, given)
    goes_on = any(name == CACHE or name in main.past for name in given)
    if prompt is not None and _is_for(prompt, main, given):
        return model.run(prompt, given)
    for graph in (model.graph(medium.kind) for medium in model.manifest.media):
        if graph is not None and _is_for(graph, main, given):
            return _with_media(model, graph, given)
    return model.run(_taker(model, given, goes_on=goes_on), given)


def _taker(model: OpenedFolder, given: Mapping[str, Any], *, goes_on: bool) -> Graph:
    """The graph for so many tokens as are ``given``, embedded or not."""
    shapes = (_shape(given[name]) for name in (IDS, EMBEDDED) if name in given)
    tokens = next((size for shape in shapes for size in shape[1:2]), 1)
    return model.taker(tokens, goes_on=goes_on)


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return np.shape(_array(value))
    except ValueError:  # rows of several lengths, which the run refuses by name
        return ()


def _is_for(graph: Graph, main: Graph, given: Mapping[str, Any]) -> bool:
    """Return whether there is an input of ``graph`` that the main graph does not take, or the decoder's under the model's name."""
    return DECODER_IDS in given or any(name in graph.inputs and name not in main.inputs for name in given)


def _decoded(model: OpenedFolder, encoder: Graph, given: dict[str, Any]) -> Outputs:
    if DECODER_IDS not in given:
        raise UserError("E401", f"a call of the encoder and the decoder needs {DECODER_IDS}")
    past, ids = given.pop(CACHE, None) or {}, given.pop(DECODER_IDS)
    check_known(encoder, given)
    if MASK not in given and MASK in encoder.inputs and IDS in given:
        given[MASK] = _array(given[IDS]) * 0 + 1
    encoded = dict(model.run(encoder, given))
    states = encoded.pop(CACHE, {})
    by_role = {"tokens": ids, "encoder_states": encoded.pop(encoder.form.output("encoder_states"), None)}
    by_role |= {"encoder_mask": given[MASK]} if MASK in given else {}
    feeds = {port.name: by_role[port.role] for port in model.main.form.inputs if port.role in by_role}
    feeds |= {name: value for name, value in encoded.items() if name in model.main.inputs}
    return model.run(model.main, {**feeds, CACHE: {**states, **past}})


def _embedded(model: OpenedFolder, embedding: Graph, given: dict[str, Any]) -> Outputs:
    main = model.main
    own = {name: given.pop(name) for name in list(given) if name in main.inputs or name == CACHE}
    tokens = given.pop(IDS)
    ids = cast(IDS, _array(tokens), "tensor(int64)")
    found = encode_media(model, {name: _array(value) for name, value in given.items()}, ids)
    by_role = {"tokens": tokens, "mask": own.get(MASK, ids * 0 + 1)}
    feeds = {port.name: by_role[port.role] for port in embedding.form.inputs if port.role in by_role} | found
    for name, arg in embedding.inputs.items():
        if name not in feeds:
            feeds[name] = cast(name, np.zeros((0, *arg.shape[1:]), np.float32), arg.type)
    if main.form.positions == "embed" and own.get(CACHE) and main.form.input("positions") not in own:
        raise UserError(
            "E401", "a call that goes on after images needs position_ids", why="they count rows and columns"
        )
    made = model.run(embedding, feeds)
    like = {name: value for name, value in made.items() if name in main.inputs}
    return model.run(_taker(model, {**like, **own}, goes_on=bool(own.get(CACHE))), {**like, **own})


def _with_media(model: OpenedFolder, encoder: Graph, given: dict[str, Any]) -> Outputs:
    """A stream has a row for each token: those behind the tokens that the mask has beyond the ones of this call."""
    main, stream = model.main, model.main.form.input("stream")
    ids = cast(IDS, _array(given.get(IDS, [[0]])), "tensor(int64)")
    found = encode_media(model, {name: _array(given.pop(name)) for name in list(given) if name in encoder.inputs}, ids)
    feeds = encoder.following(found, main) | {name: value for name, value in found.items() if name in main.inputs}
    if stream:
        end = _array(given.get(MASK, ids)).shape[1]
        feeds[stream] = found[stream][:, end - ids.shape[1] : end]
    return model.run(main, feeds | given)


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        return from_torch(value)
    return as_array(value) if hasattr(value, "ortvalue_from_numpy") else value


@public_methods
class LoadedModel(OpenedFolder):
    """An exported folder, opened in one engine.

    Calling it runs the main graph: ``model(ids, attention_mask=mask)``. Torch tensors in give torch tensors
    out, arrays give arrays. Caches that are left out are empty; ``past_key_values=out.past_key_values`` goes on.
    ``generate`` is that of ``generate.py``.
    """

    def __call__(self, first: Any = None, /, *, adapter: str | None = None, **inputs: Any) -> Outputs:
        """Run the main graph. ``first`` is the input that comes first, such as ``input_ids``; ``adapter`` the name of a LoRA adapter.

        Raises: UserError E401 for an input that is unknown or missing, or does not fit.
        """
        name = next(iter((self.encoder or self.main).inputs))
        return run_forward(self.switched(adapter), inputs if first is None else {name: first, **inputs})

    generate = generate

    def __repr__(self) -> str:
        return f"<fx2onnx.LoadedModel {self.folder}, {self.engine}: {', '.join(self.graphs)}>"


@public
def load(folder: str | PathLike[str], engine: str | None = None) -> Any:
    """The exported models of ``folder``, ready to run in ``engine`` (``"onnxruntime"`` or ``"runner"``): a ``LoadedModel``, or a
    ``LoadedPipeline`` of a diffusers folder. Typed as Any, since the folder decides which.

    Raises:   UserError E302 where the folder holds no model, E001 and E602 for an engine that is unknown or missing.
    """
    path = Path(folder).expanduser()
    if not os.path.isdir(path):
        is_file = os.path.exists(path)
        cure = (
            f"fx2onnx run {path}; in Python fx2onnx.runner.InferenceSession('{path}')"
            if is_file
            else "fx2onnx export-folder hf:FOLDER -o FOLDER"
        )
        raise UserError("E302", f"there is no folder '{path}'", why="it is a file" if is_file else "", next=cure)
    if not any(path.glob("**/*.onnx")):
        is_checkpoint = (path / "config.json").is_file() or (path / "model_index.json").is_file()
        cure = (
            f"fx2onnx export-folder 'hf:{path}' -o FOLDER"
            if is_checkpoint
            else "give the folder that export-folder wrote"
        )
        raise UserError("E302", f"the folder '{path}' holds no .onnx file", next=cure)
    chosen = chosen_engines(None if engine is None else [engine], SESSIONS)[0]
    return (LoadedPipeline if read_manifest(path).components else LoadedModel)(path, chosen)
