"""BERT with dynamic shapes: one file for every batch and every length, padding included.

python examples/bert_dynamic.py [FOLDER_OF_A_CHECKPOINT]     without one: a small BERT with random weights
"""

import sys

import numpy as np
import onnxruntime
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

import fx2onnx

SMALL = BertConfig(vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)


def main(checkpoint=None, path="bert.onnx"):
    torch.manual_seed(0)
    model = (AutoModelForMaskedLM.from_pretrained(checkpoint) if checkpoint else BertForMaskedLM(SMALL)).eval()
    ids = torch.randint(1, model.config.vocab_size, (2, 8))
    mask = torch.ones_like(ids)
    sizes = {0: "batch", 1: "sequence"}
    result = fx2onnx.export(
        model,
        (),
        path,
        kwargs={"input_ids": ids, "attention_mask": mask},
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        verify=True,  # at other sizes than the example's, too
    )
    for line in result.report.assumptions:
        print("the file takes for true:", line)

    session = onnxruntime.InferenceSession(path)
    for batch, length in ((1, 1), (3, 17), (5, 64)):
        ids = torch.randint(1, model.config.vocab_size, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, length // 2 + 1 :] = 0  # the first text is half as long as the others
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).logits.numpy()
        (logits,) = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        print(f"{batch} x {length}: largest difference to PyTorch {np.abs(logits - expected).max():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
