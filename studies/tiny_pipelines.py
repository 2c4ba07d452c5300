"""Small diffusers pipelines with random weights, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

PIPELINES: dict[str, Callable[[], Any]] = {}


def pipeline(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register the pipeline that ``make`` builds; PyTorch's random numbers are seeded before."""

    def seeded() -> Any:
        torch.manual_seed(0)
        return make()

    PIPELINES[make.__name__] = seeded
    return seeded


def tokenizer(length: int = 16) -> CLIPTokenizer:
    """A tokenizer of single characters, with texts of ``length`` tokens."""
    characters = [chr(code) for code in range(33, 127)]
    words = [*characters, *(character + "</w>" for character in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=length)


def text_encoder(kind: Any = CLIPTextModel, width: int = 32) -> Any:
    config = CLIPTextConfig(
        vocab_size=190,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        max_position_embeddings=16,
        bos_token_id=188,
        eos_token_id=189,
        pad_token_id=189,
    )
    return kind(config).eval()


def unet(**more: Any) -> Any:
    settings = {
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "sample_size": 16,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 32,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**(settings | more)).eval()


def vae(**more: Any) -> Any:
    settings = {
        "block_out_channels": (8, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 4,
        "latent_channels": 4,
    }
    return diffusers.AutoencoderKL(**(settings | more)).eval()


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


def t5(kind: str = "T5") -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=190,
        d_model=32,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_heads=4,
        dense_act_fn="gelu_new",
        is_gated_act=True,
    )
    return getattr(transformers, f"{kind}EncoderModel")(config).eval()


def words(kind: Any = transformers.T5Tokenizer, length: int = 16) -> Any:
    """A tokenizer of words and single characters for the encoders of other classes than CLIP's."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = ["<pad>", "</s>", "<unk>", *(chr(code) for code in range(33, 127))]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=length
    )


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


def t5_wide() -> Any:
    config = transformers.T5Config(vocab_size=190, d_model=64, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config).eval()


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


def gemma(width: int) -> Any:
    config = transformers.Gemma2Config(
        vocab_size=190,
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=width // 2,
        attn_implementation="eager",
    )
    return transformers.Gemma2Model(config).eval()


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
def wan() -> Any:
    autoencoder = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()
    denoiser = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=256,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ).eval()
    return diffusers.WanPipeline(
        words(), t5("UMT5"), autoencoder, diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0), denoiser
    )


@pipeline
def cogvideox() -> Any:
    denoiser = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=32,
        num_layers=1,
        sample_width=2,
        sample_height=2,
        sample_frames=9,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=16,
        use_rotary_positional_embeddings=True,
    ).eval()
    autoencoder = diffusers.AutoencoderKLCogVideoX(
        in_channels=3,
        out_channels=3,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    ).eval()
    return diffusers.CogVideoXPipeline(words(), t5(), autoencoder, denoiser, diffusers.CogVideoXDDIMScheduler())


@pipeline
def ltx() -> Any:
    denoiser = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=32,
    ).eval()
    autoencoder = diffusers.AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    ).eval()
    return diffusers.LTXPipeline(diffusers.FlowMatchEulerDiscreteScheduler(), autoencoder, t5(), words(), denoiser)


@pipeline
def mochi() -> Any:
    denoiser = diffusers.MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=12,
        out_channels=None,
        qk_norm="rms_norm",
        text_embed_dim=32,
        time_embed_dim=4,
        activation_fn="swiglu",
        max_sequence_length=16,
    ).eval()
    autoencoder = diffusers.AutoencoderKLMochi(
        latent_channels=12,
        out_channels=3,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ).eval()
    return diffusers.MochiPipeline(diffusers.FlowMatchEulerDiscreteScheduler(), autoencoder, t5(), words(), denoiser)


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


_VIDEO = {"num_frames": 9, "height": 32, "width": 32}
CALLS: dict[str, dict[str, Any]] = {
    "latent_consistency": {"num_inference_steps": 2, "original_inference_steps": 20},
    "controlnet": {"image": torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))},
    "stable_diffusion_3": {"max_sequence_length": 16},
    "flux": {"max_sequence_length": 16},
    "pixart": {"use_resolution_binning": False, "max_sequence_length": 16},
    "sana": {
        "use_resolution_binning": False,
        "max_sequence_length": 16,
        "complex_human_instruction": None,
        "width": 64,
    },
    "hunyuan_dit": {"use_resolution_binning": False},
    "wan": _VIDEO | {"max_sequence_length": 16},
    "cogvideox": _VIDEO | {"max_sequence_length": 16},
    "ltx": _VIDEO | {"max_sequence_length": 16},
    "mochi": _VIDEO | {"num_frames": 7, "max_sequence_length": 16},
    "lumina2": {"max_sequence_length": 16},
    "kandinsky": {
        "prompt": None,
        "image_embeds": torch.randn(1, 32, generator=torch.Generator().manual_seed(1)),
        "negative_image_embeds": torch.randn(1, 32, generator=torch.Generator().manual_seed(2)),
    },
    "kandinsky_prior": {"height": None, "width": None},
    "audioldm": {"height": None, "width": None, "audio_length_in_s": 0.016},
}


def call(name: str) -> Callable[[Any], Any]:
    """A function that runs a pipeline of that name on a fixed seed and gives its images as an array."""
    settings = {
        "prompt": "a cat",
        "height": 32,
        "width": 48,
        "num_inference_steps": 2,
        "output_type": "np",
    } | CALLS.get(name, {})
    given = {key: value for key, value in settings.items() if value is not None or key.startswith("complex")}
    return lambda pipe: pipe(generator=torch.Generator().manual_seed(3), **given)[0]
