"""A vision-language model: image encoder, embedding and decoder as files, then text from prompts with images.

python examples/vision_language.py [FOLDER_OF_A_CHECKPOINT]     without one: a small Llava with random weights
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, CLIPVisionConfig, LlamaConfig, LlavaConfig
from transformers import LlavaForConditionalGeneration as Llava

import fx2onnx

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}
SIGHT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE = 59  # the token in whose places the features of an image stand


def small():
    text = LlamaConfig(**TEXT, eos_token_id=None, pad_token_id=0)
    vision = CLIPVisionConfig(**SIGHT, image_size=16, patch_size=8)
    return Llava(LlavaConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, vision_feature_layer=-1))


def main(checkpoint=None, folder="vision-language-onnx"):
    if checkpoint is None:
        torch.manual_seed(0)
        checkpoint = "small-llava"
        small().save_pretrained(checkpoint)
    done = fx2onnx.export_folder(f"hf:{checkpoint}", folder, task="image-text-to-text-with-past")
    print(f"{folder}: {', '.join(done.reports)}")

    eager = AutoModelForImageTextToText.from_pretrained(checkpoint).eval()
    vision, token = eager.config.vision_config, eager.config.image_token_id
    places = (vision.image_size // vision.patch_size) ** 2
    ids = np.array([[5, *[token] * places, 7, 8], [3, *[token] * places, 9, 9]])
    images = np.random.default_rng(0).standard_normal((2, 3, vision.image_size, vision.image_size), dtype=np.float32)
    mask = np.ones_like(ids)

    model = fx2onnx.load(folder)
    tokens = model.generate(ids, attention_mask=mask, pixel_values=images, max_new_tokens=6)
    print("two images:", tokens[:, ids.shape[1] :].tolist())
    others = model.generate(ids, attention_mask=mask, pixel_values=images[::-1], max_new_tokens=6)
    print("the images exchanged:", others[:, ids.shape[1] :].tolist())

    tensors = {"input_ids": ids, "attention_mask": mask, "pixel_values": images}
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    expected = eager.generate(**tensors, max_new_tokens=6, do_sample=False)
    expected = expected.numpy()[:, -6:]
    print("as transformers' own generate:", np.array_equal(tokens[:, -6:], expected))


if __name__ == "__main__":
    main(*sys.argv[1:])
