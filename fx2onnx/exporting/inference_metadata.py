"""``inference_metadata.json``: a decoder as a workflow that an engine runs without knowing the model.

Source: onnx#8184 as onnx-genai 0.1.0.dev6 reads it, schema version 1.8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.exporting.layouts import special_tokens
from fx2onnx.manifest.names import IDS, LOGITS, MASK, MODEL_FILE, PAST, POSITIONS, PRESENT

if TYPE_CHECKING:
    import onnx_ir as ir

    from fx2onnx.exporting.result import ExportResult

FILE = "inference_metadata.json"
_ROWS = {"batch_layout": {"kind": "request_aligned", "axis": 0}}
_FLAG = {"dtype": "bool", "shape": ["batch"], **_ROWS}
_ONE = {"dtype": "int64", "shape": [1], **_ROWS}
_TOKEN = {"dtype": "int64", "shape": ["batch", 1], **_ROWS}
_NUMBER = {"dtype": "int64", "shape": []}
_GROWING = {"kind": "growing", "axis": 2, "increment": "one", "max": "limit"}


def write_inference_metadata(model: Any, results: Mapping[str, ExportResult], stage: Path) -> None:
    """Raises: UserError E601 where no token ends a text."""
    config = model.config.get_text_config(decoder=True)
    tokens = special_tokens(model, config)
    ends = tokens["eos_token_id"]
    tokens["eos_token_id"] = ends if isinstance(ends, list) else [ends]
    graph = results[MODEL_FILE].owned.model.graph
    limit = int(getattr(config, "max_position_embeddings", 0) or np.iinfo(np.int32).max)
    metadata = {
        "schema_version": "v1.8",
        "package": {"tokenizer": {"special_tokens": tokens}},
        "pipeline": {"workflow": _workflow(_contracts(graph.inputs), _contracts(graph.outputs), limit)},
    }
    (stage / FILE).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _workflow(inputs: dict[str, dict[str, Any]], outputs: dict[str, dict[str, Any]], limit: int) -> dict[str, Any]:
    """The loop that runs the graph, chooses a token and gives it out, until one ends the text; limit: tokens of a text."""
    states = {name: name.replace(PAST, PRESENT, 1) for name in inputs if name.startswith(PAST)}
    by_role = [name for name in (MASK, POSITIONS) if name in inputs]
    for name in by_role:  # the engine computes them and reads no value here
        inputs[name]["shape"] = ["Any", "Any"]
    empty = inputs[next(iter(states))]
    constants: dict[str, tuple[Mapping[str, Any], int]] = {
        "one": (_ONE, 1),
        "limit": (_NUMBER, limit),
        "yes": (_FLAG, True),
        "no": (_FLAG, False),
        "empty": (empty, 0),
    }
    constants |= {f"any {name}": (inputs[name], 1) for name in by_role}
    cells = {
        "context": _cell(inputs[IDS], "prompt", {"kind": "bounded", "axis": 1, "max": "limit"}),
        "active": _cell(_FLAG, "yes"),
        "done": _cell(_FLAG, "no"),
    }
    kept = {"management": "runtime", "release_boundary": "invocation", "service_group": "cache"}
    cells |= {name: _cell(inputs[name], "empty", _GROWING) | kept for name in states}
    following = {"context": "tokens", **states}
    text = _TOKEN | {"shape": ["batch", "new"]}
    return {
        "publication_mode": "commit_only",
        "manifest": {},
        "inputs": {
            "prompt": _requested("prompt_tokens", inputs[IDS]),
            "max_iterations": _requested("max_iterations", _NUMBER),
            **{name: _constant(*constant) for name, constant in constants.items()},
        },
        "outputs": {
            "tokens": {
                "contract": text,
                "role": "tokens",
                "stage": "post_adapter",
                "family": {"kind": "materialized"},
            }
        },
        "components": _components(inputs, outputs, by_role),
        "state": cells,
        "serving": {
            "active": "active",
            "done": "done",
            "accepted_len": "one",
            "state_service": {"groups": {"cache": _group(states)}},
        },
        "steps": [
            {
                "kind": "loop",
                "steps": _steps({name: f"any {name}" for name in by_role}, states, outputs),
                "carried": [{"cell": name, "next": f"new {following.get(name, name)}"} for name in cells],
                "continue_when": "active",
                "max_iterations": "max_iterations",
                "termination": "generation_eos",
            }
        ],
    }


def _components(inputs: Mapping[str, Any], outputs: Mapping[str, Any], by_role: Iterable[str]) -> dict[str, Any]:
    """The graph, and the engine's own choice of tokens."""
    roles = {IDS: "token_ids", LOGITS: LOGITS} | {name: name for name in by_role}
    chosen = {"token": _TOKEN, "active": _FLAG, "done": _FLAG, "accepted_len": _ONE}
    return {
        "model": {
            "implementation": {"kind": "onnx", "artifact": MODEL_FILE},
            "contract": {"id": "onnx-genai.autoregressive-decode", "version": "1"},
            "ports": {"inputs": inputs, "outputs": outputs, "roles": roles},
        },
        "policy": {
            "implementation": {"kind": "binding"},
            "contract": {"id": "onnx-genai.token-policy", "version": "1"},
            "ports": {"inputs": {LOGITS: outputs[LOGITS]}, "outputs": chosen},
        },
    }


