"""Sessions whose state inputs are carried from call to call."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import STATE
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.base.typed_json import metadata
from fx2onnx.runner.session import InferenceSession

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
