"""Sample inputs that lie on another device than the module."""

from __future__ import annotations

from itertools import chain

import torch

from fx2onnx.torchcompat.pytrees import flatten


def beside_weights(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with their tensors copied to the module's device, where it has one and none of them lies there.

    Some that lie elsewhere are meant to, such as lengths that PyTorch wants on the CPU.
    """
    homes = {tensor.device for tensor in chain(module.parameters(), module.buffers())}
    leaves, rebuild = flatten((args, kwargs))
    tensors = {id(leaf.value): leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
    places = {tensor.device for tensor in tensors.values()}
    if len(homes) != 1 or not places or homes & places or _META in {device.type for device in homes | places}:
        return args, kwargs
    (home,) = homes
    moved = {key: tensor.to(home) for key, tensor in tensors.items()}
    found, named = rebuild([moved.get(id(leaf.value), leaf.value) for leaf in leaves])
    return tuple(found), named


_META = "meta"