def _steps(by_role: Mapping[str, str], states: Iterable[str], outputs: Iterable[str]) -> list[dict[str, Any]]:
    """The body of the loop."""
    chosen = {"token": "new tokens", "active": "new active", "done": "new done", "accepted_len": "new length"}
    return [
        {
            "kind": "invoke",
            "component": "model",
            "inputs": {IDS: "context", **{name: name for name in states}, **by_role},
            "outputs": {name: f"new {name}" for name in outputs},
        },
        {"kind": "invoke", "component": "policy", "inputs": {LOGITS: f"new {LOGITS}"}, "outputs": chosen},
        {"kind": "emit", "value": "new tokens", "output": "tokens", "mode": "append", "axis": 1},
    ]


def _group(states: Mapping[str, str]) -> dict[str, Any]:
    """The cache: ``present`` of each call is ``past`` of the next."""
    ports = {}
    for past, present in states.items():
        layer, _, kind = past.removeprefix(PAST).rpartition(".")
        ports[past] = {"input": past, "output": present, "role": kind, "layer": int(layer)}
    return {"kind": "full_attention", "sequence_axis": 2, "layout": "bhsd", "ports": {"model": ports}}


def _contracts(values: Iterable[ir.Value]) -> dict[str, dict[str, Any]]:
    """Type and sizes of each by its name; ``Any`` stands for sums of sizes."""
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        assert value.name is not None
        assert value.dtype is not None
        assert value.shape is not None
        sizes = [size if isinstance(size, int) or str(size).isidentifier() else "Any" for size in value.shape]
        shape = [size if isinstance(size, int) else str(size) for size in sizes]
        found[value.name] = {"dtype": str(np.dtype(value.dtype.numpy())), "shape": shape, **_ROWS}
    return found


def _requested(role: str, contract: Mapping[str, Any]) -> dict[str, Any]:
    found = {"kind": "runtime", "version": "1", "role": role}
    return {"contract": contract, "role": found, "source": {"kind": "request"}}


def _constant(contract: Mapping[str, Any], value: int) -> dict[str, Any]:
    return {"contract": contract, "role": {"kind": "opaque"}, "source": {"kind": "literal"}, "default": value}


def _cell(contract: Mapping[str, Any], first: str, sizes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A value that goes from one step to the next."""
    return {
        "contract": contract,
        "scope": "invocation",
        "recurrence": sizes or {"kind": "invariant"},
        "initializer": first,
    }
