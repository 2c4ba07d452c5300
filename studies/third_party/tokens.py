"""Rows of packages for tokens: attention in all forms, mixtures, recommenders, tables."""

from __future__ import annotations

import torch

from studies.third_party.spec import Applied, Row, apply, at, call, first, row, trained

# fmt: off

_IDS = ("int20 batch length",)
_VECTORS = ("batch length 32",)


def _decoder(name: str, **options: object) -> Row:
    layers = call("x_transformers.Decoder", dim=32, depth=2, heads=2, **options)
    build = call("x_transformers.TransformerWrapper", num_tokens=20, max_seq_len=64)
    return row("x_transformers", name, lambda: build_with(build, attn_layers=layers()), *_IDS)


def build_with(_: object, **options: object) -> torch.nn.Module:
    return at("x_transformers.TransformerWrapper")(num_tokens=20, max_seq_len=64, **options)


X_TRANSFORMERS = [
    _decoder("plain"),
    _decoder("rotary positions", rotary_pos_emb=True),
    _decoder("alibi", alibi_pos_bias=True, alibi_num_heads=1),
    _decoder("relative positions", rel_pos_bias=True),
    _decoder("dynamic position bias", dynamic_pos_bias=True),
    _decoder("RMS norm", use_rmsnorm=True),
    _decoder("gated feed-forward", ff_glu=True, ff_swish=True),
    _decoder("normed queries and keys", attn_qk_norm=True),
    _decoder("one key head", attn_kv_heads=1),
    _decoder("talking heads", attn_pre_talking_heads=True),
    _decoder("sparse attention", attn_sparse_topk=4),
    _decoder("memory keys", attn_num_mem_kv=2),
    _decoder("sandwich norm", sandwich_norm=True),
    _decoder("shifted tokens", shift_tokens=1),
    _decoder("gated values", attn_gate_values=True),
    _decoder("xpos", rotary_pos_emb=True, rotary_xpos=True),
    _decoder("macaron", macaron=True),
    _decoder("gated residual", gate_residual=True),
    _decoder("attention on attention", attn_on_attn=True),
    _decoder("value residual", add_value_residual=True),
    _decoder("soft clamp", attn_softclamp_logits=True),
    row("x_transformers", "ContinuousTransformerWrapper", lambda: at("x_transformers.ContinuousTransformerWrapper")(dim_in=8, dim_out=4, max_seq_len=32, attn_layers=at("x_transformers.Encoder")(dim=32, depth=2, heads=2)), "batch length 8"),
    row("x_transformers", "ViTransformerWrapper", lambda: at("x_transformers.ViTransformerWrapper")(image_size=32, patch_size=8, num_classes=5, attn_layers=at("x_transformers.Encoder")(dim=32, depth=2, heads=2)), "batch 3 32 32"),
    row("x_transformers", "XTransformer encoder", lambda: at("x_transformers.TransformerWrapper")(num_tokens=20, max_seq_len=32, emb_dropout=0.1, attn_layers=at("x_transformers.Encoder")(dim=32, depth=1, heads=2)), *_IDS),
]

