"""The cost of recording in an export: ``profile=True`` beside ``profile=False``, in pairs, many rounds, nothing
written.

``python -m benchmarks.profile_overhead [--rounds 250] [--models bert_base_mlm,...]``
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
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    import fx2onnx
    from models_zoo.registry import build

    print(machine.describe())
    print(
        f"CPU seconds of this process, {options.rounds} pairs, first one and then the other first. Cost: between the means of the"
        " fastest tenth of each, as what else the machine does only adds time;"
    )
    print("in pairs: the median difference, in brackets the middle half: where it is wide, the machine was busy.")
    print("| model | off ms | cost ms | cost | in pairs ms | entries | memory readings |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        source = build(name)
        gc.collect()
        gc.freeze()  # torch's and the model's objects need not be looked through before each export
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for round_number in range(options.rounds + 2):
            for profile in (False, True) if round_number % 2 else (True, False):
                result = None  # the one before must not be thrown away while this one is timed
                gc.collect()
                start = time.process_time()
                result = fx2onnx.export(source.module, source.args, None, kwargs=source.kwargs, profile=profile)
                if round_number > 1:
                    seconds[profile].append(time.process_time() - start)
                if result.measured is not None:
                    assert result.measured.memory is not None
                    counts = f"{result.measured.recorder.entries} | {len(result.measured.memory.readings)}"
        off, on = (statistics.mean(sorted(taken)[: max(1, len(taken) // 10)]) for taken in seconds.values())
        low, paired, high = statistics.quantiles([b - a for a, b in zip(*seconds.values(), strict=True)], n=4)
        told = f"{(on - off) * 1e3:.2f} | {on / off - 1:.1%} | {paired * 1e3:.2f} ({low * 1e3:.1f} to {high * 1e3:.1f})"
        print(f"| {name} | {off * 1e3:.1f} | {told} | {counts} |", flush=True)
        gc.unfreeze()


if __name__ == "__main__":
    main()
