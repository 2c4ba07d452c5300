"""torch's attention with masks in inference: its fused path takes them otherwise than its layers do in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.runner import InferenceSession


class Masked(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]  # type: ignore[no-any-return]
        return self.layer(x, src_key_padding_mask=padding)  # type: ignore[no-any-return]


def _layer(**options: bool) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **options)


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "layer": _layer,
    "norm first": lambda: _layer(norm_first=True),
    "encoder": lambda: nn.TransformerEncoder(_layer(), 2),
    "encoder with a norm": lambda: nn.TransformerEncoder(_layer(), 2, norm=nn.LayerNorm(8)),
    "plain encoder": lambda: nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False),
    "encoder that does not look": lambda: nn.TransformerEncoder(_layer(), 2, mask_check=False),
}


def _mask(*rows: str) -> torch.Tensor:
    return torch.tensor([[letter == "-" for letter in row] for row in rows])


MASKS = {
    "behind": [_mask("xxxx--", "xxxxxx"), _mask("xxx-", "x---", "xxxx"), _mask("x")],
    "before": [_mask("--xxxx", "xxxxxx"), _mask("-xxx"), _mask("x")],
    "between": [_mask("xx-xxx", "xxxx--"), _mask("x-x-", "xx--")],
    "everything": [_mask("------", "xxxxx-"), _mask("---", "xxx")],
}
MASKS["floats"] = [torch.zeros(mask.shape).masked_fill(mask, -torch.inf) for mask in MASKS["behind"]]
MASKS["soft floats"] = [torch.zeros(mask.shape).masked_fill(mask, -2.0) for mask in MASKS["behind"]]


PATCHED = {
    "attention": "torch.nn.modules.activation:MultiheadAttention.forward",
    "layer": "torch.nn.modules.transformer:TransformerEncoderLayer.forward",
    "encoder": "torch.nn.modules.transformer:TransformerEncoder.forward",
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.compares(*filter(None, [PATCHED.get(name)]))) for name in LAYERS]
)
def test_masks_are_taken_as_in_inference(name: str, kind: str) -> None:
    torch.manual_seed(0)
    module, masks = Masked(LAYERS[name]()).eval(), MASKS[kind]
    sizes = {"x": {0: "batch", 1: "length"}, "padding": {0: "batch", 1: "length"}}
    args = torch.randn(*masks[0].shape, 8), masks[0]
    session = InferenceSession(fx2onnx.export(module, args, dynamic_shapes=sizes).model_proto.SerializeToString())
    for mask in masks:
        x = torch.randn(*mask.shape, 8)
        with torch.no_grad():
            want = module(x, mask).numpy()
        (given,) = session.run(None, {"x": x.numpy(), "padding": mask.numpy()})
        np.testing.assert_allclose(given, want, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["behind", "before", "soft floats"])
@pytest.mark.parametrize("name", ["layer", "encoder", "encoder with a norm"])
def test_encoders_with_masks_are_verified(name: str, kind: str) -> None:
    """Eager PyTorch computes them as nested tensors, which have no sizes."""
    torch.manual_seed(0)
    mask = MASKS[kind][0]
    sizes = {"x": {0: "batch", 1: "length"}, "padding": {0: "batch", 1: "length"}}
    args = torch.randn(*mask.shape, 8), mask
    result = fx2onnx.export(Masked(LAYERS[name]()).eval(), args, dynamic_shapes=sizes, verify=True)
    assert {"onnxruntime", "runner"} <= set(result.report.verdict["versions"])


@pytest.mark.long
def test_training_graphs_take_masks_as_training_does() -> None:
    torch.manual_seed(0)
    module = Masked(LAYERS["encoder"]())
    args = torch.randn(2, 6, 8), MASKS["behind"][0]
    training = fx2onnx.Training(lambda outputs: outputs.pow(2).mean())
    result = fx2onnx.export(module, args, training=training, verify=True)
    assert {"onnxruntime", "runner"} <= set(result.report.verdict["versions"])


def test_the_fused_path_may_be_off() -> None:
    module = Masked(LAYERS["encoder"]()).eval()
    x, mask = torch.randn(2, 6, 8), MASKS["behind"][0]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        proto = fx2onnx.export(module, (x, mask)).model_proto
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    (given,) = InferenceSession(proto.SerializeToString()).run(None, {"x": x.numpy(), "padding": mask.numpy()})
    np.testing.assert_allclose(given, module(x, mask).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert np.abs(given[0, -2:]).max() > 0.1
