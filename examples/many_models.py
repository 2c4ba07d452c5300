"""A folder of models: every source on the command line becomes a verified file, and a table says how it went.

python examples/many_models.py OUT SOURCE...     such as: models timm:resnet10t hf:./my-bert torchvision:resnet18
Hundreds of models, in processes of their own, going on where a run stopped: fx2onnx export-many 'timm:*' -o OUT --jobs 4
"""

import sys
from pathlib import Path

import fx2onnx
from fx2onnx.sources import resolve

DEFAULT = ("zoo:bert_tiny", "zoo:mnist_cnn_same", "zoo:lstm_tagger")


def main(folder="models", *sources):
    Path(folder).mkdir(exist_ok=True)
    failed = 0
    print(f"{'model':<28} {'file':>9} {'nodes':>6} {'export':>8}  outcome")
    for name in sources or DEFAULT:
        path = Path(folder) / f"{name.replace(':', '-').replace('/', '-')}.onnx"
        try:
            source = resolve(name)  # a module, sample inputs, and which sizes are dynamic
            result = fx2onnx.export(
                source.module,
                source.args,
                path,
                kwargs=source.kwargs,
                dynamic_shapes=source.dynamic_shapes,
                output_names=source.output_names,
                verify=True,
            )
        except fx2onnx.Fx2OnnxError as error:  # one clear error a model; the others go on
            failed += 1
            print(f"{name:<28} {'-':>9} {'-':>6} {'-':>8}  [{error.code}] {error.what}")
            continue
        report = result.report
        seconds = report.seconds - report.phases.get("verify", 0.0)
        print(f"{name:<28} {report.file_bytes / 1e3:>6.0f} kB {report.nodes_onnx:>6} {seconds:>6.2f} s  verified")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
