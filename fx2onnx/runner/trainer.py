"""Sessions whose state is carried from call to call, and training of an exported folder, over the runner or any session with onnxruntime's interface. Without torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError, onnxruntime_errors
from fx2onnx.base.metadata import STATE
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.base.typed_json import metadata
from fx2onnx.files import safetensors
from fx2onnx.files.safetensors import TensorEntry
from fx2onnx.files.staging import cannot_write, replace, staged_files
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.manifest.training import TrainingManifest, read_training
from fx2onnx.runner.feeds import FeedChecker
from fx2onnx.runner.session import InferenceSession

Array = npt.NDArray[np.generic]
DTYPES: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
"""The words of the safetensors format as NumPy's dtypes."""
WORDS = {dtype: word for word, dtype in DTYPES.items()}


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Every tensor of a file. Raises UserError E302."""
    found, _ = safetensors.places(path)
    tensors: dict[str, Array] = {}
    with open(path, "rb") as file:
        for name, place in found.items():
            file.seek(place.offset)
            dtype = DTYPES.get(place.dtype)
            content = file.read(place.length)
            if dtype is None or len(content) != dtype.itemsize * int(np.prod(place.shape, dtype=np.int64)):
                raise UserError("E302", f"'{Path(path)}' has a tensor {name} of {place.dtype} that cannot be read")
            tensors[name] = np.frombuffer(bytearray(content), dtype).reshape(place.shape)
    return tensors


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """The file appears whole or not at all. Raises UserError E301."""
    target = Path(path)
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    entries = [
        TensorEntry(name, WORDS[array.dtype], array.shape, array.reshape(-1).view(np.uint8).data)
        for name, array in arrays.items()
    ]
    try:
        with staged_files(target.parent, 1) as (stage,):
            safetensors.write(stage, entries, metadata)
            replace(stage, target)
    except OSError as cause:
        raise cannot_write(target, cause) from cause


def first_state(manifest: TrainingManifest, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The first value of every input of a step that is carried. Raises UserError E302 where the weights lack one."""
    state: dict[str, Array] = {}
    named = [item.name for item in manifest.parameters] + [item.name for item in manifest.buffers]
    for name in (*named, *manifest.held):
        if name not in weights:
            raise UserError("E302", f"the file of weights lacks {name}", next="export the folder again")
        state[name] = weights[name]
    for slot in (slot for parameter in manifest.parameters for slot in parameter.state):
        state[slot.name] = weights.get(slot.name, np.full(slot.shape, slot.initial, DTYPES[slot.dtype]))
    if manifest.step is not None:
        state[manifest.step.name] = np.array(manifest.first_step, DTYPES[manifest.step.dtype])
    return state


