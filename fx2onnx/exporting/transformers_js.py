"""The layout of transformers.js: configs and tokenizer in the folder, the graph as ``onnx/model_q4.onnx`` or alike below it.

Source: transformers.js 4.3, ``models/session.js``, ``models/session_config.js``, ``utils/dtypes.js`` and ``configs.js``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import read_object
from fx2onnx.manifest.form import Manifest
from fx2onnx.manifest.names import MODEL_FILE, PAST
from fx2onnx.sources.hf.config import CONFIG

if TYPE_CHECKING:
    from fx2onnx.exporting.options import ExportOptions
    from fx2onnx.exporting.result import ExportResult

NAME = "transformers.js"
FOLDER = "onnx"
_KINDS = {"int8": "int8", "int4": "q4", "uint4": "q4", "nf4": "bnb4", "int2": "q2", "ternary": "q2"}
"""The dtypes of transformers.js by kinds of ``Quantize``."""
_SIXTEEN = {"": "fp16", "q4": "q4f16", "q2": "q2f16"}


def dtype_of(options: ExportOptions) -> str:
    """The ``dtype`` under which transformers.js opens the graph. Raises: UserError E601 for one that it has no name for."""
    kind = "" if options.quantize is None else _KINDS.get(options.quantize.kind, options.quantize.kind)
    bits = "" if options.precision is None else options.precision.dtype
    known = not kind or kind in _KINDS.values()
    if not bits and known:
        return kind or "fp32"
    if bits != "float16" or kind not in _SIXTEEN:
        what = " and ".join(filter(None, [kind, bits]))
        raise UserError(
            "E601",
            f"{NAME} has no name for graphs of {what}",
            next="int8, int4, nf4 or float16, or float16 with int4",
        )
    return _SIXTEEN[kind]


def file_of(dtype: str) -> str:
    return f"{FOLDER}/model{'' if dtype == 'fp32' else f'_{dtype}'}.onnx"


def checked(layout: str, results: Mapping[str, ExportResult], options: ExportOptions) -> str | None:
    """``dtype_of`` where this layout is asked for. Raises: UserError E601 for graphs or states that transformers.js calls otherwise."""
    if layout != NAME:
        return None
    inputs = results[MODEL_FILE].owned.model.graph.inputs if MODEL_FILE in results else ()
    states = [(value.name or "").removeprefix(PAST) for value in inputs if (value.name or "").startswith(PAST)]
    other = [state for state in states if not state.endswith((".key", ".value"))]
    if set(results) == {MODEL_FILE} and not other:
        return dtype_of(options)
    found = f"this cache holds {', '.join(other[:3])}" if other else f"this one has {', '.join(sorted(results))}"
    raise UserError(
        "E601",
        f"the model has no layout of {NAME}",
        why=f"{found}: only one graph with keys and values alone has it",
        next=f"leave out --layout {NAME}",
    )


def laid_out(stage: Path, dtype: str, manifest: Manifest) -> Manifest:
    """Give the graph, which holds its weights, its name in ``stage`` and in the manifest; write ``transformers.js_config`` into the config."""
    (stage / FOLDER).mkdir()
    (stage / MODEL_FILE).rename(stage / file_of(dtype))
    config = read_object(stage / CONFIG)
    config["transformers.js_config"] = {"dtype": dtype}
    (stage / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return replace(
        manifest,
        graphs=tuple(replace(form, file=file_of(dtype)) for form in manifest.graphs),
        precision={file_of(dtype): facts for facts in manifest.precision.values()},
    )
