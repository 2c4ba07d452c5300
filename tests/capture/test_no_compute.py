"""Nothing of the model is computed during export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fx2onnx
import fx2onnx.exporting.steps
from fx2onnx.semantics.folding import LAST_BIT
from models_zoo.registry import build


class CountKernels(TorchDispatchMode):
    """Counts operators that run on real data; reading a tensor's shape or making a view of it computes nothing."""

    ALLOWED = frozenset({"aten::detach", "aten::view", "aten::alias", "aten::lift_fresh", "aten::t", "aten::clone"})

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(result)
        is_real = any(
            isinstance(leaf, torch.Tensor) and leaf.numel() > 1 and leaf.device.type != "meta"
            and not torch._C._dispatch_keys(leaf).has(torch._C.DispatchKey.Python)  # as those without data have
            for leaf in leaves
        )  # fmt: skip
        if is_real and func._schema.name not in self.ALLOWED:
            self.seen.append(str(func))
        return result


@contextmanager
def counting() -> Iterator[CountKernels]:
    with CountKernels() as mode:
        yield mode


@pytest.mark.parametrize("name", ["mnist_cnn", "vit_tiny", "bert_tiny", "gpt2_tiny", "t5_tiny"])
def test_no_kernel_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the functions of constants that folding leaves to PyTorch."""
    monkeypatch.setattr(fx2onnx.exporting.steps, "EAGER_FUNCTIONS", LAST_BIT)
    entry = build(name)
    with counting() as mode:
        fx2onnx.export(entry.module, entry.args, kwargs=entry.kwargs)
    assert mode.seen == []


def test_the_counter_counts() -> None:
    with counting() as mode:
        torch.randn(3).relu()
    assert "aten.relu.default" in mode.seen


@pytest.mark.long_cases("resnet18")
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny", "bert_tiny", "gpt2_tiny"])
def test_meta_device(name: str) -> None:
    """The same graph comes out with the module on the meta device, up to the weights' data."""
    entry = build(name)
    real = fx2onnx.export(entry.module, entry.args, kwargs=entry.kwargs, optimize=False)
    on_meta = entry.module.to("meta")
    getattr(on_meta, "tie_weights", lambda: None)()
    meta = fx2onnx.export(on_meta, entry.args, kwargs=entry.kwargs, optimize=False)
    assert [(node.op_type, node.name) for node in meta.model.graph] == [(n.op_type, n.name) for n in real.model.graph]
    assert list(meta.model.graph.initializers) == list(real.model.graph.initializers)
    optimized = fx2onnx.export(on_meta, entry.args, kwargs=entry.kwargs)
    with pytest.raises(fx2onnx.UserError) as caught:
        optimized.model_proto  # noqa: B018
    assert caught.value.code == "E301"
    assert "meta device" in caught.value.why


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = []
        self.dropout = torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.calls.append(x)
        self.last = x
        if x.shape[0] == 5:
            raise ValueError("five is not a size")
        return self.dropout(x) * self.count


def _global_state() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.nn.Module.__call__,
    )


@pytest.mark.parametrize("size", [2, 5])
def test_module_and_torch_are_left_as_they_were(size: int) -> None:
    module = Counter().train()
    module.dropout.eval()
    before = _global_state()
    if size == 5:
        with pytest.raises(fx2onnx.UserError, match="five is not a size") as caught:
            fx2onnx.export(module, (torch.ones(size),))
        assert caught.value.code == "E101"
        assert caught.value.where is not None
    else:
        with pytest.warns(fx2onnx.ExportWarning):
            result = fx2onnx.export(module, (torch.ones(size),))
        assert any("count" in warning for warning in result.report.warnings)
    assert _global_state() == before
    assert module.training
    assert not module.dropout.training
    assert module.calls == []
    assert not hasattr(module, "last")
    assert module.count.item() == 0
