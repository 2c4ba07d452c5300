"""Small pipelines of images whose denoiser is a transformer."""

from __future__ import annotations

from typing import Any

import diffusers
import transformers
from transformers import CLIPTextModelWithProjection

from studies.tiny_pipelines.parts import gemma, pipeline, t5, t5_wide, text_encoder, tokenizer, vae, words


@pipeline
def stable_diffusion_3() -> Any:
    denoiser = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        out_channels=4,
        pos_embed_max_size=48,
    ).eval()
    return diffusers.StableDiffusion3Pipeline(
        denoiser,
        diffusers.FlowMatchEulerDiscreteScheduler(),
        vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder(CLIPTextModelWithProjection),
        tokenizer(),
        text_encoder(CLIPTextModelWithProjection),
        tokenizer(),
        t5_wide(),
        words(),
    )


@pipeline
def flux() -> Any:
    denoiser = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    ).eval()
    return diffusers.FluxPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(),
        vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder(),
        tokenizer(),
        t5(),
        words(),
        denoiser,
    )


@pipeline
def pixart() -> Any:
    denoiser = diffusers.PixArtTransformer2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=32,
        in_channels=4,
        cross_attention_dim=24,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        use_additional_conditions=False,
    ).eval()
    return diffusers.PixArtAlphaPipeline(words(), t5(), vae(), denoiser, diffusers.DPMSolverMultistepScheduler())


@pipeline
def sana() -> Any:
    denoiser = diffusers.SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=32,
    ).eval()
    autoencoder = diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    ).eval()
    return diffusers.SanaPipeline(
        words(), gemma(8), autoencoder, denoiser, diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)
    )


@pipeline
def hunyuan_dit() -> Any:
    denoiser = diffusers.HunyuanDiT2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        in_channels=4,
        cross_attention_dim=32,
        cross_attention_dim_t5=32,
        pooled_projection_dim=16,
        hidden_size=24,
        activation_fn="gelu-approximate",
        text_len=77,
        text_len_t5=256,
    ).eval()
    config = transformers.BertConfig(
        vocab_size=190, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37
    )
    autoencoder = vae(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )
    return diffusers.HunyuanDiTPipeline(
        autoencoder,
        transformers.BertModel(config).eval(),
        words(length=77),
        denoiser,
        diffusers.DDPMScheduler(),
        None,
        None,
        False,
        t5(),
        words(length=256),
    )


@pipeline
def lumina2() -> Any:
    denoiser = diffusers.Lumina2Transformer2DModel(
        sample_size=4,
        patch_size=2,
        in_channels=4,
        hidden_size=8,
        num_layers=2,
        num_attention_heads=1,
        num_kv_heads=1,
        multiple_of=16,
        ffn_dim_multiplier=None,
        norm_eps=1e-5,
        scaling_factor=1.0,
        axes_dim_rope=[4, 2, 2],
        axes_lens=[128, 128, 128],
        cap_feat_dim=8,
    ).eval()
    return diffusers.Lumina2Pipeline(
        denoiser,
        diffusers.FlowMatchEulerDiscreteScheduler(),
        vae(shift_factor=0.06, scaling_factor=1.5),
        gemma(8),
        words(),
    )


@pipeline
def qwen_image() -> Any:
    denoiser = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=16,
        guidance_embeds=False,
        axes_dims_rope=(8, 4, 4),
    ).eval()
    autoencoder = diffusers.AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ).eval()
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 190,
            "rope_parameters": {"mrope_section": [1, 1, 2], "rope_type": "default", "rope_theta": 10000.0},
        },
        vision_config={"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16},
        image_token_id=180,
        video_token_id=181,
        vision_start_token_id=182,
        vision_end_token_id=183,
    )
    return diffusers.QwenImagePipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(),
        autoencoder,
        transformers.Qwen2_5_VLForConditionalGeneration(config).eval(),
        words(length=2048),
        denoiser,
    )
