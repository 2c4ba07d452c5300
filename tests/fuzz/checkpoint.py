"""A whole ``resolve("hf:FOLDER")`` of a config: what fx2onnx lets through, transformers builds."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

from tests.fuzz.config import written


def case(rng: random.Random, folder: Path) -> None:
    from fx2onnx.sources import resolve

    written(rng, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resolve(f"hf:{folder}", weights=rng.choice(["random", "random", "none", None]), batch=1, seq=4)
