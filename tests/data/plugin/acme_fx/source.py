import torch

from acme_fx.layers import Clipped, Scaled
from fx2onnx import UserError
from fx2onnx.sources import Options, Source

_CLASSES = {"clipped": Clipped, "scaled": Scaled}


def names() -> list[str]:
    return list(_CLASSES)


def build(name: str, options: Options) -> Source:
    if name not in _CLASSES:
        raise UserError("E601", f"unknown acme model '{name}'", next=f"known: {', '.join(_CLASSES)}")
    torch.manual_seed(options.seed)
    sample = torch.randn(options.batch_or(), 4)
    module = _CLASSES[name](**options.keywords).eval()
    return Source(name, module, (sample,), dynamic_shapes={"x": {0: "batch"}}, origin="acme")
