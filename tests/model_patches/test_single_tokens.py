"""A single token beside several ones, in one file: libraries ask for it in every layer, and mostly it makes no difference."""

from __future__ import annotations

import pytest
import torch

from tests.support import check

pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class Logits(torch.nn.Module):
    def __init__(self, kind: str, **config: object) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(0)
        made = transformers.AutoConfig.for_model(kind, **SMALL, **config)
        self.model = transformers.AutoModelForCausalLM.from_config(made).eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


def tokens(batch: int, length: int, padded: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :padded] = 0
    return torch.randint(1, 60, (batch, length)), mask


OTHERS = [tokens(1, 1), tokens(2, 1), tokens(3, 1, 1), tokens(3, 9, 3)]
SIZES = ({0: "batch", 1: "sequence"},) * 2


@pytest.mark.long
def test_a_mask_that_a_single_token_does_not_get() -> None:
    """Lfm2 masks what its convolutions read, save for a single token: another program, and it is in the file."""
    module = Logits("lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"])
    result = check(module, tokens(2, 7, 2), others=OTHERS, dynamic_shapes=SIZES)
    assert [node.op_type for node in result.model.graph].count("If") == 1
    assert result.report.attempts == ["fake", "fake: Python decides as where sequence is 1"]


@pytest.mark.long
def test_attention_of_a_single_token_is_no_other_program() -> None:
    module = Logits("llama", num_hidden_layers=2)
    result = check(module, tokens(2, 7, 2), others=OTHERS[:2], dynamic_shapes=SIZES)
    assert "If" not in [node.op_type for node in result.model.graph]
    assert result.report.attempts == ["fake"]


def test_a_single_window_is_as_causal_as_several() -> None:
    """A single query decides nothing where none is causal, also where the size is a product."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    class Attention(torch.nn.Module):
        is_causal = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled = torch.nn.functional.max_pool2d(x, 2).flatten(2).transpose(1, 2)[:, None]
            found: torch.Tensor = sdpa_attention_forward(self, pooled, pooled, pooled, None)[0]
            return found

    samples = [(torch.randn(2, 3, *sizes),) for sizes in ((6, 8), (2, 3), (5, 2), (9, 7))]
    result = check(Attention(), samples[0], others=samples[1:], dynamic_shapes=[{2: "height", 3: "width"}])
    found = {each.expression for each in result.report.assumptions if each.kind in ("condition", "note")}
    assert found == {"height >= 2", "width >= 2"}  # a window of the pooling
