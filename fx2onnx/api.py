"""The public functions: their signatures, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, BinaryIO

from fx2onnx.base.packages import require
from fx2onnx.base.stack_frames import public
from fx2onnx.exporting import pipeline
from fx2onnx.exporting.options import ExportOptions, FolderOptions, refuse_unknown
from fx2onnx.exporting.result import ExportedFolder, ExportResult, TrainingFolder
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.judge import Effort
from fx2onnx.precision.options import Precision, precision_or_dtype
from fx2onnx.quantize.options import Quantize
from fx2onnx.training.options import Training


@public
def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | BinaryIO | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    export_params: bool = True,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    target: str | None = None,
    fused: bool | None = None,
    dynamo: bool = True,
    external_data: bool | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    samples: Sequence[Any] | None = None,
    verify: bool = False,
    effort: Effort = "normal",
    training: Any = None,
    capture: str = "auto",
    metadata: str | Mapping[str, Any] | Sequence[Any] = "light",
    state: str = "warn",
    bake: Sequence[str] | str = (),
    data_branches: str = "if",
    checks: bool = True,
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None,
    optimize: bool = True,
    keep_initializers_as_inputs: bool = False,
    durable: bool = False,
    weight_files: Sequence[WeightFile] = (),
    quantize: Quantize | str | None = None,
    dtype: str | Precision | None = None,
    io: str | None = None,
    functions: bool | Sequence[type | str] = False,
    report: bool | str | os.PathLike[str] = False,
    profile: bool | str | os.PathLike[str] = False,
    attest: bool = False,
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None,
    custom_opsets: Mapping[str, int] | None = None,
    **ignored: Any,
) -> ExportResult:
    """Export ``model(*args, **kwargs)`` to ONNX and write it to ``f``. Nothing of the model is computed.

    Keywords are those of ``torch.onnx.export``, so changing the import is enough.

    model: an ``nn.Module``, a function, or a ``torch.export.ExportedProgram``.
    args: example arguments: a tensor, a tuple, or a dict of keywords. Only dtypes and shapes matter.
    f: path of the file, an open binary file such as ``io.BytesIO`` (below 2 GB, weights inside), or None to write nothing.
    input_names, output_names: names in order; default: forward's parameter names, and the keys of what it returns.
    opset_version: 11 to 26; the file has exactly that opset (default 20).
    target: the runtime, such as ``"onnxruntime-1.19"`` (docs/targets.md); default: onnxruntime on a CPU,
        as far as it takes the opset; ``"onnx"``: none.
    fused: attention, norms and activations as onnxruntime's own operators (``com.microsoft``); opset 23 unless another is asked for.
    dynamic_shapes: as ``torch.export`` takes it (dicts, tuples, ``ShapesCollection``, ``AdditionalInputs``, ``ShapesSpec``), names
        instead of Dims allowed, or ``"auto"``.
    dynamic_axes: as the older exporter took it: ``{"x": {0: "batch"}}``.
    samples: further calls, each as ``args`` or ``(args, kwargs)``: a size that differs among the calls is dynamic. Without ``args``
        the call with the most tensors stands for them.
    external_data: force (True) or forbid (False) weights in a file of their own, ``f.<digest>.data``; default: above 16 MiB.
    verify: run the result in the runner and in onnxruntime and compare with eager PyTorch. Off by default; the command line does
        it.
    effort: how many inputs are compared: ``"quick"``, ``"normal"`` or ``"full"``.
    report: a path: write ``result.report``, which is always there, as JSON.
    profile: record what the export costs, as ``result.profile``; a path (.html, .json, .trace.json, .speedscope.json,
        .txt) writes it as well.
    attest: write ``f.intoto.json``, an in-toto statement with the digests of the files and of the weights, the options, what was
        compared and the verdict (docs/attestation.md).
    training: True or ``torch.onnx.TrainingMode.TRAINING``: in training mode; ``PRESERVE``: in the mode that the module is in. With
        ``fx2onnx.Training(loss=...)`` the file trains: loss and gradients, with an optimizer its whole step (docs/training.md).
    capture: ``"auto"``, ``"symbolic"``, ``"fake"`` or ``"export"``.
    metadata: origin of each node in the file: ``"none"``, ``"light"`` (file:line) or ``"full"``; a dict: own entries
        for the file's metadata, such as ``{"author": "me", "labels": ["cat", "dog"]}``; a list: both.
    state: buffers or inputs that forward changes: ``"warn"`` in the report, ``"error"``, ``"drop"``, or ``"io"``: the file
        takes each buffer as an input and gives its new value as an output ``NAME.next``.
    bake: names of inputs whose example values become constants of the file; ``"auto"``: those whose numbers Python needs, with
        a warning for each.
    data_branches: ``"if"``: both branches of a data-dependent Python branch are in the file; ``"error"``: it is E104.
    checks: add nodes that fail where data-dependent sizes break a condition, as eager PyTorch raises (docs/capture.md).
    custom_translations: ``{torch.ops.my.op.default: function}`` for this call; ``{MyModule: function}`` for modules of a
        class: ``function(op, module, *inputs, weights={name: value})`` emits the nodes of each call.
    custom_translation_table: onnxscript functions by overload, as torch.onnx.export takes them.
    custom_opsets: versions of other operator sets than ONNX's, by domain.
    optimize: run the graph rewrites.
    keep_initializers_as_inputs: weights are also inputs, which a run may feed otherwise.
    durable: return only when the disk has the bytes.
    weight_files: mapped checkpoint files (``fx2onnx.sources.weight_files``) that the model refers to for the weights
        that lie in them, instead of copying them (docs/weights.md).
    quantize: ``fx2onnx.Quantize("int8")``, or ``"int8"``: low-bit weights of matrix products and convolutions (docs/quantization.md).
    dtype: ``"float16"``, ``"bfloat16"`` or ``"mixed"``: 16-bit weights and compute, except where a measurement on the example
        inputs needs float32 (docs/precision.md); or an ``fx2onnx.Precision``.
    io: ``"float32"``: inputs and outputs keep their dtypes.
    functions: modules as ONNX functions, one body for all calls that are equal: True, or classes or their names (docs/functions.md);
        also as ``export_modules_as_functions``.

    Returns: ``ExportResult``. Raises: ``UserError`` with a code, the line and what to do; ``VerificationError``.
    """
    options = ExportOptions.of(
        capture=capture,
        training=False if isinstance(training, Training) else training,
        input_names=input_names,
        output_names=output_names,
        dynamic_shapes=dynamic_shapes,
        dynamic_axes=dynamic_axes,
        samples=() if samples is None else samples,
        bake=bake,
        data_branches=data_branches,
        checks=checks,
        opset_version=opset_version,
        target=target,
        fused=fused,
        metadata=metadata,
        state=state,
        custom_translations=custom_translations,
        custom_translation_table=custom_translation_table,
        custom_opsets=custom_opsets,
        optimize=optimize,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
        export_params=export_params,
        weight_files=weight_files,
        quantize=quantize,
        precision=Precision.of(dtype, io),
        functions=functions,
        external_data=external_data,
        durable=durable,
        verify=verify,
        effort=effort,
        profile=profile,
        report=report,
        attest=attest,
        verbose=verbose,
        **ignored,
    )
    if isinstance(training, Training):
        from fx2onnx.exporting.training import export_one

        return export_one(model, args, kwargs, f, training, options)
    return pipeline.run(model, args, kwargs, f, options)


@public
def export_training(
    model: Any,
    args: Any,
    folder: str | os.PathLike[str],
    *,
    loss: Callable[..., Any],
    targets: Any = (),
    optimizer: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
    metadata: str = "light",
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None,
    verify: bool = False,
    **training: Any,
) -> TrainingFolder:
    """Export the training of ``model`` into ``folder``: files of standard operators that any runtime can train.

    loss: a module or function of ``(outputs, *targets)`` that gives a scalar.
    targets: sample tensors for it: a tensor, a tuple, or a dict by name.
    optimizer: an instance of ``torch.optim`` (SGD, Adam, AdamW, RMSprop, Adagrad, Adafactor) or an ``fx2onnx.UpdateRule``;
        None for gradients alone.
    dynamic_shapes: as ``export`` takes it, for inputs and targets.
    verify: compare every file with eager PyTorch in the runner and in onnxruntime, and write none where one is wrong.
    training: further fields of ``fx2onnx.Training``: ``inputs``, ``metrics``, ``dropout``, ``clip_value``, ``clip_norm``,
        ``frozen``, ``held``, ``returns_outputs``, ``loss_scale``.

    Returns: ``TrainingFolder``. Raises: ``UserError``, then nothing is left in ``folder``.
    """
    require("torch")
    from fx2onnx.exporting.training import write_training

    refuse_unknown("export_training", training, [field.name for field in fields(Training)])
    asked = Training(loss=loss, targets=targets, optimizer=optimizer, **training)
    options = ExportOptions.of(
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
        metadata=metadata,
        custom_translations=custom_translations,
        verify=verify,
    )
    return write_training(model, args, folder, kwargs, asked, options)


@public
def export_folder(
    spec: str,
    output: str | os.PathLike[str],
    *,
    task: str = "text-generation-with-past",
    cache: str = "dynamic",
    kv: str | None = None,
    kv_calibration: Any = None,
    drafter: str | None = None,
    logits: str = "all",
    opset_version: int | None = None,
    target: str | None = None,
    fused: bool | None = None,
    quantize: Quantize | str | None = None,
    verify: bool = False,
    engines: Sequence[str] | None = None,
    dtype: str | Precision | None = None,
    io: str | None = None,
    functions: bool | Sequence[type | str] = False,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    package: bool = False,
    layout: str = "plain",
    **options: Any,
) -> ExportedFolder:
    """Export ``spec`` (``hf:FOLDER`` or ``hf:MODEL_TYPE``) into the folder ``output``.

    task: ``text-generation``, ``text2text-generation``, ``automatic-speech-recognition``, ``image-text-to-text``, each
        with ``-with-past`` for caches as inputs and outputs.
    cache: ``dynamic``; ``static``: of a fixed size that the caller chooses, written in place (opset 24 by default); ``paged``: of
        pages that rows may share (docs/generation_models.md).
    kv: ``int8`` or ``fp8``: keys and values of the cache in 8 bits, with a scale for each token and head; ``int8:head``,
        ``int8:channel``, ``fp8:head``, ``fp8:channel``: with constant scales (docs/generation_models.md).
    kv_calibration: an ``.npz`` file or a dict with the array ``input_ids`` of prompts for these; default: random tokens.
    drafter: ``mtp``: the model's own head that drafts tokens is one more file; or the folder of an EAGLE-3 drafter (docs/generation.md).
    logits: ``all``, or ``last``: of the last position alone, as generation needs them (docs/generation.md).
    target: the runtime that the folder is for; ``onnxruntime-genai``: a decoder with its ``genai_config.json``.
    fused: whether the graphs have onnxruntime's own operators; default: for ``onnxruntime-genai`` alone (docs/targets.md).
    quantize: ``fx2onnx.Quantize("int4")``, or ``"int4"``: low-bit weights of matrix products and convolutions (docs/quantization.md).
    verify: compare every file with eager PyTorch, in ``engines`` or all that are installed.
    dtype: ``float16``, ``bfloat16`` or ``mixed``: weights and compute in 16 bits (docs/precision.md); ``float32`` or ``float64``: the
        module's. io: ``float32``: inputs, caches and outputs as they are.
    functions: modules that become ONNX functions: True, or a list of classes or their names (docs/functions.md).
    adapters: folders of LoRA adapters of PEFT by name, which ``generate(adapter=NAME)`` switches to (docs/generation.md).
    package: write ``manifest.json``, with which onnxruntime 1.32 opens the folder as a model package (docs/targets.md).
    layout: ``plain``; ``transformers.js``: one graph under its name there, such as ``onnx/model_q4.onnx``; or ``onnx-genai``: with
        ``inference_metadata.json`` (docs/targets.md).
    options: as ``fx2onnx.sources.resolve`` takes them (``batch``, ``seq``, ``seed``, ``weights``, ...).

    Returns: ``ExportedFolder``. Raises: ``UserError``, then nothing is left in ``output``; ``VerificationError``.
    """
    require("torch")
    from fx2onnx.exporting.folder import write_folder
    from fx2onnx.sources import resolve

    known = signature(resolve).parameters.keys() | signature(export_folder).parameters.keys()
    refuse_unknown("export_folder", options, known - {"options"})
    precision, of_source = precision_or_dtype(dtype, io)
    exported = ExportOptions.of(
        opset_version=opset_version,
        target=target,
        fused=fused,
        quantize=quantize,
        verify=verify,
        precision=precision,
        functions=functions,
    )
    asked = FolderOptions(
        task,
        cache,
        kv,
        kv_calibration,
        drafter,
        logits,
        adapters or {},
        package,
        layout,
        exported,
        engines,
        {**options, "dtype": of_source},
    )
    return write_folder(spec, output, asked)
