"""The result of a source (``Source``) and the options that it takes (``Options``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fx2onnx.base.options import INPUTS, option
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.files.safetensors import WeightFile

if TYPE_CHECKING:
    from torch import nn

    from fx2onnx.sizes.expr import Scalar

AxisName: TypeAlias = "str | Scalar"
"""The size of a dynamic axis: its name, or an expression of names."""
DynamicShapes: TypeAlias = Mapping[str, Mapping[int, AxisName]]

# A sample batch of 1 would be taken for a constant where a size of 1 broadcasts; 2 is the smallest honest one.
DEFAULT_BATCH = 2
DEFAULT_SEQ = 16

WEIGHT_WORDS = ("random", "reference", "none")
"""The values that ``weights`` may have beside a path."""


@public_methods
@dataclass(frozen=True)
class Options:
    """Sizes of the example inputs and the seed; None means "the source's own default".

    ``keywords`` are the ``?key=value`` pairs of the spec: builder arguments or config fields, by kind.
    """

    batch: int | None = option(None, "Batch size of the example inputs.", panel=INPUTS)
    seq: int | None = option(None, "Sequence length of the example inputs.", panel=INPUTS)
    image_size: int | None = option(None, "Height and width of example images.", panel=INPUTS)
    seed: int = option(0, "Seed of random numbers.", panel=INPUTS)
    keywords: Mapping[str, object] = field(default_factory=dict)
    weights: str | None = option(
        None,
        "random, none, reference (to those of hf:FOLDER) or a path of a state dict. Default: the source's own weights.",
        panel=INPUTS,
    )
    dtype: str | None = option(
        None,
        "Cast the module's parameters and floating-point inputs to float16, bfloat16, float32 or float64 first.",
        "--module-dtype",
        panel=INPUTS,
    )
    with_processor: bool = option(
        False,
        "Add the processor of an hf: folder.",
        panel=INPUTS,
    )
    nms: str | None = option(
        None,
        "Suppress overlapping boxes of a detector in the graph: default, or score=0.25,iou=0.7,max=300.",
        panel=INPUTS,
    )
    stand_ins: str | None = option(
        None,
        "Import PyTorch functions instead of the GPU kernels of these packages, such as flash_attn,mamba_ssm; or missing: of all that "
        "are not installed (docs/gpu_kernels.md).",
        panel=INPUTS,
    )

    def sizes(self) -> dict[str, int]:
        """The sizes that are asked for, by name."""
        asked = {"batch": self.batch, "seq": self.seq, "image_size": self.image_size}
        return {name: size for name, size in asked.items() if size is not None}

    def batch_or(self, default: int = DEFAULT_BATCH) -> int:
        return default if self.batch is None else self.batch

    def seq_or(self, default: int = DEFAULT_SEQ) -> int:
        return default if self.seq is None else self.seq

    def image_size_or(self, default: int) -> int:
        return default if self.image_size is None else self.image_size


@public_methods
@dataclass
class Source:
    """A module with everything needed to export it.

    ``name``            short, usable as a file name;
    ``module``          in eval mode;
    ``args, kwargs``    one sample call, ``module(*args, **kwargs)``;
    ``dynamic_shapes``  by argument name ``{axis: dim name}``, None where every size is fixed;
    ``output_names``    names in order, empty to leave them to the exporter;
    ``origin``          one line on where module and weights come from;
    ``weight_files``    mapped files to which the exported model should refer for its weights;
    ``has_weights``     False where the module is an outline without numbers;
    ``bake``            names of inputs whose values decide shapes and become constants of the file;
    ``metadata``        entries of the file's metadata, which its package reads;
    ``modes``           whether each part was in training mode when a factory returned the module, which training keeps;
    ``program``         the torch.export.ExportedProgram that ``module`` is of, which has its dynamic sizes;
    ``data_branches``   what becomes of Python data-dependent decisions (``fx2onnx.export``).
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: DynamicShapes | None = None
    output_names: tuple[str, ...] = ()
    origin: str = ""
    weight_files: Sequence[WeightFile] = ()
    has_weights: bool = True
    bake: tuple[str, ...] = ()
    data_branches: str = "if"
    metadata: Mapping[str, str] = field(default_factory=dict)
    program: Any = None
    modes: Mapping[nn.Module, bool] = field(default_factory=dict)

    @classmethod
    def of_part(
        cls,
        name: str,
        module: nn.Module,
        kwargs: dict[str, Any],
        dynamic_shapes: DynamicShapes | None = None,
        bake: tuple[str, ...] = (),
    ) -> Source:
        """One of several graphs of a model. A data-dependent decision is refused: another form of the model may do
        without."""
        return cls(name, module, (), kwargs, dynamic_shapes, bake=bake, data_branches="error")
