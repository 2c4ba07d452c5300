"""A language model with its cache: one graph for the prompt and every later step, then generate without PyTorch.

python examples/language_model.py [FOLDER_OF_A_CHECKPOINT]     without one: a small Llama with random weights
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import fx2onnx

SMALL = LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
NEW_TOKENS = 8


def main(checkpoint=None, folder="language-model-onnx"):
    if checkpoint is None:
        torch.manual_seed(0)
        checkpoint = "small-llama"
        LlamaForCausalLM(SMALL).save_pretrained(checkpoint)
    done = fx2onnx.export_folder(f"hf:{checkpoint}", folder, task="text-generation-with-past")
    print(f"{folder}: {', '.join(done.reports)}")

    prompt = np.array([[0, 0, 5, 6, 7], [3, 9, 4, 1, 8]])  # the first is shorter: padded on the left
    mask = (prompt > 0).astype(np.int64)
    model = fx2onnx.load(folder)  # engine="onnxruntime" or "runner"; neither needs PyTorch
    tokens = model.generate(prompt, attention_mask=mask, max_new_tokens=NEW_TOKENS)
    print("generated:", tokens[:, prompt.shape[1] :].tolist())

    # The same by hand: logits and cache of the prompt, then one token with the cache of what was before.
    first = model(input_ids=prompt, attention_mask=mask)
    token = first.logits[:, -1:].argmax(-1)
    second = model(
        input_ids=token,
        attention_mask=np.concatenate([mask, np.ones_like(token)], 1),
        past_key_values=first.past_key_values,
    )
    print("by hand:  ", np.concatenate([token, second.logits[:, -1:].argmax(-1)], 1).tolist())

    eager = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    expected = eager.generate(
        torch.from_numpy(prompt), attention_mask=torch.from_numpy(mask), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    print("as transformers' own generate:", np.array_equal(tokens, expected.numpy()))


if __name__ == "__main__":
    main(*sys.argv[1:])
