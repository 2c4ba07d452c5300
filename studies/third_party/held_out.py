"""Rows of packages that were not looked at while fx2onnx was built: the page counts them apart."""

from __future__ import annotations

from typing import Any

from torch import nn

from studies.third_party.spec import Applied, Row, apply, at, call, first, row

BEFORE = (
    "The ten packages that were drawn last had 25 of 32 models right and 7 refused before what they showed was fixed."
)
"""The result of the ten packages that were drawn last, before what they showed was fixed."""


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


def _imagen(name: str, **options: Any) -> nn.Module:
    at("transformers.T5Config").from_pretrained = lambda _: at("types.SimpleNamespace")(d_model=8)
    unet = at(f"imagen_pytorch.{name}")(
        dim=8,
        dim_mults=(1, 2),
        text_embed_dim=8,
        attn_heads=2,
        attn_dim_head=8,
        num_resnet_blocks=1,
        max_text_len=16,
        **options,
    )
    return Applied(lambda x, time, text: unet(x, time, text_embeds=text), unet)


def _torchscale(kind: str, name: str, **options: Any) -> nn.Module:
    side = "encoder" if kind == "Encoder" else "decoder"
    sizes = {
        "embed_dim": 16,
        "ffn_embed_dim": 32,
        "layers": 1,
        "attention_heads": 2,
        "retention_heads": 2,
        "value_embed_dim": 32,
    }
    config = at(f"torchscale.architecture.config.{kind}Config")(
        **{f"{side}_{key}": value for key, value in sizes.items()}, vocab_size=20, **options
    )
    made = at(f"torchscale.architecture.{name}")(config, embed_tokens=nn.Embedding(20, 16))
    return first(made)


def _radial(name: str) -> nn.Module:
    layer = at(f"torchkbnufft.{name}")(im_size=(8, 10))
    return Applied(lambda x, places: layer(at("torch.view_as_complex")(x), places), layer)


def _voice(name: str, *keywords: str, **fixed: Any) -> nn.Module:
    config = at("torchsynth.config.SynthConfig")(
        batch_size=2, sample_rate=800, control_rate=100, buffer_size_seconds=0.5, reproducible=False
    )
    made = at(f"torchsynth.module.{name}")(config, **fixed)
    return Applied(lambda *inputs: [made(*inputs).as_subclass(at("torch.Tensor"))], made)


def _spiking(name: str, **options: Any) -> nn.Module:
    return Applied(
        lambda x: _reset(made)(x), made := at(f"spikingjelly.activation_based.{name}")(step_mode="m", **options)
    )


def _reset(neuron: Any) -> Any:
    neuron.reset()
    return neuron


def _super(name: str, **options: Any) -> nn.Module:
    config = at(f"super_image.{name}Config")(scale=2, **options)
    made: nn.Module = at(f"super_image.{name}Model")(config)
    return made


