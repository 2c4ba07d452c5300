"""A module whose weights are those of a quantised file, for as long as the file is compared with it.

The numbers are made from the module's own weights once more, so that wrong codes in the file show in the outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import onnx
import torch

from fx2onnx.base.events import record
from fx2onnx.quantize.reference import METADATA_KEY, read, rounded
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.engines import Array
from fx2onnx.verify.verdict import Row, Verdict


@contextlib.contextmanager
def as_quantized(verdict: Verdict, model: onnx.ModelProto, root: torch.nn.Module) -> Iterator[None]:
    """The module's weights rounded as the file says that it has them; afterwards they are as they were."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), "")
    stated = read(text)
    tensors = {
        **dict(root.named_buffers(remove_duplicate=False)),
        **dict(root.named_parameters(remove_duplicate=False)),
    }
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with record("quantise the module's weights"):
            for name, (kind, axis, block) in stated.items():
                own = tensors.get(name)
                if own is None:
                    verdict.rows.append(Row.failed("file", name, "weights", "the module has no such weight"))
                    continue
                saved.append((own, own.data))
                array = to_numpy(own)
                own.data = _as_tensor(rounded(array, kind, axis, block), own)
        if stated:
            kinds = ", ".join(sorted({kind for kind, _, _ in stated.values()}))
            verdict.note(f"compared with the module with {len(stated)} weights rounded as the file has them ({kinds})")
        yield
    finally:
        for own, before in saved:
            own.data = before


def _as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    numbers = np.ascontiguousarray(array)
    if like.dtype == torch.bfloat16:
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(numbers).to(like.device)
