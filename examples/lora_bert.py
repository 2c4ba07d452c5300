"""Fine-tune a small BERT with LoRA in onnxruntime: python lora_bert.py export FOLDER (PyTorch), then train FOLDER (without)."""

import sys

import numpy as np

from fx2onnx.runner import Trainer

ROWS, LENGTH, WORDS = 32, 16, 100


def sentences(generator):
    """Numbers of words; the label says whether most of them are of the second half of the vocabulary."""
    share = generator.choice([0.1, 0.9], (ROWS, 1))
    ids = generator.integers(1, WORDS // 2, (ROWS, LENGTH)) + WORDS // 2 * (generator.random((ROWS, LENGTH)) < share)
    return {"input_ids": ids, "labels": (share[:, 0] > 0.5).astype(np.int64)}


def export(folder):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    import fx2onnx

    class LoRA(torch.nn.Module):
        def __init__(self, base, rank=4):
            super().__init__()
            self.base, self.down = base, torch.nn.Linear(base.in_features, rank, bias=False)
            self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank))

        def forward(self, x):
            return self.base(x) + self.down(x) @ self.up.T

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, **sizes))
    for attention in [layer.attention.self for layer in model.bert.requires_grad_(False).encoder.layer]:
        attention.query, attention.value = LoRA(attention.query), LoRA(attention.value)
    batch = {name: torch.from_numpy(array) for name, array in sentences(np.random.default_rng(0)).items()}
    fx2onnx.export_training(
        model, (), folder, kwargs={"input_ids": batch["input_ids"]}, targets={"labels": batch["labels"]},
        loss=lambda outputs, labels: torch.nn.functional.cross_entropy(outputs.logits, labels),
        metrics={"accuracy": lambda outputs, labels: (outputs.logits.argmax(1) == labels).float().mean()},
        optimizer=torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=5e-3),
        dynamic_shapes={"input_ids": {0: "batch"}, "labels": {0: "batch"}},
    )  # fmt: skip


def train(folder):
    import onnxruntime

    trainer, generator = Trainer(folder, onnxruntime.InferenceSession), np.random.default_rng(1)
    for _ in range(200):
        trainer.step(sentences(generator))
    print(f"accuracy {trainer.evaluate(sentences(generator))['accuracy']:.2f}")
    trainer.save(f"{folder}/adapters.safetensors")  # LoRA and the classifier alone
    trainer.save_model(f"{folder}/tuned")


if __name__ == "__main__":
    {"export": export, "train": train}[sys.argv[1]](sys.argv[2])
