"""The graphs of an exported folder, opened in one engine, and a call of one of them: tensors in and out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.notices import warn
from fx2onnx.files import onnx_adapter
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.files.staging import locked
from fx2onnx.generation.engine import Graph, as_array, cast, check_feeds, check_known, dtype_of, shape_of
from fx2onnx.generation.settings import ONE_OR_MORE, RULES, TOKEN, may_be
from fx2onnx.manifest.form import FIXED, Kind, changed_copies, file_now, graph_files, read_manifest
from fx2onnx.manifest.names import PAST

PARTS = ("text_config", "decoder", "decoder_config")
"""Configs inside a config, of the language model."""


def read_config(folder: Path, name: str, file: Path | None = None) -> dict[str, Any]:
    """The file as an object, empty where there is none; ``file`` is what is read, where that is not (yet) called ``name``.

    Raises:   UserError E302, which names the file and the field.
    """
    path = inside(folder, name if file is None else file.name)
    if not path.exists():
        return {}
    stated = read_object(path)
    for part in PARTS:
        if not isinstance(stated.get(part) or {}, dict):
            raise UserError("E302", f"cannot read '{path}'", why=f"{part} is no object")
    for part in ("", *PARTS):
        _check(path, part, stated.get(part) or {} if part else stated)
    return stated


def _check(path: Path, part: str, stated: Mapping[str, Any]) -> None:
    for field, (is_right, what) in _FIELDS.items():
        value = stated.get(field)
        if value is not None and not may_be(value, is_right):
            name = f"{part}.{field}" if part else field
            raise UserError("E302", f"cannot read '{path}'", why=f"{name} is {value!r:.60}, not {what}")


_FIELDS = RULES | {
    "eos_token_id": ONE_OR_MORE,
    "pad_token_id": TOKEN,
    "bos_token_id": TOKEN,
    "decoder_start_token_id": ONE_OR_MORE,
    "max_new_tokens": (TOKEN[0], "a number of tokens"),
    "repetition_penalty": RULES["encoder_repetition_penalty"],
}
_NOT_FOLLOWED = {"guidance_scale": 1, "watermarking_config": None, "stop_strings": None}
"""Keys of generation_config.json that change tokens in transformers alone, with the value that changes nothing."""

CACHE = "past_key_values"
"""The argument and the output that holds a whole cache, by the names of its states."""


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


class OpenedFolder(Shown):
    """The graphs by the stem of their file, what the manifest says of them, and the configs beside them."""

    def _shown(self) -> dict[str, Any]:
        return {"path": repr(str(self.folder)), "graphs": ", ".join(self.graphs), "engine": self.engine}

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.engine = engine
        with locked(folder, shared=True):  # an export that finishes meanwhile waits
            self.manifest = read_manifest(folder)
            files = graph_files(folder, self.manifest)
            self.graphs = {
                form.stem: Graph(form, folder / form.file, engine, files[form.file]) for form in self.manifest.graphs
            }
            self.warnings = changed_copies(folder, self.manifest)
            self.config, self.generation_config = (
                read_config(folder, name, file_now(folder, self.manifest, name))
                for name in ("config.json", "generation_config.json")
            )
        self.not_followed = [
            name for name, usual in _NOT_FOLLOWED.items() if self.generation_config.get(name) not in (None, usual)
        ]
        if self.not_followed:
            named = ", ".join(self.not_followed)
            self.warnings = [*self.warnings, f"generate does not follow {named} of generation_config.json"]
        warn(self.warnings)
        self.delays = self.manifest.codebook_delays
        self._adapters: dict[str, dict[str, Any]] = {}
        self._active: dict[str, Any] = {}

    def graph(self, *kinds: Kind) -> Graph | None:
        """The first graph of one of ``kinds``."""
        form = self.manifest.graph(*kinds)
        return None if form is None else self.graphs[form.stem]

    @property
    def main(self) -> Graph:
        """The graph that gives logits, or the only one."""
        graph = self.graph("decode", "forward")
        assert graph is not None  # read_manifest has looked
        return graph

    def taker(self, tokens: int, *, goes_on: bool) -> Graph:
        """The graph for a call of so many tokens; ``goes_on``: behind a cache."""
        prompt, form = self.graph("prompt"), self.main.form
        if prompt is None or (goes_on and not prompt.past) or form.tokens_per_call == tokens:
            return self.main
        return prompt if form.tokens == "all" or form.tokens_per_call is not None else self.main

    def adapter(self, name: str | None) -> dict[str, Any]:
        """The inputs of all graphs that the adapter ``name`` changes, as the engine's own values; none without a name.

        Raises:   UserError E401 for an adapter that the folder has not, E302 for a file that does not fit.
        """
        if name is None:
            return {}
        if name not in self._adapters:
            files = {each.name: each.file for each in self.manifest.adapters}
            if name not in files:
                step = (
                    f"it has {', '.join(files)}"
                    if files
                    else "fx2onnx export-folder hf:BASE -o OUT --adapters NAME=FOLDER"
                )
                raise UserError("E401", f"the folder '{self.folder}' has no adapter {name!r:.60}", next=step)
            path = file_now(self.folder, self.manifest, files[name])
            found: dict[str, Any] = {}
            for key, array in onnx_adapter.read(inside(self.folder, path.name)).parameters.items():
                graph = next((each for each in self.graphs.values() if key in each.optional), None)
                if graph is None or dtype_of(graph.inputs[key].type) != array.dtype:
                    what = f"'{path}' is no adapter of this folder"
                    raise UserError(
                        "E302", what, why=f"no graph takes {key} as {array.dtype}", next="export the folder again"
                    )
                found[key] = graph.value(key, array)
            self._adapters[name] = found
        return self._adapters[name]

    def switched(self, name: str | None) -> OpenedFolder:
        """The same folder, whose ``run`` takes the adapter ``name``. Raises UserError E401, E302."""
        if name is None:
            return self
        found = copy.copy(self)
        found._active = self.adapter(name)
        return found

    @property
    def encoder(self) -> Graph | None:
        return self.graph("encoder")

    def run(self, graph: Graph, inputs: Mapping[str, Any]) -> Outputs:
        """One call of ``graph``, a member of ``graphs``."""
        hint = "generate(...) takes what all graphs of the folder take together"
        feeds, wants_torch = _feeds(
            graph, inputs, hint if graph.form.kind in ("forward", "decode") and len(self.graphs) > 1 else ""
        )
        feeds |= {name: value for name, value in self._active.items() if name in graph.inputs}
        _fill(graph, feeds)
        check_feeds(graph, feeds)
        outputs = graph.run(feeds)
        convert = _to_torch if wants_torch else as_array
        plain = {name: convert(value) for name, value in outputs.items() if name not in graph.present}
        past = {state.name: outputs[name] for name, state in graph.present.items()}
        return Outputs(plain | ({CACHE: past} if past else {}))


def _feeds(graph: Graph, inputs: Mapping[str, Any], hint: str) -> tuple[dict[str, Any], bool]:
    """The inputs under the graph's names with the graph's dtypes, and whether they came as torch tensors."""
    feeds: dict[str, Any] = {}
    wants_torch = False
    for name, value in inputs.items():
        if name == CACHE:
            feeds |= {PAST + key: item for key, item in (value or {}).items()}
        elif value is not None:
            wants_torch = wants_torch or hasattr(value, "detach")
            feeds[name] = value
    check_known(graph, feeds, hint)
    for name, value in feeds.items():
        if not hasattr(value, "ortvalue_from_numpy"):
            plain = from_torch(value) if hasattr(value, "detach") else value
            feeds[name] = cast(name, plain, graph.inputs[name].type)
    return feeds, wants_torch


def _fill(graph: Graph, feeds: dict[str, Any]) -> None:
    """Empty caches, a mask of ones and running positions where the caller left them out."""
    form = graph.form
    if form.input("length"):
        fixed = [name for name, state in graph.past.items() if state.length in FIXED]
        missing = [name for name in (form.input("length"), form.input("pages"), *fixed) if name and name not in feeds]
        if missing:
            raise UserError(
                "E401", f"no feed for {missing[0]}", why="only the caller knows how long the cache is to be"
            )
    batch = next((shape_of(value)[0] for value in feeds.values() if len(shape_of(value))), 1)
    if any(name not in feeds for name in graph.past):
        feeds |= {name: value for name, value in graph.empty(batch).items() if name not in feeds}
    ids = next((feeds[name] for name in (form.input("tokens"), form.input("embedded")) if name in feeds), None)
    if ids is None or len(shape_of(ids)) < 2:
        return
    length, mask, places = shape_of(ids)[1], form.input("mask"), form.input("positions")
    if mask and mask not in feeds:
        total = length + (0 if form.tokens == "all" else _past_length(graph, feeds))
        feeds[mask] = np.ones((batch, total), dtype_of(graph.inputs[mask].type))
    if form.positions == "mask" and places not in feeds and mask in feeds and len(shape_of(feeds[mask])) == 2:
        feeds[places] = positions(feeds[mask])[:, -length:]


def _past_length(graph: Graph, feeds: Mapping[str, Any]) -> int:
    """The number of tokens in the caches of ``feeds``, 0 where there are none. Raises UserError E401 where all caches are full windows."""
    if graph.form.input("length"):
        found = feeds[graph.form.input("length")]
        return int(found if isinstance(found, np.ndarray) else as_array(found))
    windows = []
    for name, state in graph.past.items():
        if state.axis is not None and state.length in ("past", "window"):
            size = shape_of(feeds[name])[state.axis]
            if state.length == "past":
                return size
            windows.append((size, state.window))
    found = max(windows, default=(0, None))
    if found[0] == found[1]:
        mask = graph.form.input("mask")
        raise UserError(
            "E401", f"no feed for {mask}", why="the windows are full: only the caller knows the number of tokens"
        )
    return found[0]


def positions(mask: Any) -> Any:
    """Position of each token, counted from the first that the mask shows; 0 for padding."""
    counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return np.where(np.asarray(mask) == 0, 0, counted).astype(np.int64)


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