ATTENTION = [
    row("local_attention", "LocalTransformer", call("local_attention.LocalTransformer", num_tokens=20, dim=32, depth=2, max_seq_len=64, local_attn_window_size=4, heads=2, dim_head=16), *_IDS),
    row("local_attention", "LocalAttention", call("local_attention.LocalAttention", dim=16, window_size=4, causal=True, autopad=True), *("batch 2 length 16",) * 3),
    row("reformer_pytorch", "ReformerLM, full attention", call("reformer_pytorch.ReformerLM", num_tokens=20, dim=32, depth=1, max_seq_len=64, heads=2, bucket_size=8, n_hashes=2, full_attn_thres=64), "int20 batch 64"),
    row("performer_pytorch", "PerformerLM", call("performer_pytorch.PerformerLM", num_tokens=20, max_seq_len=64, dim=32, depth=1, heads=2, dim_head=16), *_IDS),
    row("performer_pytorch", "Performer, causal", call("performer_pytorch.Performer", dim=32, depth=1, heads=2, dim_head=16, causal=False, generalized_attention=True), *_VECTORS),
    row("linformer", "LinformerLM", call("linformer.LinformerLM", num_tokens=20, dim=32, seq_len=16, depth=1, heads=2, k=4), "int20 batch 16"),
    row("nystrom_attention", "Nystromformer", call("nystrom_attention.Nystromformer", dim=32, dim_head=16, heads=2, depth=1, num_landmarks=4, pinv_iterations=4), *_VECTORS),
    trained(row("routing_transformer", "RoutingTransformerLM", call("routing_transformer.RoutingTransformerLM", num_tokens=20, dim=32, heads=2, depth=1, max_seq_len=64, window_size=8, causal=False, then=first), "int20 batch 64")),
    row("sinkhorn_transformer", "SinkhornTransformerLM", call("sinkhorn_transformer.SinkhornTransformerLM", num_tokens=20, dim=32, heads=2, depth=1, max_seq_len=64, bucket_size=8, causal=False), "int20 batch 64"),
    row("linear_attention_transformer", "LinearAttentionTransformerLM", call("linear_attention_transformer.LinearAttentionTransformerLM", num_tokens=20, dim=32, heads=2, depth=1, max_seq_len=64, causal=False), *_IDS),
    row("memory_efficient_attention_pytorch", "Attention", call("memory_efficient_attention_pytorch.Attention", dim=32, dim_head=16, heads=2, causal=True, memory_efficient=True, q_bucket_size=4, k_bucket_size=4), *_VECTORS),
    row("memory_efficient_attention_pytorch", "Attention, plain", call("memory_efficient_attention_pytorch.Attention", dim=32, dim_head=16, heads=2, causal=True), *_VECTORS),
    row("perceiver_pytorch", "Perceiver", call("perceiver_pytorch.Perceiver", input_channels=3, input_axis=2, num_freq_bands=4, max_freq=8.0, depth=1, num_latents=8, latent_dim=16, cross_heads=1, latent_heads=2, cross_dim_head=8, latent_dim_head=8, num_classes=5), "batch height width 3"),
    row("perceiver_pytorch", "PerceiverIO", lambda: Applied(_perceiver_io(), None), "batch length 16", "rows 8"),
    row("conformer", "ConformerBlock", call("conformer.ConformerBlock", dim=32, dim_head=16, heads=2), *_VECTORS),
    row("colt5_attention", "ConditionalRoutedFeedForward", call("colt5_attention.ConditionalRoutedFeedForward", 32, num_heavy_tokens=4, light_ff_mult=0.5, heavy_ff_mult=4), *_VECTORS),
    row("soft_moe_pytorch", "SoftMoE", call("soft_moe_pytorch.SoftMoE", dim=32, seq_len=16, num_experts=4), "batch 16 32"),
    row("soft_moe_pytorch", "DynamicSlotsSoftMoE", call("soft_moe_pytorch.DynamicSlotsSoftMoE", dim=32, num_experts=4), *_VECTORS),
    row("mixture_of_experts", "MoE", call("mixture_of_experts.MoE", dim=32, num_experts=4, second_policy_eval="all", then=first), *_VECTORS),
    row("product_key_memory", "PKM", call("product_key_memory.PKM", dim=32, heads=2, dim_head=16, num_keys=8, topk=4), *_VECTORS),
    row("rotary_embedding_torch", "rotate_queries_or_keys", call("rotary_embedding_torch.RotaryEmbedding", 8, then=lambda net: first(net, "rotate_queries_or_keys")), "batch 2 length 16"),
    row("vector_quantize_pytorch", "VectorQuantize", call("vector_quantize_pytorch.VectorQuantize", dim=32, codebook_size=16, then=first), *_VECTORS),
    row("vector_quantize_pytorch", "ResidualVQ", call("vector_quantize_pytorch.ResidualVQ", dim=32, codebook_size=16, num_quantizers=2, then=first), *_VECTORS),
    row("vector_quantize_pytorch", "FSQ", call("vector_quantize_pytorch.FSQ", levels=[8, 5, 5], dim=32, then=first), *_VECTORS),
    row("vector_quantize_pytorch", "LFQ", call("vector_quantize_pytorch.LFQ", codebook_size=16, dim=32, then=first), *_VECTORS),
    row("vector_quantize_pytorch", "GroupedResidualVQ", call("vector_quantize_pytorch.GroupedResidualVQ", dim=32, num_quantizers=2, groups=2, codebook_size=16, then=first), *_VECTORS),
    row("entmax", "sparsemax", apply("entmax.sparsemax", -1), "rows columns"),
    row("entmax", "entmax15", apply("entmax.entmax15", -1), "rows columns"),
    row("entmax", "entmax_bisect", apply("entmax.entmax_bisect", 1.5, -1), "rows columns"),
    row("einops", "Rearrange", call("einops.layers.torch.Rearrange", "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), "batch 3 height width"),
    row("einops", "Reduce", call("einops.layers.torch.Reduce", "b c (h p) w -> b c h w", "max", p=2), "batch 3 height width"),
    row("einops", "EinMix", call("einops.layers.torch.EinMix", "b n c -> b n d", weight_shape="c d", bias_shape="d", c=32, d=8), *_VECTORS),
    row("einx", "sum", lambda: Applied(lambda x: at("einx.sum")("b [s] c", x)), *_VECTORS),
    row("einx", "softmax", lambda: Applied(lambda x: at("einx.softmax")("b [s] c", x)), *_VECTORS),
    row("einx", "dot", lambda: Applied(lambda x, y: at("einx.dot")("b s c, c d -> b s d", x, y)), *_VECTORS, "32 5"),
    row("mambapy", "Mamba", lambda: at("mambapy.mamba.Mamba")(at("mambapy.mamba.MambaConfig")(d_model=16, n_layers=1, d_state=4, use_cuda=False, pscan=False)), "batch length 16"),
    row("mambapy", "Mamba, parallel scan", lambda: at("mambapy.mamba.Mamba")(at("mambapy.mamba.MambaConfig")(d_model=16, n_layers=1, d_state=4, use_cuda=False, pscan=True)), "batch length 16"),
    row("titans_pytorch", "MemoryAsContextTransformer", call("titans_pytorch.MemoryAsContextTransformer", num_tokens=20, dim=16, depth=1, segment_len=8, num_persist_mem_tokens=2, num_longterm_mem_tokens=2, heads=2, dim_head=8, neural_memory_layers=()), "int20 batch 16"),
    row("transformer_lens", "HookedTransformer", lambda: at("transformer_lens.HookedTransformer")(at("transformer_lens.HookedTransformerConfig")(n_layers=1, d_model=16, n_ctx=32, d_head=8, n_heads=2, d_vocab=20, act_fn="gelu", device="cpu")), *_IDS),
]


def _perceiver_io() -> object:
    network = at("perceiver_pytorch.PerceiverIO")(dim=16, queries_dim=8, logits_dim=5, depth=1, num_latents=8, latent_dim=16, cross_heads=1, latent_heads=2, cross_dim_head=8, latent_dim_head=8).eval()
    return lambda data, queries: network(data, queries=queries)


_FIELDS = [4, 5, 6]
_RECOMMENDERS = {
    "fm.FactorizationMachineModel": {"embed_dim": 4},
    "dfm.DeepFactorizationMachineModel": {"embed_dim": 4, "mlp_dims": (8,), "dropout": 0.1},
    "xdfm.ExtremeDeepFactorizationMachineModel": {"embed_dim": 4, "mlp_dims": (8,), "dropout": 0.1, "cross_layer_sizes": (4, 4), "split_half": False},
    "dcn.DeepCrossNetworkModel": {"embed_dim": 4, "num_layers": 2, "mlp_dims": (8,), "dropout": 0.1},
    "afi.AutomaticFeatureInteractionModel": {"embed_dim": 4, "num_heads": 2, "num_layers": 1, "mlp_dims": (8,), "dropouts": (0.1, 0.1, 0.1)},
    "afm.AttentionalFactorizationMachineModel": {"embed_dim": 4, "attn_size": 4, "dropouts": (0.0, 0.0)},
    "ffm.FieldAwareFactorizationMachineModel": {"embed_dim": 4},
    "nfm.NeuralFactorizationMachineModel": {"embed_dim": 4, "mlp_dims": (8,), "dropouts": (0.1, 0.1)},
    "pnn.ProductNeuralNetworkModel": {"embed_dim": 4, "mlp_dims": (8,), "dropout": 0.1},
    "wd.WideAndDeepModel": {"embed_dim": 4, "mlp_dims": (8,), "dropout": 0.1},
    "lr.LogisticRegressionModel": {},
}
TABLES = [row("torchfm", name.partition(".")[2], call(f"torchfm.model.{name}", _FIELDS, **options), "int4 batch 3") for name, options in _RECOMMENDERS.items()]
TABLES += [
    row("pytorch_tabnet", "TabNet", lambda: at("pytorch_tabnet.tab_network.TabNet")(8, 3, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(8)), "batch 8"),
    row("pytorch_tabnet", "TabNetNoEmbeddings", lambda: at("pytorch_tabnet.tab_network.TabNetNoEmbeddings")(8, 3, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(8)), "batch 8"),
    row("rtdl_revisiting_models", "FTTransformer", call("rtdl_revisiting_models.FTTransformer", n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=1, d_block=16, attention_n_heads=2, attention_dropout=0.0, ffn_d_hidden=16, ffn_d_hidden_multiplier=None, ffn_dropout=0.0, residual_dropout=0.0), "batch 4", "int3 batch 2"),
    row("rtdl_revisiting_models", "ResNet", call("rtdl_revisiting_models.ResNet", d_in=4, d_out=2, n_blocks=2, d_block=8, d_hidden=8, d_hidden_multiplier=None, dropout1=0.1, dropout2=0.1), "batch 4"),
    row("rtdl_revisiting_models", "MLP", call("rtdl_revisiting_models.MLP", d_in=4, d_out=2, n_blocks=2, d_block=8, dropout=0.1), "batch 4"),
    row("rtdl_num_embeddings", "PeriodicEmbeddings", call("rtdl_num_embeddings.PeriodicEmbeddings", 4, 8, lite=False), "batch 4"),
    row("rtdl_num_embeddings", "PiecewiseLinearEmbeddings", lambda: at("rtdl_num_embeddings.PiecewiseLinearEmbeddings")([torch.linspace(-1, 1, 5)] * 4, 8, activation=False, version="B"), "batch 4"),
    row("tab_transformer_pytorch", "TabTransformer", call("tab_transformer_pytorch.TabTransformer", categories=(4, 5, 6), num_continuous=4, dim=16, dim_out=1, depth=1, heads=2, mlp_act=torch.nn.ReLU()), "int4 batch 3", "batch 4"),
    row("tab_transformer_pytorch", "FTTransformer", call("tab_transformer_pytorch.FTTransformer", categories=(4, 5, 6), num_continuous=4, dim=16, dim_out=1, depth=1, heads=2), "int4 batch 3", "batch 4"),
    row("tabicl", "TabICL, classes", lambda: _columns(3), "batch frames columns", "int3 batch steps"),
    row("tabicl", "TabICL, quantiles", lambda: _columns(0), "batch frames columns", "batch steps"),
    row("tabpfn", "TabPFNV2", lambda: _prior("v2", "V2", nlayers=1), "frames 2 columns", "int3 steps 2"),
    row("tabpfn", "TabPFNV2p5", lambda: _prior("v2_5", "V2p5", nlayers=1, num_thinking_rows=4), "frames 2 columns", "int3 steps 2"),
    row("tabpfn", "TabPFNV2p6", lambda: _prior("v2_6", "V2p6", nlayers=1, num_thinking_rows=4), "frames 2 columns", "int3 steps 2"),
    row("tabpfn", "TabPFNV3", lambda: _prior("v3", "V3", dist_embed_num_blocks=1, feat_agg_num_blocks=1, embed_dim=16, dist_embed_num_heads=2, feat_agg_num_heads=2, nlayers=1), "frames 2 columns", "int3 steps 2"),
    row("allrank", "LTRModel layers", call("allrank.models.model.FCModel", [16, 8], input_norm=True, activation="ReLU", dropout=0.1, n_features=8), "batch length 8"),
]


def _columns(classes: int) -> torch.nn.Module:
    net = at("tabicl._model.tabicl.TabICL")(max_classes=classes, num_quantiles=9, embed_dim=16, col_num_blocks=1, col_nhead=2, col_num_inds=4, row_num_blocks=1, row_nhead=2, row_num_cls=2, icl_num_blocks=1, icl_nhead=2)
    config = at("tabicl._model.inference_config.InferenceConfig")()
    config.update_from_dict({name: {"use_amp": False} for name in ("COL_CONFIG", "ROW_CONFIG", "ICL_CONFIG")})
    return first(net, inference_config=config)


def _prior(file: str, name: str, **options: object) -> torch.nn.Module:
    module = at(f"tabpfn.architectures.tabpfn_{file}")
    stated = {} if name == "V2" else {"task_type": "multiclass"}
    network = getattr(module, f"TabPFN{name}")(config=getattr(module, f"TabPFN{name}Config")(max_num_classes=3, num_buckets=9, **options), n_out=3, **stated)
    return Applied(lambda x, y: network(x, y.float()), network)


ROWS = [*X_TRANSFORMERS, *ATTENTION, *TABLES]
