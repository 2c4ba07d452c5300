"""A web page that reads digits in the browser, by onnxruntime-web: everything that it needs in one folder.

npm install onnxruntime-web
python examples/digits.py . && python examples/browser/build.py digits.onnx site
python -m http.server --directory site           # then open http://localhost:8000
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import fx2onnx.runner as ort

RUNTIME = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
HELP = "{} is not there. Get the runtime once: npm install onnxruntime-web, in this folder; no page loads it from elsewhere"


def main(model="digits.onnx", site="site", packages="node_modules"):
    runtime, site = Path(packages) / "onnxruntime-web" / "dist", Path(site)
    for name in RUNTIME:
        if not (runtime / name).exists():
            sys.exit(HELP.format(runtime / name))
    site.mkdir(exist_ok=True)
    for name in RUNTIME:
        shutil.copy(runtime / name, site)
    shutil.copy(Path(__file__).with_name("index.html"), site)
    shutil.copy(model, site / "digits.onnx")

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels[::5] / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # those that it was not trained on
    (logits,) = ort.InferenceSession(model).run(["logits"], {"image": images})
    samples = {"images": images.round(4).reshape(len(images), 64).tolist(), "labels": labels[::5].tolist()}
    (site / "samples.json").write_text(json.dumps(samples))
    print(f"{site}: {sum(file.stat().st_size for file in site.iterdir()) / 1e6:.0f} MB")
    print(f"the page should say {(logits.argmax(1) == labels[::5]).sum()} of {len(images)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
