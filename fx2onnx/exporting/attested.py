"""The statement about the file of an export, and the digest of the module's weights in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.base.events import record
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.files.staging import sync
from fx2onnx.proof.attest import asked, attest, bind_data, source_files

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.judge.verdict import Verdict


def attest_module(
    result: ExportResult,
    module: Any,
    verdict: Verdict | None,
    *,
    command: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
) -> None:
    """Write the statement beside the file of ``result``, whose data is bound to its graph by digest.

    command: what made the file; default: ``fx2onnx.export`` and its options. source: more on where the module is from.

    Raises: UserError E301.
    """
    path, options = str(result.path), result.options
    with record("attest"):
        bind_data(path)
        files = [Path(each.path) for each in options.weight_files] if options is not None else []
        made = {"name": "fx2onnx.export", "options": asked(options, ExportOptions())}
        given = {"name": type(module).__name__, "files": source_files(files)} | dict(source or {})
        result.statement = attest(
            path,
            command=made if command is None else command,
            source={**given, "state": digest_of_state(module)},
            verdict=verdict,
            rewrites=result.report.rewrites,
        )
        if options is not None and options.durable:
            sync(path)
            sync(os.path.dirname(os.path.abspath(path)))


def digest_of_state(module: Any) -> dict[str, str] | None:
    """The SHA-256 of a module's parameters and buffers with names, dtypes and shapes; None where they have no numbers in memory."""
    state = module.state_dict if hasattr(module, "state_dict") else dict
    state = state() if callable(state) else state
    digest = hashlib.sha256()
    try:
        for name in sorted(state):
            if isinstance(tensor := state[name], torch.Tensor):
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                plain = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(plain.view(torch.uint8).numpy().data)
    except (RuntimeError, NotImplementedError, TypeError):  # meta tensors, quantized ones, subclasses
        return None
    return {"sha256": digest.hexdigest()}
