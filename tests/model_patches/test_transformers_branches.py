"""Code that asks whether it is traced gets the answer of eager PyTorch, unless eager's branch decides by data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.utils.import_utils import is_tracing  # noqa: E402

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Scaled(nn.Module):
    """A module with another factor where it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if is_tracing(x) or is_tracing() else x * 2


class LooksAtConstants(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(4) < 5
        return x + 1 if not is_tracing(mask) and mask.all() else x.masked_fill(mask, 7)


class LooksAtAMask(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not is_tracing(mask) and mask.all():
            return x
        return x * mask


class LooksAtFloats(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not is_tracing(x) and torch.all(x > 0):
            return x
        return x.relu()


def branches(result: fx2onnx.ExportResult) -> list[str]:
    return [str(line) for line in result.report.assumptions if "traced code" in str(line)]


@pytest.mark.compares("transformers.utils.import_utils:is_tracing")
@pytest.mark.parametrize("kind", [Scaled, LooksAtConstants])
def test_eagers_branch(kind: type[nn.Module]) -> None:
    assert not branches(check(kind(), (X,)))


def test_the_other_branch_where_eagers_decides_by_data() -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    found = branches(check(LooksAtAMask(), (X, mask), others=[(X, X > 0)]))
    assert len(found) == 1
    assert "test_transformers_branches.py" in found[0]
    assert len(branches(check(LooksAtFloats(), (X,), others=[(X + 5,)]))) == 1


def test_a_baked_mask_is_looked_at() -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    result = fx2onnx.export(LooksAtAMask(), (X, mask), bake=["mask"])
    assert not branches(result)
    assert not [node for node in result.model.graph if node.op_type == "Mul"]


def test_a_models_mask() -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=20, num_hidden_layers=1, num_key_value_heads=2, **sizes)
    model = transformers.LlamaModel(config).eval()

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            found = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
            return found.last_hidden_state  # type: ignore[no-any-return]

    ids, mask = torch.arange(10).reshape(2, 5), torch.ones(2, 5, dtype=torch.int64)
    padded = mask.clone()
    padded[1, 3:] = 0
    result = check(Hidden(), (ids, mask), others=[(ids, padded)])
    assert any("_ignore_causal_mask_sdpa" in line for line in branches(result))


@pytest.mark.compares("transformers.masking_utils:_ignore_causal_mask_sdpa")
def test_a_mask_longer_than_the_keys() -> None:
    """A cache that keeps a window: eager PyTorch cuts the mask and then asks for its numbers, which capture need not."""
    from transformers.masking_utils import _ignore_causal_mask_sdpa

    def left_out(mask: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        ignored = _ignore_causal_mask_sdpa(mask, 1, keys.shape[1], 0, 0)
        return keys * (3 if ignored else 2)

    mask, keys = torch.ones(2, 7, dtype=torch.bool), torch.randn(2, 7)
    shapes = ({1: "all"}, {1: "kept"})
    result = fx2onnx.export(left_out, (mask, keys), dynamic_shapes=shapes)
    assert [line for line in result.report.assumptions if "all" in str(line) or "kept" in str(line)] == []
    assert any("_ignore_causal_mask_sdpa" in line for line in branches(result))


class FirstHidden(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0]  # type: ignore[no-any-return]


@pytest.mark.long_cases("Llama-False-dynamic1")
@pytest.mark.compares(
    "transformers.masking_utils:sdpa_mask", "transformers.integrations.sdpa_attention:sdpa_attention_forward"
)
@pytest.mark.parametrize("dynamic", [None, {"input_ids": {1: "length"}, "attention_mask": {1: "length"}}])
@pytest.mark.parametrize(("kind", "is_causal"), [("Llama", False), ("Mistral", False), ("Bert", True)])
def test_a_mask_that_eager_leaves_out_where_no_token_is_padded(kind: str, is_causal: bool, dynamic: Any) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "sliding_window": 7} if kind != "Bert" else {}
    config = getattr(transformers, f"{kind}Config")(vocab_size=40, num_hidden_layers=2, **sizes)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = is_causal
    ids, mask = torch.arange(10).reshape(2, 5), torch.ones(2, 5, dtype=torch.int64)
    padded = mask.clone()
    padded[1, 3:] = 0
    longer = (torch.arange(18).reshape(2, 9), torch.ones(2, 9, dtype=torch.int64))
    others = [(ids, padded), *([longer] if dynamic else [])]
    check(FirstHidden(model), (ids, mask), others=others, dynamic_shapes=dynamic)


def test_afterwards_it_answers_as_before() -> None:
    code = is_tracing.__code__
    with pytest.raises(fx2onnx.UserError):
        fx2onnx.export(lambda x: x if x.sum() > 0 else -x, (X,), data_branches="error")
    assert is_tracing.__code__ is code
