"""Rows of packages that were not looked at while fx2onnx was built: the page counts them apart."""

from __future__ import annotations

from typing import Any

from torch import nn

from studies.third_party.spec import Applied, Row, apply, at, call, first, row, tensors

BEFORE = "The twelve packages that were drawn last had 28 of 30 models right and 2 refused when they were first tried."
"""The result of the packages that were drawn last, before what they showed was fixed."""


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


def _curated(kind: str, config: str, decoder: str, **options: Any) -> nn.Module:
    """An encoder or decoder of curated_transformers with a mask of its tokens."""
    package, sizes = (
        at(f"curated_transformers.models.{kind}"),
        {"hidden_width": 16, "n_hidden_layers": 2, "n_pieces": 30},
    )
    made = getattr(package, decoder)(getattr(package, config)(dtype=at("torch.float32"), **sizes, **options))
    mask = at("curated_transformers.layers.attention.AttentionMask")
    return Applied(lambda ids: tensors(made(ids, mask(ids > 2))), made)


def _complex(net: nn.Module) -> nn.Module:
    return Applied(lambda x: tensors(net(at("torch.view_as_complex")(x.contiguous()))), net)


def _geometric(name: str, **options: Any) -> nn.Module:
    made: nn.Module = at(f"ezgatr.nets.mv_only_gatr.{name}Model")(
        at(f"ezgatr.nets.mv_only_gatr.{name}Config")(**options)
    )
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
    row("toroidal", "GPT", call("toroidal.models.GPT", vocab_size=30, block_size=32, n_hidden=16, n_heads=2, n_blocks=2), "int30 batch 32"),
    row("toroidal", "BERT", call("toroidal.models.BERT", vocab_size=30, block_size=32, n_hidden=16, n_heads=2, n_blocks=2, then=first), "int30 batch length"),
    row("toroidal", "Attention, causal", call("toroidal.models.Attention", 16, 2, block_size=32, causal=True), "batch 32 16"),
    row("torchvae", "VAE", call("torchvae.models.VAE", 8, 6, then=lambda net: Applied(lambda x: net(x).mean, net)), "batch 8"),
    row("distillable_vision_transformer", "DistillableVisionTransformer", call("distillable_vision_transformer.model.DistillableVisionTransformer", image_size=(32, 32), patch_size=8, emb_dim=16, mlp_dim=32, num_heads=2, num_layers=2, num_classes=5, then=first), "batch 3 32 32"),
    row("distillable_vision_transformer", "SelfAttention", call("distillable_vision_transformer.model.SelfAttention", 16, heads=2), "batch length 16"),
    row("RLT", "RLT", call("RLT.RLT", 16, enc_depth=1, dec_depth=1, num_tokens=30, dim_head=8, heads=2, then=first), "int30 batch length"),
    row("RLT", "RLT, attention residual", call("RLT.RLT", 16, enc_depth=2, dec_depth=2, num_tokens=30, dim_head=8, heads=2, attn_residual=True, recurrent_block_size=4, then=first), "int30 batch length"),
    row("autoregressive_diffusion_pytorch", "MLP", call("autoregressive_diffusion_pytorch.autoregressive_diffusion.MLP", 8, 6, depth=2, width=16, then=lambda net: Applied(lambda noised, times, cond: net(noised, times=times, cond=cond), net)), "batch 6", "batch", "batch 8"),
    row("mixture_density_nets", "MDN", call("mixture_density_nets.mdn.MDN", 6, 2, 3, then=first), "batch 6"),
    row("point_transformer_pytorch", "PointTransformerLayer", call("point_transformer_pytorch.PointTransformerLayer", dim=16, pos_mlp_hidden_dim=8), "batch nodes 16", "batch nodes 3"),
    row("point_transformer_pytorch", "PointTransformerLayer, neighbors", call("point_transformer_pytorch.PointTransformerLayer", dim=16, pos_mlp_hidden_dim=8, num_neighbors=4), "batch nodes 16", "batch nodes 3"),
    row("point_transformer_pytorch", "MultiheadPointTransformerLayer", call("point_transformer_pytorch.MultiheadPointTransformerLayer", dim=16, heads=2, dim_head=8, num_neighbors=4), "batch nodes 16", "batch nodes 3"),
    row("ezgatr", "MVOnlyGATrModel", lambda: _geometric("MVOnlyGATr", num_layers=2, size_context=32, size_channels_in=2, size_channels_out=1, size_channels_hidden=4, size_channels_intermediate=4, attn_num_heads=2), "batch nodes 2 16"),
    row("ezgatr", "EquiLinear", call("ezgatr.nn.modules.linear.EquiLinear", 2, 4), "batch nodes 2 16"),
    row("curated_transformers", "BERTEncoder", lambda: _curated("bert", "BERTConfig", "BERTEncoder", intermediate_width=32, embedding_width=16, n_attention_heads=2), "int30 batch length"),
    row("curated_transformers", "LlamaDecoder", lambda: _curated("llama", "LlamaConfig", "LlamaDecoder", intermediate_width=32, n_query_heads=2, n_key_value_heads=1), "int30 batch length"),
    row("curated_transformers", "GPTNeoXCausalLM", lambda: _curated("gpt_neox", "GPTNeoXConfig", "GPTNeoXCausalLM", intermediate_width=32, n_attention_heads=2), "int30 batch length"),
    row("curated_transformers", "FalconDecoder", lambda: _curated("falcon", "FalconConfig", "FalconDecoder", n_query_heads=2, n_key_value_heads=1), "int30 batch length"),
    row("self_attention_cv", "ViT", call("self_attention_cv.ViT", img_dim=32, patch_dim=8, num_classes=5, dim=16, blocks=2, heads=2, dim_linear_block=32), "batch 3 32 32"),
    row("self_attention_cv", "MultiHeadSelfAttention", call("self_attention_cv.MultiHeadSelfAttention", 16, heads=2), "batch length 16"),
    row("self_attention_cv", "AxialAttentionBlock", call("self_attention_cv.AxialAttentionBlock", 16, 32, heads=4), "batch 16 32 32"),
    row("self_attention_cv", "TransUnet", call("self_attention_cv.TransUnet", img_dim=32, in_channels=3, classes=4, vit_blocks=1, vit_heads=2, vit_dim_linear_mhsa_block=32), "batch 3 32 32"),
    row("self_attention_cv", "BottleneckBlock", call("self_attention_cv.bottleneck_transformer.BottleneckBlock", in_channels=16, fmap_size=(8, 8), out_channels=16, heads=2), "batch 16 8 8"),
    row("self_attention_cv", "TimeSformerBlock", call("self_attention_cv.timesformer.timesformer.TimeSformerBlock", frames=4, patches=9, dim=16, heads=2, dim_linear_block=32), "batch 37 16"),
    row("self_attention_cv", "UNETR", call("self_attention_cv.UnetTr.UnetTr.UNETR", img_shape=(32, 32, 32), input_dim=1, output_dim=2, embed_dim=16, patch_size=16, num_heads=2, ext_layers=[1, 2, 3, 4], base_filters=4, dim_linear_block=16), "batch 1 32 32 32"),
    row("complextorch", "SteinmetzNetwork", lambda: _complex(at("complextorch.models.steinmetz.SteinmetzNetwork")(6, 8, 3)), "batch 6 2"),
    row("complextorch", "CVKAN", lambda: _complex(at("complextorch.models.kan.CVKAN")([3, 4, 2])), "batch 3 2"),
    row("complextorch", "ViT", lambda: _complex(at("complextorch.models.vit.ViT")(image_size=16, patch_size=4, in_channels=2, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32)), "batch 2 16 16 2"),
    row("stam_pytorch", "STAM", call("stam_pytorch.STAM", dim=16, image_size=16, patch_size=4, num_frames=5, num_classes=4, space_depth=1, space_heads=2, space_mlp_dim=32, time_depth=1, time_heads=2, time_mlp_dim=32, space_dim_head=8, time_dim_head=8), "batch 5 3 16 16"),
]  # fmt: skip
