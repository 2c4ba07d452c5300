"""Rows of packages for images: filters, classifiers, segmentation, metrics."""

from __future__ import annotations

import torch

from studies.third_party.spec import Row, apply, call, each, first, row

# fmt: off

_IMAGE = ("unit batch 3 height width",)
_GRAY = ("unit batch 1 height width",)
_PAIR = (*_IMAGE, *_IMAGE)
_FIXED = ("batch 3 64 64",)

KORNIA = [
    *each(
        "kornia",
        "kornia.filters",
        _IMAGE,
        gaussian_blur2d=((3, 5), (1.0, 1.5)),
        box_blur=((3, 3),),
        median_blur=((3, 3),),
        bilateral_blur=((3, 3), 0.1, (1.5, 1.5)),
        sobel=(),
        laplacian=(3,),
        canny=(),
        unsharp_mask=((3, 3), (1.0, 1.0)),
        spatial_gradient=(),
        motion_blur=(5, 90.0, 1.0),
        blur_pool2d=(3,),
        max_blur_pool2d=(3,),
        edge_aware_blur_pool2d=(3,),
    ),
    row("kornia", "guided_blur", apply("kornia.filters.guided_blur", 3, 0.1), *_PAIR),
    *each(
        "kornia",
        "kornia.geometry",
        _IMAGE,
        resize=((8, 9),),
        rescale=(1.5,),
        hflip=(),
        vflip=(),
        rot180=(),
        center_crop=((8, 8),),
        pyrdown=(),
        pyrup=(),
        build_pyramid=(2,),
        spatial_softmax2d=(),
        spatial_soft_argmax2d=(),
    ),
    row("kornia", "rotate", apply("kornia.geometry.rotate"), *_IMAGE, "batch"),
    row("kornia", "translate", apply("kornia.geometry.translate"), *_IMAGE, "batch 2"),
    row("kornia", "scale", apply("kornia.geometry.scale"), *_IMAGE, "unit batch 2"),
    row("kornia", "shear", apply("kornia.geometry.shear"), *_IMAGE, "unit batch 2"),
    row("kornia", "warp_affine", apply("kornia.geometry.warp_affine", (8, 9)), *_IMAGE, "unit batch 2 3"),
    row("kornia", "warp_perspective", apply("kornia.geometry.warp_perspective", (8, 9)), *_IMAGE, "unit batch 3 3"),
    row("kornia", "remap", apply("kornia.geometry.remap"), *_IMAGE, "unit batch 8 9", "unit batch 8 9"),
    row("kornia", "elastic_transform2d", apply("kornia.geometry.elastic_transform2d"), *_IMAGE, "batch 2 height width"),
    *each(
        "kornia",
        "kornia.color",
        _IMAGE,
        rgb_to_grayscale=(),
        rgb_to_hsv=(),
        hsv_to_rgb=(),
        rgb_to_lab=(),
        lab_to_rgb=(),
        rgb_to_yuv=(),
        rgb_to_ycbcr=(),
        rgb_to_luv=(),
        rgb_to_hls=(),
        hls_to_rgb=(),
        rgb_to_xyz=(),
        sepia=(),
        rgb_to_linear_rgb=(),
    ),
    *each(
        "kornia",
        "kornia.enhance",
        _IMAGE,
        adjust_brightness=(0.2,),
        adjust_contrast=(0.5,),
        adjust_saturation=(2.0,),
        adjust_hue=(0.3,),
        adjust_gamma=(2.0,),
        equalize=(),
        equalize_clahe=(),
        posterize=(4,),
        sharpness=(0.5,),
        solarize=(0.5,),
        invert=(),
        normalize_min_max=(),
    ),
    row("kornia", "jpeg_codec_differentiable", apply("kornia.enhance.jpeg_codec_differentiable"), *_IMAGE, "unit batch"),
    *each(
        "kornia",
        "kornia.morphology",
        _IMAGE,
        dilation=(torch.ones(3, 3),),
        erosion=(torch.ones(3, 3),),
        opening=(torch.ones(3, 3),),
        closing=(torch.ones(3, 3),),
        gradient=(torch.ones(3, 3),),
        top_hat=(torch.ones(3, 3),),
        bottom_hat=(torch.ones(3, 3),),
    ),
    *each("kornia", "kornia.feature", _GRAY, harris_response=(), gftt_response=(), hessian_response=(), dog_response_single=()),
    row("kornia", "ssim", apply("kornia.metrics.ssim", 5), *_PAIR),
    row("kornia", "psnr", apply("kornia.metrics.psnr", 1.0), *_PAIR),
    row("kornia", "total_variation", apply("kornia.losses.total_variation"), *_IMAGE),
    row("kornia", "distance_transform", apply("kornia.contrib.distance_transform", 3), *_GRAY),
    row("kornia", "connected_components", apply("kornia.contrib.connected_components", 10), *_GRAY),
    row("kornia", "extract_tensor_patches", apply("kornia.contrib.extract_tensor_patches", 4, 2), *_IMAGE),
    row("kornia", "HardNet", call("kornia.feature.HardNet", pretrained=False), "unit batch 1 32 32"),
    row("kornia", "SOSNet", call("kornia.feature.SOSNet", pretrained=False), "unit batch 1 32 32"),
    row("kornia", "TinyViT", call("kornia.models.tiny_vit.TinyViT", num_classes=5), "batch 3 224 224"),
]