ROWS: list[Row] = [
    row("torchscale", "Encoder", lambda: _torchscale("Encoder", "encoder.Encoder"), "int20 batch length"),
    row("torchscale", "Decoder, relative positions", lambda: _torchscale("Decoder", "decoder.Decoder", rel_pos_buckets=8, max_rel_pos=16), "int20 batch length"),
    row("torchscale", "RetNetDecoder", lambda: _torchscale("RetNet", "retnet.RetNetDecoder"), "int20 batch length"),
    row("torchscale", "RetNetDecoder, chunks", lambda: _torchscale("RetNet", "retnet.RetNetDecoder", chunkwise_recurrent=True, recurrent_chunk_size=4), "int20 batch length"),
    row("torchkbnufft", "KbNufft", lambda: _radial("KbNufft"), "batch 1 8 10 2", "2 edges"),
    row("torchkbnufft", "KbNufftAdjoint", lambda: _radial("KbNufftAdjoint"), "batch 1 edges 2", "2 edges"),
    row("torchkbnufft", "KbInterp", lambda: _radial("KbInterp"), "batch 1 16 20 2", "2 edges"),
    row("imagen_pytorch", "Unet", lambda: _imagen("Unet"), "batch 3 height width", "batch", "batch length 8"),
    row("imagen_pytorch", "Unet, memory efficient", lambda: _imagen("Unet", memory_efficient=True, layer_attns=False), "batch 3 height width", "batch", "batch length 8"),
    row("imagen_pytorch", "Unet3D", lambda: _imagen("Unet3D"), "batch 3 frames height width", "batch", "batch length 8", frames=7),
    row("super_image", "EdsrModel", lambda: _super("Edsr", n_resblocks=2, n_feats=8), "unit batch 3 height width"),
    row("super_image", "PanModel", lambda: _super("Pan", nf=8, unf=8, nb=2), "unit batch 3 height width"),
    row("super_image", "CarnModel", lambda: _super("Carn"), "unit batch 3 height width"),
    row("spandrel", "SwinIR", call("spandrel.architectures.SwinIR.SwinIR", img_size=16, embed_dim=8, depths=[2], num_heads=[2], window_size=4, upscale=2, upsampler="pixelshuffle"), "unit batch 3 height width"),
    row("spandrel", "SRVGGNetCompact", call("spandrel.architectures.Compact.__arch.SRVGG.SRVGGNetCompact", num_feat=8, num_conv=2), "unit batch 3 height width"),
    row("spandrel", "DAT", call("spandrel.architectures.DAT.DAT", img_size=16, embed_dim=32, split_size=[2, 4], depth=[2], num_heads=[2], expansion_factor=2.0), "unit batch 3 height width"),
    row("torchsynth", "ADSR", lambda: _voice("ADSR"), "unit 2"),
    row("torchsynth", "SineVCO", lambda: _voice("SineVCO"), "unit 2", "unit 2 400"),
    row("torchsynth", "SquareSawVCO", lambda: _voice("SquareSawVCO"), "unit 2", "unit 2 400"),
    row("deepinv", "DnCNN", call("deepinv.models.DnCNN", depth=3, nf=8, pretrained=None), "unit batch 3 height width"),
    row("deepinv", "DRUNet", lambda: first(at("deepinv.models.DRUNet")(nc=(4, 8, 8, 8), nb=1, pretrained=None), sigma=0.1), "unit batch 3 height width"),
    row("deepinv", "Restormer", call("deepinv.models.Restormer", dim=8, num_blocks=(1, 1, 1, 1), num_refinement_blocks=1, heads=(1, 2, 2, 2), pretrained=None), "unit batch 3 height width"),
    row("doctr", "VIPTR tiny", call("doctr.models.viptr_tiny", pretrained=False, pretrained_backbone=False, exportable=True, then=first), "batch 3 32 width"),
    row("doctr", "CRNN mobilenet_v3_small", call("doctr.models.crnn_mobilenet_v3_small", pretrained=False, pretrained_backbone=False, exportable=True, then=first), "batch 3 32 width"),
    row("doctr", "DBNet mobilenet_v3_large", call("doctr.models.db_mobilenet_v3_large", pretrained=False, pretrained_backbone=False, exportable=True, then=first), "batch 3 height width"),
    row("doctr", "PARSeq", call("doctr.models.parseq", pretrained=False, pretrained_backbone=False, exportable=True, then=first), "batch 3 32 128"),
    row("continual", "Conv1d", call("continual.Conv1d", 4, 6, 3), "batch 4 length"),
    row("continual", "TransformerEncoder", lambda: at("continual.TransformerEncoder")(at("continual.TransformerEncoderLayerFactory")(d_model=8, nhead=2, dim_feedforward=16, sequence_len=12), num_layers=1), "batch 8 12"),
    row("continual", "Residual", lambda: at("continual.Residual")(at("continual.Conv3d")(2, 2, kernel_size=3, padding=1)), "batch 2 length height width"),
    row("spikingjelly", "LIFNode", lambda: _spiking("neuron.LIFNode"), "steps batch 6"),
    row("spikingjelly", "ParametricLIFNode", lambda: _spiking("neuron.ParametricLIFNode"), "steps batch 6"),
    row("spikingjelly", "IFNode", lambda: _spiking("neuron.IFNode"), "steps batch 6"),
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
