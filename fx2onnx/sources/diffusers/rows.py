"""The inputs of each class of component, by its config: a new class is a row.

An input is written as its dtype, if that is not the module's, and its sizes: numbers, or names of ``SIZES``, which are dynamic.
``number 3`` is a Python integer, 3 in the example, which becomes an int64 scalar of the graph.
Names with dots are members of dicts and tuples: ``added_cond_kwargs.time_ids``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fx2onnx.files.pipeline_index import Config, ConfigValue

SIZES = {
    "batch": 2,
    "height": 16,
    "width": 24,
    "frames": 3,
    "text_length": 9,
    "image_tokens": 24,
    "image_height": 64,
    "image_width": 96,
    "image_frames": 9,
    "spectrum_frames": 20,
    "samples": 9600,
    "code_frames": 12,
}
"""Dynamic sizes and their values in the example inputs. ``height``, ``width`` and ``frames`` are those of latents, in the pixels of
which ``image_height``, ``image_width`` and ``image_frames`` count.
"""
FORWARD, ENCODE, DECODE = "forward", "encode", "decode"
_IDS, _MASK = "int64 batch text_length", "int64 batch text_length"
_STATES = {"output_hidden_states": True}
_WITH_CACHE = ("Gemma2Model", "LlamaModel", "Qwen2_5_VLForConditionalGeneration")


@dataclass(frozen=True)
class ComponentMethod:
    """A method of a component, its inputs, and the arguments that are the same in every call."""

    method: str
    inputs: Mapping[str, str]
    constants: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ComponentFacts:
    """The config of a component, and those of all components of its pipeline by name."""

    config: Config
    configs: Mapping[str, Config]
    frames: int = 9
    """Frames of a video, where a class takes them in chunks by a loop of Python, so that their number is fixed."""

    def __getitem__(self, key: str) -> ConfigValue:
        return self.config.get(key)

    def of(self, component: str, key: str) -> int | None:
        return self.configs.get(component, {}).get(key)


Row: TypeAlias = Callable[[ComponentFacts], list[ComponentMethod]]
ROWS: dict[str, Row] = {}


def row(*class_names: str) -> Callable[[Row], Row]:
    """Register the inputs of these classes. A class has one row."""

    def register(make: Row) -> Row:
        for name in class_names:
            if name in ROWS:
                raise ValueError(f"{name} has the rows {ROWS[name].__name__} and {make.__name__}")
            ROWS[name] = make
        return make

    return register


def _denoiser(**inputs: str | None) -> list[ComponentMethod]:
    """A forward call; an input that is None is passed as None."""
    given = {name.replace("__", "."): sizes for name, sizes in inputs.items()}
    taken = {name: sizes for name, sizes in given.items() if sizes is not None}
    return [
        ComponentMethod(
            FORWARD, taken, {name: None for name, sizes in given.items() if sizes is None and "." not in name}
        )
    ]


@row("UNet2DConditionModel")
def unet_2d_condition(c: ComponentFacts) -> list[ComponentMethod]:
    inputs: dict[str, str | None] = {
        "sample": f"batch {c['in_channels']} height width",
        "timestep": "",
        "encoder_hidden_states": f"batch text_length {c['encoder_hid_dim'] or c['cross_attention_dim']}",
    }
    if c["class_embeddings_concat"] or c["encoder_hid_dim_type"] == "image_proj":
        inputs["encoder_hidden_states"] = None
    if c["class_embed_type"] in ("projection", "simple_projection"):
        inputs["class_labels"] = f"batch {c['projection_class_embeddings_input_dim']}"
    elif c["class_embed_type"] == "timestep":
        inputs["class_labels"] = "batch"
    elif c["num_class_embeds"]:
        inputs["class_labels"] = "int64 batch"
    if c["time_cond_proj_dim"]:
        inputs["timestep_cond"] = f"batch {c['time_cond_proj_dim']}"
    return _denoiser(**inputs, **_added(c), **_residuals(c))


def _added(c: ComponentFacts) -> dict[str, str]:
    """The members of ``added_cond_kwargs`` that the config asks for."""
    found, width = {}, c["projection_class_embeddings_input_dim"] or 0
    if c["addition_embed_type"] == "text_time":
        pooled = c.of("text_encoder_2", "projection_dim") or width - 6 * c["addition_time_embed_dim"]
        found["added_cond_kwargs__text_embeds"] = f"batch {pooled}"
        found["added_cond_kwargs__time_ids"] = f"batch {(width - pooled) // c['addition_time_embed_dim']}"
    if c["encoder_hid_dim_type"] == "image_proj":
        found["added_cond_kwargs__image_embeds"] = f"batch {c['encoder_hid_dim']}"
    if c["encoder_hid_dim_type"] == "text_image_proj" or c["addition_embed_type"] == "text_image":
        found["added_cond_kwargs__text_embeds"] = f"batch {c['cross_attention_dim']}"
        found["added_cond_kwargs__image_embeds"] = f"batch {c['cross_attention_dim']}"
    return found


def _residuals(c: ComponentFacts) -> dict[str, str]:
    """The features of a ControlNet, where the pipeline has one: a row for each of its blocks, sizes halved from block to block."""
    if "controlnet" not in c.configs:
        return {}
    channels, layers = c["block_out_channels"], c["layers_per_block"]
    sizes = [(channels[0], 1)]
    for place, width in enumerate(channels):
        sizes += [(width, 2**place)] * (layers if isinstance(layers, int) else layers[place])
        sizes += [(width, 2 ** (place + 1))] if place < len(channels) - 1 else []
    shapes = [f"batch {width} {_halved('height', by)} {_halved('width', by)}" for width, by in sizes]
    down = {f"down_block_additional_residuals__{place}": shape for place, shape in enumerate(shapes)}
    return down | {"mid_block_additional_residual": shapes[-1]}


def _halved(name: str, by: int) -> str:
    return name if by == 1 else f"({name}+{by - 1})//{by}"


@row("ControlNetModel")
def controlnet(c: ComponentFacts) -> list[ComponentMethod]:
    (denoiser,) = unet_2d_condition(ComponentFacts(c.config, {k: v for k, v in c.configs.items() if k != "controlnet"}))
    factor = 2 ** (len(c["conditioning_embedding_out_channels"]) - 1)
    image = f"batch {c['conditioning_channels']} {factor}*height {factor}*width"
    inputs = {**denoiser.inputs, "controlnet_cond": image, "conditioning_scale": ""}
    return [ComponentMethod(FORWARD, inputs, denoiser.constants)]


@row("SD3Transformer2DModel")
def sd3(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} height width",
        encoder_hidden_states=f"batch text_length {c['joint_attention_dim']}",
        pooled_projections=f"batch {c['pooled_projection_dim']}",
        timestep="batch",
    )


@row("FluxTransformer2DModel")
def flux(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch image_tokens {c['in_channels']}",
        encoder_hidden_states=f"batch text_length {c['joint_attention_dim']}",
        pooled_projections=f"batch {c['pooled_projection_dim']}",
        timestep="batch",
        img_ids="image_tokens 3",
        txt_ids="text_length 3",
        guidance="batch" if c["guidance_embeds"] else None,
    )


@row("PixArtTransformer2DModel")
def pixart(c: ComponentFacts) -> list[ComponentMethod]:
    sized = c["use_additional_conditions"] or (c["use_additional_conditions"] is None and c["sample_size"] == 128)
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} height width",
        encoder_hidden_states=f"batch text_length {c['caption_channels']}",
        timestep="batch",
        added_cond_kwargs__resolution="batch 2" if sized else None,
        added_cond_kwargs__aspect_ratio="batch 1" if sized else None,
        encoder_attention_mask=_MASK,
    )


@row("SanaTransformer2DModel")
def sana(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} height width",
        encoder_hidden_states=f"batch text_length {c['caption_channels']}",
        timestep="batch",
        guidance="batch" if c["guidance_embeds"] else None,
        encoder_attention_mask=_MASK,
    )


@row("HunyuanDiT2DModel")
def hunyuan_dit(c: ComponentFacts) -> list[ComponentMethod]:
    rotary = f"(height//{c['patch_size']})*(width//{c['patch_size']}) {c['attention_head_dim']}"
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} height width",
        timestep="batch",
        encoder_hidden_states=f"batch {c['text_len']} {c['cross_attention_dim']}",
        text_embedding_mask=f"int64 batch {c['text_len']}",
        encoder_hidden_states_t5=f"batch {c['text_len_t5']} {c['cross_attention_dim_t5']}",
        text_embedding_mask_t5=f"int64 batch {c['text_len_t5']}",
        image_meta_size="batch 6",
        style="int64 batch",
        image_rotary_emb__0=rotary,
        image_rotary_emb__1=rotary,
    )


@row("PriorTransformer")
def prior(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['embedding_dim']}",
        timestep="",
        proj_embedding=f"batch {c['embedding_proj_dim'] or c['embedding_dim']}",
        encoder_hidden_states=f"batch {c['num_embeddings']} {c['embedding_dim']}",
        attention_mask=f"bool batch {c['num_embeddings']}",
    )


@row("WanTransformer3DModel")
def wan(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} frames height width",
        timestep="batch",
        encoder_hidden_states=f"batch text_length {c['text_dim']}",
        encoder_hidden_states_image=f"batch image_tokens {c['image_dim']}" if c["image_dim"] else None,
    )


@row("CogVideoXTransformer3DModel")
def cogvideox(c: ComponentFacts) -> list[ComponentMethod]:
    is_rotary = c["use_rotary_positional_embeddings"]
    tokens = f"frames*(height//{c['patch_size']})*(width//{c['patch_size']})"
    text = "text_length" if is_rotary else c["max_text_seq_length"]
    rotary = f"{tokens} {c['attention_head_dim']}" if is_rotary else None
    return _denoiser(
        hidden_states=f"batch frames {c['in_channels']} height width",
        encoder_hidden_states=f"batch {text} {c['text_embed_dim']}",
        timestep="batch",
        image_rotary_emb__0=rotary,
        image_rotary_emb__1=rotary,
    )


@row("LTXVideoTransformer3DModel")
def ltx(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch image_tokens {c['in_channels']}",
        encoder_hidden_states=f"batch text_length {c['caption_channels']}",
        timestep="batch",
        encoder_attention_mask=_MASK,
        num_frames="number 2",
        height="number 3",
        width="number 4",
        rope_interpolation_scale__0="",
        rope_interpolation_scale__1="",
        rope_interpolation_scale__2="",
    )


@row("QwenImageTransformer2DModel")
def qwen_image(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch image_tokens {c['in_channels']}",
        encoder_hidden_states=f"batch text_length {c['joint_attention_dim']}",
        encoder_hidden_states_mask=_MASK,
        timestep="batch",
        guidance="batch" if c["guidance_embeds"] else None,
        img_shapes__0__0__0="number 1",
        img_shapes__0__0__1="number 4",
        img_shapes__0__0__2="number 6",
    )


@row("MochiTransformer3DModel")
def mochi(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} frames height width",
        encoder_hidden_states=f"batch text_length {c['text_embed_dim']}",
        timestep="batch",
        encoder_attention_mask="bool batch text_length",
    )


@row("Lumina2Transformer2DModel")
def lumina2(c: ComponentFacts) -> list[ComponentMethod]:
    return _denoiser(
        hidden_states=f"batch {c['in_channels']} height width",
        timestep="batch",
        encoder_hidden_states=f"batch text_length {c['cap_feat_dim']}",
        encoder_attention_mask=_MASK,
    )


@row("AutoencoderKL", "AutoencoderDC")
def image_autoencoder(c: ComponentFacts) -> list[ComponentMethod]:
    return [
        ComponentMethod(ENCODE, {"x": f"batch {c['in_channels'] or 3} image_height image_width"}),
        ComponentMethod(DECODE, {"z": f"batch {c['latent_channels']} height width"}),
    ]


@row("VQModel")
def quantized_autoencoder(c: ComponentFacts) -> list[ComponentMethod]:
    latents = f"batch {c['latent_channels']} height width"
    return [
        ComponentMethod(ENCODE, {"x": f"batch {c['in_channels']} image_height image_width"}),
        ComponentMethod(DECODE, {"h": latents}, {"force_not_quantize": True}),
    ]


@row("AutoencoderKLWan", "AutoencoderKLQwenImage", "AutoencoderKLCogVideoX", "AutoencoderKLMochi")
def chunked_autoencoder(c: ComponentFacts) -> list[ComponentMethod]:
    """Loops of Python take frames in chunks: their number is that of the video, and of QwenImage 1."""
    images = 1 if c["_class_name"] == "AutoencoderKLQwenImage" else c.frames
    factor = c["temporal_compression_ratio"] or math.prod(
        c["temporal_expansions"] or (2,) * sum(c["temperal_downsample"])
    )
    latents = int((images - 1) // factor) + 1
    images = int((latents - 1) * factor) + 1
    shape = f"{c['z_dim'] or c['latent_channels']} {latents} height width"
    if (
        c["_class_name"] == "AutoencoderKLMochi"
    ):  # chunks of all frames of a batch; its encoder's, of all pixels, have no loop
        return [ComponentMethod(DECODE, {"z": f"1 {shape}"})]
    return [
        ComponentMethod(ENCODE, {"x": f"batch {c['in_channels'] or 3} {images} image_height image_width"}),
        ComponentMethod(DECODE, {"z": f"batch {shape}"}),
    ]


@row("AutoencoderKLLTXVideo")
def video_autoencoder(c: ComponentFacts) -> list[ComponentMethod]:
    timed = {"temb": "batch"} if c["timestep_conditioning"] else {}
    return [
        ComponentMethod(ENCODE, {"x": f"batch {c['in_channels']} image_frames image_height image_width"}),
        ComponentMethod(DECODE, {"z": f"batch {c['latent_channels']} frames height width"} | timed),
    ]


@row(
    "CLIPTextModel",
    "CLIPTextModelWithProjection",
    "T5EncoderModel",
    "UMT5EncoderModel",
    "BertModel",
    "Gemma2Model",
    "LlamaModel",
    "MultilingualCLIP",
    "ClapTextModelWithProjection",
    "Qwen2_5_VLForConditionalGeneration",
)
def text_encoder(c: ComponentFacts) -> list[ComponentMethod]:
    has_states = "transformerDimensions" not in c.config  # MultilingualCLIP gives two tensors and no states
    caching = {"use_cache": False} if c["_class_name"] in _WITH_CACHE else {}
    return [
        ComponentMethod(FORWARD, {"input_ids": _IDS, "attention_mask": _MASK}, _STATES | caching if has_states else {})
    ]


@row("CLIPVisionModelWithProjection", "CLIPVisionModel")
def image_encoder(c: ComponentFacts) -> list[ComponentMethod]:
    size = f"batch {c['num_channels'] or 3} {c['image_size']} {c['image_size']}"
    return [ComponentMethod(FORWARD, {"pixel_values": size}, _STATES)]


@row("StableDiffusionSafetyChecker")
def safety_checker(c: ComponentFacts) -> list[ComponentMethod]:
    size = (c["vision_config"] or {}).get("image_size", 224)
    return [
        ComponentMethod(
            "forward_onnx", {"clip_input": f"batch 3 {size} {size}", "images": "batch 3 image_height image_width"}
        )
    ]


@row("SpeechT5HifiGan")
def vocoder(c: ComponentFacts) -> list[ComponentMethod]:
    return [ComponentMethod(FORWARD, {"spectrogram": f"batch spectrum_frames {c['model_in_dim']}"})]
