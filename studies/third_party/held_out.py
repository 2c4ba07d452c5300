"""Rows of packages that were not looked at while fx2onnx was built: the page counts them apart."""

from __future__ import annotations

from typing import Any

from torch import nn

from studies.third_party.spec import Applied, Row, apply, at, call, first, row


def _clicks(name: str, **keywords: Any) -> Any:
    """A model of click rates over three sparse and two dense columns."""

    def build() -> nn.Module:
        inputs = at("deepctr_torch.inputs")
        columns = [inputs.SparseFeat(f"s{n}", vocabulary_size=5, embedding_dim=4) for n in range(3)]
        columns += [inputs.DenseFeat(f"d{n}", 1) for n in range(2)]
        made: nn.Module = at(f"deepctr_torch.models.{name}")(columns, columns, dnn_hidden_units=(16, 8), **keywords)
        return Applied(lambda sparse, dense: made(at("torch.cat")([sparse.float(), dense], dim=1)), made)

    return build


def _still(attention: Any) -> nn.Module:
    """Without the noise of the first slots, which each call draws anew."""
    nn.init.constant_(attention.slots_logsigma, -1e4)
    made: nn.Module = attention
    return made


def _decoded(crf: Any) -> nn.Module:
    return Applied(lambda emissions, tags: -crf(emissions, tags, reduction="none"), crf)


_T5 = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4, "vocab_size": 8}
_BOLT = {
    "context_length": 24,
    "prediction_length": 8,
    "input_patch_size": 4,
    "input_patch_stride": 4,
    "quantiles": [0.1, 0.5, 0.9],
}


def _bolt() -> nn.Module:
    config = at("transformers.T5Config")(
        **_T5, pad_token_id=0, decoder_start_token_id=0, feed_forward_proj="gated-gelu"
    )
    config.chronos_config = {**_BOLT, "use_reg_token": True}
    return first(at("chronos.chronos_bolt.ChronosBoltModelForForecasting")(config))


def _chronos2() -> nn.Module:
    stated = {name: value for name, value in _BOLT.items() if name != "prediction_length"}
    stated |= {
        "output_patch_size": 4,
        "time_encoding_scale": 24,
        "use_reg_token": True,
        "use_arcsinh": True,
        "max_output_patches": 8,
    }
    config = at("chronos.chronos2.config.Chronos2CoreConfig")(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    config.chronos_config = stated
    return first(at("chronos.chronos2.Chronos2Model")(config))


ROWS: list[Row] = [
    row("chronos", "ChronosBoltModelForForecasting", _bolt, "batch length"),
    row("chronos", "Chronos2Model", _chronos2, "batch length"),
    row("coca_pytorch", "CoCa text", call("coca_pytorch.coca_pytorch.CoCa", dim=16, num_tokens=30, unimodal_depth=1, multimodal_depth=1, image_dim=16, img_encoder=nn.Identity(), dim_head=8, heads=2, then=lambda net: first(net, "embed_text")), "int30 batch length"),
    row("deepctr_torch", "DeepFM", _clicks("DeepFM"), "int5 batch 3", "batch 2"),
    row("deepctr_torch", "xDeepFM", _clicks("xDeepFM", cin_layer_size=(8, 8)), "int5 batch 3", "batch 2"),
    row("deepctr_torch", "DCN", _clicks("DCN"), "int5 batch 3", "batch 2"),
    row("deepctr_torch", "AutoInt", _clicks("AutoInt"), "int5 batch 3", "batch 2"),
    row("deepctr_torch", "FiBiNET", _clicks("FiBiNET"), "int5 batch 3", "batch 2"),
    row("facenet_pytorch", "InceptionResnetV1", call("facenet_pytorch.InceptionResnetV1"), "batch 3 160 160"),
    row("facenet_pytorch", "MTCNN PNet", call("facenet_pytorch.models.mtcnn.PNet", pretrained=False), "batch 3 height width"),
    row("facenet_pytorch", "MTCNN RNet", call("facenet_pytorch.models.mtcnn.RNet", pretrained=False), "batch 3 24 24"),
    row("g_mlp_gpt", "gMLPGPT", call("g_mlp_gpt.gMLPGPT", num_tokens=30, dim=16, depth=2, seq_len=32), "int30 batch length"),
    row("h_transformer_1d", "HTransformer1D", call("h_transformer_1d.HTransformer1D", num_tokens=30, dim=16, depth=2, max_seq_len=64, heads=2, dim_head=8, block_size=4), "int30 batch length"),
    row("h_transformer_1d", "HTransformer1D, causal", call("h_transformer_1d.HTransformer1D", num_tokens=30, dim=16, depth=2, max_seq_len=64, heads=2, dim_head=8, block_size=4, causal=True), "int30 batch length"),
    row("kan", "KAN", call("kan.KAN", width=[3, 4, 2], auto_save=False, save_act=False), "batch 3"),
    row("kan", "KAN, splines only", call("kan.KAN", width=[2, 5, 1], grid=5, auto_save=False, save_act=False, symbolic_enabled=False), "batch 3"),
    row("mega_pytorch", "Mega", call("mega_pytorch.Mega", num_tokens=30, dim=16, depth=2, ema_heads=2, attn_dim_qk=8, attn_dim_value=16, laplacian_attn_fn=True), "int30 batch length"),
    row("mega_pytorch", "MultiHeadedEMA", call("mega_pytorch.MultiHeadedEMA", dim=16, heads=2), "batch length 16"),
    row("neuralop", "FNO", call("neuralop.models.FNO", (4, 4), 2, 1, 8, n_layers=2), "batch 2 height width"),
    row("neuralop", "FNO, tucker", call("neuralop.models.FNO", (4, 4), 2, 1, 8, n_layers=2, factorization="tucker", rank=0.5), "batch 2 height width"),
    row("neuralop", "ChannelMLP", call("neuralop.layers.channel_mlp.ChannelMLP", 4, 6), "batch 4 height width"),
    row("siren_pytorch", "SirenNet", call("siren_pytorch.SirenNet", 2, 16, 3, 3), "batch length 2"),
    row("tltorch", "FactorizedLinear", call("tltorch.FactorizedLinear", (4, 4), (2, 3), rank=0.5), "batch 16"),
    row("torch_dct", "dct", apply("torch_dct.dct"), "batch length"),
    row("torch_dct", "idct", apply("torch_dct.idct"), "batch length"),
    row("torch_dct", "dct_2d", apply("torch_dct.dct_2d"), "batch height width"),
    row("torchcrf", "CRF log-likelihood", call("torchcrf.CRF", 5, batch_first=True, then=_decoded), "batch length 5", "int5 batch length"),
    row("x_unet", "XUnet", call("x_unet.XUnet", 8, dim_mults=(1, 2), num_blocks_per_stage=(1, 1), num_self_attn_per_stage=(0, 1), nested_unet_depths=(0, 0), attn_heads=2, attn_dim_head=8), "batch 3 height width"),
    row("x_unet", "XUnet, nested", call("x_unet.XUnet", 8, dim_mults=(1, 2), num_blocks_per_stage=(1, 1), num_self_attn_per_stage=(0, 1), nested_unet_depths=(2, 1), nested_unet_dim=8, attn_heads=2, attn_dim_head=8), "batch 3 height width"),
    row("slot_attention", "SlotAttention", call("slot_attention.SlotAttention", 3, 8, hidden_dim=16, then=_still), "batch length 8"),
]  # fmt: skip
