"""What recording costs an export: ``profile=True`` beside ``profile=False``, in turn, many rounds, nothing written.

``python -m benchmarks.profile_overhead [--rounds 40] [--models bert_base_mlm,...]``
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from benchmarks import machine

MODELS = ("resnet50", "bert_base_mlm", "t5_small")


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    import fx2onnx
    from models_zoo.registry import build

    print(machine.describe())
    print(f"CPU seconds of this process, lower quartile of {options.rounds} rounds in turn")
    print("| model | off ms | on ms | on / off | events | memory readings |")
    print("|---|---|---|---|---|---|")
    for name in options.models.split(","):
        source = build(name)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for round_number in range(options.rounds + 2):
            for profile in (False, True):
                gc.collect()
                start = time.process_time()
                result = fx2onnx.export(source.module, source.args, None, kwargs=source.kwargs, profile=profile)
                if round_number > 1:
                    seconds[profile].append(time.process_time() - start)
        off, on = (statistics.quantiles(seconds[profile], n=4)[0] for profile in (False, True))
        assert result._measured is not None
        assert result._measured.memory is not None
        counts = f"{len(result._measured.recorder._log)} | {len(result._measured.memory.readings)}"
        print(f"| {name} | {off * 1e3:.1f} | {on * 1e3:.1f} | {on / off:.3f} | {counts} |", flush=True)


if __name__ == "__main__":
    main()
