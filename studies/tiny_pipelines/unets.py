"""Small pipelines whose denoiser is a U-Net: Stable Diffusion, Kandinsky and AudioLDM."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
import transformers
from transformers import CLIPTextModelWithProjection

from studies.tiny_pipelines.parts import pipeline, text_encoder, tokenizer, unet, vae, words


@pipeline
def stable_diffusion() -> Any:
    scheduler = diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False)
    return diffusers.StableDiffusionPipeline(
        vae(), text_encoder(), tokenizer(), unet(), scheduler, None, None, requires_safety_checker=False
    )


@pipeline
def stable_diffusion_xl() -> Any:
    denoiser = unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=32 + 6 * 8,
        cross_attention_dim=64,
        use_linear_projection=True,
    )
    return diffusers.StableDiffusionXLPipeline(
        vae(),
        text_encoder(),
        text_encoder(CLIPTextModelWithProjection),
        tokenizer(),
        tokenizer(),
        denoiser,
        diffusers.EulerDiscreteScheduler(timestep_spacing="leading"),
    )


@pipeline
def latent_consistency() -> Any:
    return diffusers.LatentConsistencyModelPipeline(
        vae(),
        text_encoder(),
        tokenizer(),
        unet(time_cond_proj_dim=32),
        diffusers.LCMScheduler(),
        None,
        None,
        None,
        False,
    )


@pipeline
def controlnet() -> Any:
    control = diffusers.ControlNetModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=4,
        conditioning_embedding_out_channels=(8, 16),
    ).eval()
    for part in control.modules():  # the convolutions that end a ControlNet begin as zeros
        for parameter in part.parameters(recurse=False):
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return diffusers.StableDiffusionControlNetPipeline(
        vae(), text_encoder(), tokenizer(), unet(), control, diffusers.DDIMScheduler(), None, None, None, False
    )


@pipeline
def kandinsky() -> Any:
    movq = diffusers.VQModel(
        block_out_channels=[32, 64],
        down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
        up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        norm_type="spatial",
        num_vq_embeddings=12,
        vq_embed_dim=4,
    ).eval()
    denoiser = unet(
        out_channels=8,
        addition_embed_type="image",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        encoder_hid_dim=32,
        encoder_hid_dim_type="image_proj",
        resnet_time_scale_shift="scale_shift",
    )
    return diffusers.KandinskyV22Pipeline(denoiser, diffusers.DDIMScheduler(clip_sample=False), movq)


@pipeline
def kandinsky_prior() -> Any:
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        image_size=32,
        projection_dim=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        patch_size=8,
    )
    prior = diffusers.PriorTransformer(
        num_attention_heads=2,
        attention_head_dim=12,
        embedding_dim=32,
        num_layers=1,
        num_embeddings=16,
        additional_embeddings=4,
    ).eval()
    torch.nn.init.ones_(prior.clip_std)
    return diffusers.KandinskyV22PriorPipeline(
        prior,
        transformers.CLIPVisionModelWithProjection(config).eval(),
        text_encoder(CLIPTextModelWithProjection),
        tokenizer(),
        diffusers.UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample=True, clip_sample_range=5.0
        ),
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    )


@pipeline
def audioldm() -> Any:
    denoiser = unet(
        in_channels=8,
        out_channels=8,
        cross_attention_dim=(16, 32),
        class_embed_type="simple_projection",
        projection_class_embeddings_input_dim=16,
        class_embeddings_concat=True,
    )
    text = transformers.ClapTextConfig(
        vocab_size=190,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=16,
        max_position_embeddings=40,
    )
    voice = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8,
        sampling_rate=16000,
        upsample_initial_channel=16,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3, 7],
        resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]],
        normalize_before=False,
    )
    return diffusers.AudioLDMPipeline(
        vae(in_channels=1, out_channels=1, latent_channels=8),
        transformers.ClapTextModelWithProjection(text).eval(),
        words(),
        denoiser,
        diffusers.DDIMScheduler(clip_sample=False),
        transformers.SpeechT5HifiGan(voice).eval(),
    )