_VIT = {"num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32}
_PATCHED = {"image_size": 64, "patch_size": 8, **_VIT}
_STAGES = {"num_classes": 5, "dim": (16, 16, 16, 16), "depth": (1, 1, 1, 1)}


def _vit(path: str, *inputs: str, **options: object) -> Row:
    module, _, name = path.rpartition(".")
    package = f"vit_pytorch.{module}" if module else "vit_pytorch"
    return row("vit_pytorch", path, call(f"{package}.{name}", **options), *(inputs or _FIXED))


VIT = [
    _vit("ViT", **_PATCHED),
    _vit("SimpleViT", **_PATCHED),
    _vit("deepvit.DeepViT", **_PATCHED),
    _vit("cait.CaiT", **{**_PATCHED, "cls_depth": 1}),
    _vit("t2t.T2TViT", image_size=64, **_VIT, t2t_layers=((7, 4), (3, 2))),
    _vit("cct.CCT", img_size=64, embedding_dim=32, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2.0, num_classes=5),
    _vit("pit.PiT", **{**_PATCHED, "depth": (1, 1)}),
    _vit("levit.LeViT", image_size=64, num_classes=5, stages=2, dim=(16, 32), depth=1, heads=(2, 2), mlp_mult=2),
    _vit("cvt.CvT", num_classes=5, s1_emb_dim=16, s2_emb_dim=16, s3_emb_dim=16, s3_depth=1),
    _vit("twins_svt.TwinsSVT", num_classes=5, s1_emb_dim=16, s2_emb_dim=16, s3_emb_dim=16, s4_emb_dim=16, s1_local_patch_size=2, s2_local_patch_size=2, s3_local_patch_size=2, s1_patch_size=2, s3_depth=1, s4_depth=1, s1_global_k=2, s2_global_k=2, s3_global_k=2),
    _vit("regionvit.RegionViT", "batch 3 256 256", **_STAGES, window_size=4),
    _vit("crossformer.CrossFormer", "batch 3 224 224", **{**_STAGES, "dim": (32, 32, 32, 32)}, global_window_size=(2, 2, 1, 1), local_window_size=2),
    _vit("max_vit.MaxViT", num_classes=5, dim_conv_stem=16, dim=16, dim_head=8, depth=(1, 1), window_size=4),
    _vit("nest.NesT", image_size=64, patch_size=4, dim=16, heads=2, num_hierarchies=2, block_repeats=(1, 1), num_classes=5),
    _vit("mobile_vit.MobileViT", image_size=(64, 64), dims=[16, 16, 16], channels=[8] * 10 + [16], num_classes=5),
    _vit("xcit.XCiT", image_size=64, patch_size=8, num_classes=5, dim=32, depth=1, cls_depth=1, heads=2, mlp_dim=32),
    _vit("rvt.RvT", **_PATCHED),
    _vit("parallel_vit.ViT", **_PATCHED, num_parallel_branches=2),
    _vit("simple_vit_with_register_tokens.SimpleViT", **_PATCHED),
    _vit("vit_with_patch_dropout.ViT", **_PATCHED),
    _vit("vit_with_patch_merger.ViT", **_PATCHED, patch_merge_layer=1, patch_merge_num_tokens=4),
    _vit("vit_for_small_dataset.ViT", **_PATCHED),
    _vit("local_vit.LocalViT", **_PATCHED),
    _vit("ats_vit.ViT", **_PATCHED, max_tokens_per_depth=(8, 6)),
    _vit("normalized_vit.nViT", **_PATCHED),
    _vit("simple_vit_with_qk_norm.SimpleViT", **_PATCHED),
    _vit("simple_vit_with_value_residual.SimpleViT", **_PATCHED),
    _vit("simple_flash_attn_vit.SimpleViT", **_PATCHED),
    _vit("vit_with_decorr.ViT", **_PATCHED),
    _vit("vivit.ViViT", "batch 3 8 32 32", image_size=32, frames=8, image_patch_size=8, frame_patch_size=2, num_classes=5, dim=32, spatial_depth=1, temporal_depth=1, heads=2, mlp_dim=32),
    _vit("simple_vit_3d.SimpleViT", "batch 3 8 32 32", image_size=32, frames=8, image_patch_size=8, frame_patch_size=2, **_VIT),
    _vit("vit_1d.ViT", "batch 3 64", seq_len=64, patch_size=8, **_VIT),
    _vit("simple_vit_1d.SimpleViT", "batch 3 64", seq_len=64, patch_size=8, **_VIT),
]

_SEGMENTATION = ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet", "Segformer")
SEGMENTATION = [
    row("segmentation_models_pytorch", name, call(f"segmentation_models_pytorch.{name}", encoder_name="resnet18", encoder_weights=None, classes=2), "batch 3 height width", **({"height": 128, "width": 96} if name == "PAN" else {}))
    for name in _SEGMENTATION
] + [
    row("segmentation_models_pytorch", f"Unet, {encoder}", call("segmentation_models_pytorch.Unet", encoder_name=encoder, encoder_weights=None, classes=2), "batch 3 height width")
    for encoder in ("mobilenet_v2", "efficientnet-b0", "densenet121", "vgg11", "mit_b0", "tu-convnext_atto")
]

_PLANE = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_MEDICAL = ("batch 1 height width",)


def _monai(name: str, *inputs: str, method: str = "forward", **options: object) -> Row:
    build = call(f"monai.networks.nets.{name}", **options, then=lambda network: first(network, method))
    return row("monai", name, build, *(inputs or _MEDICAL))


MONAI = [
    _monai("UNet", **_PLANE, channels=(4, 8, 16), strides=(2, 2)),
    _monai("AttentionUnet", **_PLANE, channels=(4, 8, 16), strides=(2, 2)),
    _monai("BasicUNet", **_PLANE, features=(4, 4, 8, 8, 8, 4)),
    _monai("BasicUNetPlusPlus", **_PLANE, features=(4, 4, 8, 8, 8, 4)),
    _monai("DynUNet", **_PLANE, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2]),
    _monai("SegResNet", spatial_dims=2, init_filters=8, in_channels=1, out_channels=2),
    _monai("SegResNetDS", spatial_dims=2, init_filters=8, in_channels=1, out_channels=2),
    _monai("VNet", **_PLANE, dropout_dim=2),
    _monai("UNETR", "batch 1 32 32", in_channels=1, out_channels=2, img_size=(32, 32), feature_size=4, hidden_size=16, mlp_dim=32, num_heads=2, spatial_dims=2),
    _monai("DenseNet", **_PLANE, init_features=8, growth_rate=4, block_config=(2, 2)),
    _monai("HighResNet", **_PLANE),
    _monai("SEResNet50", spatial_dims=2, in_channels=1, num_classes=2),
    _monai("EfficientNetBN", model_name="efficientnet-b0", spatial_dims=2, in_channels=1, num_classes=2, pretrained=False),
    _monai("ViT", "batch 1 32 32", in_channels=1, img_size=(32, 32), patch_size=(8, 8), hidden_size=32, mlp_dim=32, num_layers=2, num_heads=2, spatial_dims=2, classification=True),
    _monai("AutoEncoder", **_PLANE, channels=(4, 8), strides=(2, 2)),
    _monai("Regressor", "batch 1 16 16", in_shape=(1, 16, 16), out_shape=(2,), channels=(4, 8), strides=(2, 2)),
    _monai("FlexibleUNet", in_channels=1, out_channels=2, backbone="efficientnet-b0", pretrained=False, spatial_dims=2),
    _monai("MedNeXt", spatial_dims=2, init_filters=4, in_channels=1, out_channels=2),
    _monai("AutoencoderKL", spatial_dims=2, in_channels=1, out_channels=1, channels=(8, 8), num_res_blocks=(1, 1), attention_levels=(False, True), latent_channels=2, norm_num_groups=4, method="reconstruct"),
    _monai("ResNet", block="basic", layers=[1, 1, 1, 1], block_inplanes=[4, 8, 8, 8], spatial_dims=2, n_input_channels=1, num_classes=2),
    _monai("Discriminator", "batch 1 16 16", in_shape=(1, 16, 16), channels=(4, 8), strides=(2, 2)),
    _monai("SwinUNETR", "batch 1 64 64", in_channels=1, out_channels=2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
]

OTHERS = [
    row("lightly", "SimSiamProjectionHead", call("lightly.models.modules.heads.SimSiamProjectionHead", 16, 8, 4), "batch 16"),
    row("lightly", "BYOLProjectionHead", call("lightly.models.modules.heads.BYOLProjectionHead", 16, 8, 4), "batch 16"),
    row("lightly", "DINOProjectionHead", call("lightly.models.modules.heads.DINOProjectionHead", 16, 8, 4, 6), "batch 16"),
    row("lightly", "SwaVPrototypes", call("lightly.models.modules.heads.SwaVPrototypes", 16, 5), "batch 16"),
    row("lightly", "MSNProjectionHead", call("lightly.models.modules.heads.MSNProjectionHead", 16, 8, 4), "batch 16"),
    row("pytorch_metric_learning", "ArcFaceLoss logits", call("pytorch_metric_learning.losses.ArcFaceLoss", 5, 16, then=lambda loss: first(loss, "get_logits")), "batch 16"),
    row("efficientnet_pytorch", "EfficientNet b0", lambda: call("efficientnet_pytorch.EfficientNet.from_name", "efficientnet-b0")(), "batch 3 64 64"),
    row("open_clip", "VisionTransformer", call("open_clip.transformer.VisionTransformer", image_size=32, patch_size=8, width=32, layers=1, heads=2, mlp_ratio=2.0, output_dim=8), "batch 3 32 32"),
    row("open_clip", "TextTransformer", call("open_clip.transformer.TextTransformer", context_length=12, vocab_size=20, width=32, heads=2, layers=1, output_dim=8), "int20 batch 12"),
    row("open_clip", "ModifiedResNet", call("open_clip.modified_resnet.ModifiedResNet", layers=(1, 1, 1, 1), output_dim=16, heads=2, image_size=64, width=8), "batch 3 64 64"),
    row("segment_anything", "ImageEncoderViT", call("segment_anything.modeling.ImageEncoderViT", img_size=64, patch_size=8, embed_dim=32, depth=2, num_heads=2, out_chans=8, use_rel_pos=True, window_size=4, global_attn_indexes=(1,)), "batch 3 64 64"),
    row("torchmetrics", "ssim", apply("torchmetrics.functional.image.structural_similarity_index_measure", data_range=1.0), *_PAIR),
    row("torchmetrics", "psnr", apply("torchmetrics.functional.image.peak_signal_noise_ratio", data_range=1.0), *_PAIR),
    row("torchmetrics", "total_variation", apply("torchmetrics.functional.image.total_variation"), *_IMAGE),
    row("torchmetrics", "spectral_angle_mapper", apply("torchmetrics.functional.image.spectral_angle_mapper"), *_PAIR),
    row("torchmetrics", "image_gradients", apply("torchmetrics.functional.image.image_gradients", ), *_IMAGE),
    row("pytorch_msssim", "ssim", apply("pytorch_msssim.ssim", data_range=1.0), *_PAIR),
    row("piq", "ssim", apply("piq.ssim"), *_PAIR),
    row("piq", "gmsd", apply("piq.gmsd"), *_PAIR),
    row("piq", "fsim", apply("piq.fsim"), *_PAIR),
    row("piq", "vsi", apply("piq.vsi"), *_PAIR),
    row("piq", "haarpsi", apply("piq.haarpsi"), *_PAIR),
    row("piq", "mdsi", apply("piq.mdsi"), *_PAIR),
    row("piq", "total_variation", apply("piq.total_variation"), *_IMAGE),
    row("lpips", "LPIPS alex", call("lpips.LPIPS", net="alex", pretrained=False, pnet_rand=True, verbose=False), *_PAIR, height=48, width=64),
    row("pytorch_wavelets", "DWTForward", call("pytorch_wavelets.DWTForward", J=2, wave="db2", mode="symmetric", then=first), *_IMAGE),
    row("pytorch_wavelets", "DTCWTForward", call("pytorch_wavelets.DTCWTForward", J=2, then=first), *_IMAGE),
    row("pytorch_wavelets", "ScatLayer", call("pytorch_wavelets.ScatLayer"), *_IMAGE),
    row("bottleneck_transformer_pytorch", "BottleStack", call("bottleneck_transformer_pytorch.BottleStack", dim=16, fmap_size=16, dim_out=32, proj_factor=4, downsample=True, heads=2, dim_head=8, rel_pos_emb=True), "batch 16 16 16"),
    row("lambda_networks", "LambdaLayer", call("lambda_networks.LambdaLayer", dim=16, dim_out=16, r=3, dim_k=4, heads=2, dim_u=1), "batch 16 height width"),
    row("mlp_mixer_pytorch", "MLPMixer", call("mlp_mixer_pytorch.MLPMixer", image_size=32, channels=3, patch_size=8, dim=16, depth=1, num_classes=5), "batch 3 32 32"),
    row("g_mlp_pytorch", "gMLPVision", call("g_mlp_pytorch.gMLPVision", image_size=32, patch_size=8, num_classes=5, dim=16, depth=1), "batch 3 32 32"),
    row("res_mlp_pytorch", "ResMLP", call("res_mlp_pytorch.ResMLP", image_size=32, patch_size=8, dim=16, depth=1, num_classes=5), "batch 3 32 32"),
    row("video_diffusion_pytorch", "Unet3D", call("video_diffusion_pytorch.Unet3D", dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8), "batch 3 frames height width", "int10 batch", frames=7),
    row("timesformer_pytorch", "TimeSformer", call("timesformer_pytorch.TimeSformer", dim=32, image_size=32, patch_size=8, num_frames=4, num_classes=5, depth=1, heads=2, dim_head=16), "batch 4 3 32 32"),
    row("axial_attention", "AxialAttention", call("axial_attention.AxialAttention", dim=16, dim_index=1, heads=2, num_dimensions=2), "batch 16 height width"),
    row("denoising_diffusion_pytorch", "Unet", call("denoising_diffusion_pytorch.Unet", dim=8, dim_mults=(1, 2), channels=3, full_attn=(False, True)), "batch 3 height width", "int9 batch"),
    row("denoising_diffusion_pytorch", "Unet1D", call("denoising_diffusion_pytorch.Unet1D", dim=8, dim_mults=(1, 2), channels=3), "batch 3 width", "int9 batch"),
    row("ultralytics", "YOLOv8n detect", call("ultralytics.nn.tasks.DetectionModel", "yolov8n.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
    row("ultralytics", "YOLO11n detect", call("ultralytics.nn.tasks.DetectionModel", "yolo11n.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
    row("ultralytics", "YOLO11n segment", call("ultralytics.nn.tasks.SegmentationModel", "yolo11n-seg.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
    row("ultralytics", "YOLO11n pose", call("ultralytics.nn.tasks.PoseModel", "yolo11n-pose.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
    row("ultralytics", "YOLO11n oriented boxes", call("ultralytics.nn.tasks.OBBModel", "yolo11n-obb.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
    row("ultralytics", "YOLO11n classify", call("ultralytics.nn.tasks.ClassificationModel", "yolo11n-cls.yaml", verbose=False, then=first), "batch 3 height width", height=96, width=64),
]

ROWS = [*KORNIA, *VIT, *SEGMENTATION, *MONAI, *OTHERS]