def check_state(path: str | os.PathLike[str], found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Raises UserError E302 where ``found`` is the state of another model or optimizer."""
    missing, beyond = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    other = [
        f"{name} is {found[name].dtype}{list(found[name].shape)}, not {array.dtype}{list(array.shape)}"
        for name, array in wanted.items()
        if name in found and (found[name].shape, found[name].dtype) != (array.shape, array.dtype)
    ]
    why = [f"it lacks {', '.join(missing[:3])}"] if missing else []
    why += [f"it has {', '.join(beyond[:3])}"] if beyond else []
    why += other[:1]
    if why:
        raise UserError(
            "E302",
            f"'{Path(path)}' is the state of another model or optimizer",
            why="; ".join(why),
            next="load what Trainer.save wrote for this folder",
        )


OpenSession = Callable[[str], Any]
DEFAULT_LOSS_SCALE = 1.0
SEEDS = 0x9E3779B9
"""Between the seeds of two steps."""


@public_methods
class Trainer:
    """Parameters, buffers and the optimizer's state of a folder that ``fx2onnx.export_training`` wrote.

    ``state`` holds them by name; ``learning_rates`` what each step is fed, to be changed as a schedule wants.
    ``open_session`` makes a session of the path of a file: ``InferenceSession`` of the runner or of onnxruntime.
    Raises UserError E302 for other folders.
    """

    def __init__(
        self, folder: str | os.PathLike[str], open_session: OpenSession = InferenceSession, seed: int = 0
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_training(self.folder)
        self._open = open_session
        self._sessions: dict[str, Any] = {}
        self._checkers: dict[int, FeedChecker] = {}
        self._carried = self.manifest.carried()
        self.state = first_state(self.manifest, self._weights())
        self.learning_rates = {rate.name: rate.initial for rate in self.manifest.learning_rates}
        self.loss_scale = DEFAULT_LOSS_SCALE
        self.seed = seed
        self.steps = self.manifest.first_step

    def step(self, batch: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """One step of the optimizer on inputs and targets by name; returns the loss and whatever else the graph gives."""
        session = self._session("step")
        feeds = {**self._beside(), **self._arrays(session, batch, "step"), **self.state}
        results = self._run(session, feeds)
        self.state |= {name: results.pop(following) for name, following in self._carried.items()}
        self.steps += 1
        return results

    def evaluate(self, batch: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Loss, metrics and outputs with the present parameters, in eval mode."""
        session = self._session("eval")
        return self._run(session, {**self._arrays(session, batch, "eval"), **self.state})

    def rows(self, kind: str = "step") -> int | None:
        """The number of rows of a batch of the graph, if its inputs and targets have a fixed number of them."""
        own = {*self.manifest.batch, *self.manifest.targets}
        sizes = {value.shape[0] for value in self._session(kind).get_inputs() if value.name in own and value.shape}
        return sizes.pop() if len(sizes) == 1 and all(isinstance(size, int) for size in sizes) else None

    def gradients(self, batch: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The loss, and ``grad.NAME`` for each parameter: to be added up over batches or machines."""
        session = self._session("gradients")
        feeds = {**self._beside(), **self._arrays(session, batch, "gradients"), **self.state}
        results = self._run(session, feeds)
        for name, following in self._carried.items():  # forward may write into a parameter, too
            if following in results:
                self.state[name] = results.pop(following)
        return results

    def apply(self, gradients: Mapping[str, npt.ArrayLike]) -> None:
        """The optimizer's step with gradients by ``grad.NAME``."""
        session = self._session("update")
        results = self._run(session, {**self._beside(), **gradients, **self.state})
        self.state |= {name: results[following] for name, following in self._carried.items() if following in results}
        self.steps += 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything that the next step depends on. Raises UserError E301."""
        own = {"fx2onnx.steps": str(self.steps), "fx2onnx.seed": str(self.seed)}
        write_tensors(path, self.state, own)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on where ``save`` was called, bit for bit. Raises UserError E302 for the state of another model."""
        from fx2onnx.files import safetensors

        found = read_tensors(path)
        check_state(path, found, self.state)
        _, own = safetensors.places(path)
        self.state = {name: found[name] for name in self.state}
        self.steps, self.seed = int(own.get("fx2onnx.steps", 0)), int(own.get("fx2onnx.seed", 0))

    def save_model(self, folder: str | os.PathLike[str]) -> Path:
        """The model for inference with the present parameters: ``model.onnx`` and its weights. Returns the file's path."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        if target.resolve() == self.folder.resolve():
            raise UserError("E301", f"cannot write into '{folder}'", why="it is the folder that is trained from")
        present = {name: self.state.get(name, array) for name, array in self._weights().items()}
        write_tensors(target / self.manifest.weights, present, {"format": "pt"})
        shutil.copyfile(self.folder / MODEL_FILE, target / MODEL_FILE)
        return target / MODEL_FILE

    def _weights(self) -> dict[str, Array]:
        """The exported weights. Read when it is asked for: a step leaves all of it behind but what is frozen."""
        return read_tensors(self.folder / self.manifest.weights)

    def _session(self, kind: str) -> Any:
        if kind not in self._sessions:
            if kind not in self.manifest.files:
                raise UserError(
                    "E401",
                    f"the folder '{self.folder}' has no graph for {kind}",
                    why=f"it has {', '.join(sorted(self.manifest.files))}",
                    next="export it with an optimizer" if kind in ("step", "update") else "export it again",
                )
            self._sessions[kind] = self._open(str(self.folder / self.manifest.files[kind]))
        return self._sessions[kind]

    def _beside(self) -> dict[str, Array]:
        """The inputs of a step beside the batch and the state."""
        manifest = self.manifest
        fed: dict[str, Array] = {name: np.array(rate, np.float32) for name, rate in self.learning_rates.items()}
        if manifest.seed is not None:
            fed[manifest.seed] = np.array((self.seed + self.steps * SEEDS) & 0xFFFFFFFF, np.int64)
        if manifest.loss_scale is not None:
            fed[manifest.loss_scale] = np.array(self.loss_scale, np.float32)
        return fed

    def _arrays(self, session: Any, batch: Mapping[str, npt.ArrayLike], kind: str) -> dict[str, Array]:
        """The batch as arrays. Raises UserError E401 where a name is missing or not known."""
        wanted = {*self.manifest.batch, *self.manifest.targets}
        if set(batch) != wanted:
            missing, beyond = sorted(wanted - set(batch)), sorted(set(batch) - wanted)
            why = "; ".join(
                f"{what} {', '.join(names)}" for what, names in (("it lacks", missing), ("it has", beyond)) if names
            )
            raise UserError(
                "E401", f"the batch does not fit the {kind} graph", why=why, next=f"give {', '.join(sorted(wanted))}"
            )
        return {name: np.asarray(value) for name, value in batch.items()}

    def _run(self, session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name. Raises UserError E401 for feeds that do not fit, E403 where the engine fails."""
        names = {value.name for value in session.get_inputs()}
        outputs = [value.name for value in session.get_outputs()]
        fed: dict[str, Any] = {name: value for name, value in feeds.items() if name in names}
        if not isinstance(session, InferenceSession):
            if id(session) not in self._checkers:
                self._checkers[id(session)] = FeedChecker.of_session(session)
            fed = self._checkers[id(session)].check(fed)
        with onnxruntime_errors():
            return dict(zip(outputs, session.run(None, fed), strict=True))


METADATA_KEY = STATE
"""Model metadata: a JSON object that maps each state input to the output with its next value."""


@public_methods
class StatefulSession:
    """A session over a model exported with ``state="io"``: its buffers live here between calls.

    ``state`` holds the present value of every state input; ``run`` takes the other inputs and returns the other outputs.
    Works over any session with onnxruntime's interface. Raises UserError E401 for a model without state, or an initial
    state that does not name exactly the state inputs.
    """

    def __init__(self, session: InferenceSession | Any, initial_state: Mapping[str, npt.ArrayLike]) -> None:
        self.session = session
        inputs = [value.name for value in session.get_inputs()]
        outputs = [value.name for value in session.get_outputs()]
        mapping = _read(session.get_modelmeta().custom_metadata_map.get(METADATA_KEY) or "{}", outputs)
        self._next = mapping
        carried = sorted(name for name in self._next if name in inputs and name in initial_state)
        missing = sorted(set(initial_state) - set(carried))
        if not mapping or missing:
            raise UserError(
                "E401",
                "the model does not have this state",
                why=f"its state inputs are {', '.join(mapping) or 'none'}; given: {', '.join(initial_state) or 'none'}",
                next='export with state="io" and give result.initial_state',
            )
        self.state: dict[str, Any] = {name: np.asarray(initial_state[name]) for name in carried}
        self._outputs = [name for name in outputs if name not in self._next.values()]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run the model as ``InferenceSession.run`` does, without the state inputs and outputs."""
        wanted = list(output_names) if output_names is not None else self._outputs
        following = [self._next[name] for name in self.state]
        results = self.session.run([*wanted, *following], {**feeds, **self.state})
        self.state = dict(zip(self.state, results[len(wanted) :], strict=True))
        return list(results[: len(wanted)])


def _read(text: str, outputs: Collection[str]) -> dict[str, str]:
    """The output with the next value of each state input. Raises UserError E303 where ``text`` does not say that."""
    with metadata(METADATA_KEY):
        result = json.loads(text)
        if not isinstance(result, dict):
            raise ValueError(f"it is a {type(result).__name__}, no JSON object")
        for name, following in result.items():
            if not isinstance(following, str) or following not in outputs:
                raise ValueError(f"the model has no output {following!r:.80}, which it names for {name}")
    return result
