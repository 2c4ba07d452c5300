"""``load(FOLDER)``: an exported folder as something to call, with tensors in and out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.staging import locked
from fx2onnx.generation.checks import cast, check_feeds, check_files, check_known
from fx2onnx.generation.configs import read_config
from fx2onnx.generation.engine import LENGTH, PAST, PRESENT, Graph, as_array, chosen_engine, dtype_of
from fx2onnx.generation.manifest import file_now, graph_files, read_manifest

if TYPE_CHECKING:
    from os import PathLike

DECODERS = ("model.onnx", "decoder_model.onnx")
"""The graph that gives logits, by file name: the first that the folder has."""
ENCODER = "encoder_model.onnx"


_HINTS = {"decoder_model.onnx": "generate(...) takes what all graphs of the folder take together"}


class Outputs(Mapping[str, Any]):
    """Outputs by name, as attributes, and by position. ``past_key_values`` holds what the next call takes under that name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str | int) -> Any:
        return self._values[key] if isinstance(key, str) else list(self._values.values())[key]

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"the model has no output {name!r}; its outputs are {', '.join(values)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self._values.values())

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(getattr(v, 'shape', [])) or type(v).__name__}" for name, v in self.items())
        return f"<Outputs {shapes}>"


class LoadedModel:
    """An exported folder, opened in one engine.

    Calling it runs the main graph: ``model(input_ids=ids, attention_mask=mask)``. Torch tensors in give torch tensors
    out, arrays give arrays. Caches that are left out are empty; ``past_key_values=out.past_key_values`` goes on.
    """

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.engine = engine
        with locked(folder, shared=True):  # an export that finishes meanwhile waits
            self.manifest = read_manifest(folder)
            files = graph_files(folder, self.manifest)
            self.graphs = {Path(name).stem: Graph(folder / name, engine, file) for name, file in files.items()}
            self.config, self.generation_config = (
                read_config(folder, name, file_now(folder, self.manifest, name))
                for name in ("config.json", "generation_config.json")
            )
        self.baked = self.manifest.baked
        self.own_prompt = self.manifest.own_prompt
        self.delays = list(self.manifest.codebook_delays)
        check_files(folder, self.main, self.graphs)

    @property
    def main(self) -> Graph:
        """The graph that gives logits; else the only one."""
        for name in DECODERS:
            if Path(name).stem in self.graphs:
                return self.graphs[Path(name).stem]
        return next(iter(self.graphs.values()))

    @property
    def encoder(self) -> Graph | None:
        return self.graphs.get(Path(ENCODER).stem)

    def __call__(self, **inputs: Any) -> Outputs:
        """Raises: UserError E401 for an input that is unknown or missing, or does not fit."""
        from fx2onnx.generation.whole import run_whole

        return run_whole(self, inputs)

    def run(self, graph: Graph, inputs: Mapping[str, Any]) -> Outputs:
        """One call of ``graph``, a member of ``graphs``."""
        feeds, wants_torch = _feeds(graph, inputs)
        _fill(graph, feeds)
        check_feeds(graph, feeds)
        outputs = graph.run(feeds)
        convert = _to_torch if wants_torch else as_array
        plain = {name: convert(value) for name, value in outputs.items() if not name.startswith(PRESENT)}
        past = {name.removeprefix(PRESENT): value for name, value in outputs.items() if name.startswith(PRESENT)}
        return Outputs(plain | ({"past_key_values": past} if past else {}))

    def generate(self, input_ids: Any = None, **options: Any) -> Any:
        """``fx2onnx.generation.greedy.generate`` with this model."""
        from fx2onnx.generation.greedy import generate

        return generate(self, input_ids, **options)

    def __repr__(self) -> str:
        return f"<fx2onnx.LoadedModel {self.folder}, {self.engine}: {', '.join(self.graphs)}>"


def load(folder: str | PathLike[str], engine: str | None = None) -> LoadedModel:
    """The exported models of ``folder``, ready to run in ``engine`` (``"onnxruntime"`` or ``"runner"``).

    Raises:   UserError E302 where the folder holds no model, E001 and E602 for an engine that is unknown or missing.
    """
    path = Path(folder).expanduser()
    if not os.path.isdir(path):
        raise UserError("E302", f"there is no folder '{path}'", next="fx2onnx export hf:FOLDER -o FOLDER --task ...")
    if not any(path.glob("*.onnx")):
        raise UserError("E302", f"the folder '{path}' holds no .onnx file", next="give the folder that export wrote")
    return LoadedModel(path, chosen_engine(engine))


def _feeds(graph: Graph, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The inputs under the graph's names with the graph's dtypes, and whether they came as torch tensors."""
    feeds: dict[str, Any] = {}
    wants_torch = False
    for name, value in inputs.items():
        if name == "past_key_values":
            feeds |= {PAST + key: item for key, item in (value or {}).items()}
        elif value is not None:
            wants_torch = wants_torch or hasattr(value, "detach")
            feeds[name] = value
    check_known(graph, feeds, _HINTS.get(graph.path.name, ""))
    for name, value in feeds.items():
        if not hasattr(value, "ortvalue_from_numpy"):
            plain = from_torch(value) if hasattr(value, "detach") else value
            feeds[name] = cast(name, plain, graph.inputs[name].type)
    return feeds, wants_torch


def _fill(graph: Graph, feeds: dict[str, Any]) -> None:
    """Empty caches, a mask of ones and running positions where the caller left them out."""
    if graph.is_static:
        missing = [name for name in graph.inputs if name.startswith((PAST, LENGTH)) and name not in feeds]
        if missing:
            raise UserError(
                "E401", f"no feed for {missing[0]}", why="only the caller knows how long the cache is to be"
            )
    batch = next((_shape(value)[0] for value in feeds.values() if len(_shape(value))), 1)
    for name in graph.inputs:
        if name.startswith(PAST) and name not in feeds:
            feeds[name] = graph.empty(name, batch)
    ids = feeds.get("input_ids", feeds.get("inputs_embeds"))
    if ids is None or len(_shape(ids)) < 2:
        return
    if "attention_mask" in graph.inputs and "attention_mask" not in feeds:
        total = ids.shape[1] + (0 if graph.takes_all_tokens else past_length(graph, feeds))
        feeds["attention_mask"] = np.ones((batch, total), dtype_of(graph.inputs["attention_mask"].type))
    is_text = "position_ids" in graph.inputs and len(graph.inputs["position_ids"].shape) == 2
    if is_text and "position_ids" not in feeds and len(_shape(feeds.get("attention_mask", ids))) == 2:
        feeds["position_ids"] = positions(feeds["attention_mask"])[:, -ids.shape[1] :]


def past_length(graph: Graph, feeds: Mapping[str, Any]) -> int:
    """How many tokens the caches of ``feeds`` hold, 0 where none tells."""
    for name, arg in graph.inputs.items():
        if name.startswith(PAST) and "past_sequence_length" in arg.shape:
            return int(_shape(feeds[name])[arg.shape.index("past_sequence_length")])
    return 0


def positions(mask: Any) -> Any:
    """Position of each token, counted from the first that the mask shows; 0 for padding."""
    counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return np.where(np.asarray(mask) == 0, 0, counted).astype(np.int64)


def _shape(value: Any) -> Sequence[int]:
    found: Sequence[int] = value.shape() if callable(value.shape) else value.shape
    return found


def from_torch(tensor: Any) -> Any:
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _to_torch(value: Any) -> Any:
    import ml_dtypes
    import torch

    array = as_array(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
