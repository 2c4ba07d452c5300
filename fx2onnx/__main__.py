"""``python -m fx2onnx``: the command line."""

from fx2onnx.cli.process import run

if __name__ == "__main__":
    run()
