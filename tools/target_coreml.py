"""``python -m tools.target_coreml``: for which operators onnxruntime's CoreML provider has a builder, into
fx2onnx/targets/tables/coreml.json.

The provider is in the library for macOS alone, and says its operators to nobody. The function that registers them is run here
by an emulator, every call that leaves it answered, and the names that it hands to the builders' makers are read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

from tools.target_kernels import installed

RELEASE = "1.31"
TABLE = Path(__file__).parents[1] / "fx2onnx" / "targets" / "tables" / "coreml.json"
CONTRIB = frozenset({"FusedConv", "QuickGelu"})
"""Operators of com.microsoft; the provider tells operators by their names alone."""
NEWEST = 999
HEAP, STACK, SIZE = 0x70_0000_0000, 0x71_0000_0000, 0x400_0000
INSTRUCTIONS = 1_000_000
"""More than the function has."""
SHORT = 24
"""Bytes of a string of libc++ that holds its text itself; the last one is its length."""


def library(folder: Path) -> bytes:
    """The provider's library from the wheel for Macs with ARM processors."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    where = ["--platform", "macosx_14_0_arm64", "--dest", str(folder)]
    subprocess.run([*command, *where, f"onnxruntime=={RELEASE}.*"], check=True)
    (wheel,) = folder.glob(f"onnxruntime-{RELEASE}.*macosx*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = [each for each in file.namelist() if each.endswith(".dylib")]
        return file.read(name)


def operators(data: bytes) -> list[str]:
    """The names that ``CreateOpBuilderRegistrations`` registers."""
    import lief
    import unicorn
    from unicorn import arm64_const as arm64

    binary = lief.MachO.parse(list(data)).at(0)
    symbols = {symbol.value: symbol.name for symbol in binary.symbols if symbol.value}
    (start,) = [at for at, name in symbols.items() if "coreml" in name and "CreateOpBuilderRegistrationsEv" in name]
    end = min(at for at in symbols if at > start)
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    for segment in binary.segments:
        if segment.virtual_size and segment.name not in ("__PAGEZERO", "__LINKEDIT"):
            machine.mem_map(segment.virtual_address, -(-segment.virtual_size // 0x4000) * 0x4000)
            machine.mem_write(segment.virtual_address, bytes(segment.content))
    machine.mem_map(HEAP, SIZE)
    machine.mem_map(STACK, SIZE)
    found: list[str] = []
    free = HEAP

    def called(uc: Any, address: int, size: int, _: Any) -> None:
        nonlocal free
        if start <= address < end:
            return
        name = symbols.get(address, "")
        if "Create" in name and "OpBuilder" in name:
            raw = bytes(uc.mem_read(uc.reg_read(arm64.UC_ARM64_REG_X0), SHORT))
            found.append(raw[: raw[-1]].decode())
        else:  # whoever asks for memory gets some, and nobody minds a number that is none
            free += 0x1000
            uc.reg_write(arm64.UC_ARM64_REG_X0, free)
        uc.reg_write(arm64.UC_ARM64_REG_PC, uc.reg_read(arm64.UC_ARM64_REG_LR))

    def missing(uc: Any, access: int, address: int, size: int, value: int, _: Any) -> bool:
        uc.mem_map(address & ~0xFFFF, 0x10000)
        return True

    machine.hook_add(unicorn.UC_HOOK_CODE, called)
    machine.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, missing)
    machine.reg_write(arm64.UC_ARM64_REG_SP, STACK + SIZE // 2)
    machine.reg_write(arm64.UC_ARM64_REG_X8, HEAP)
    stop = HEAP + SIZE - 4
    machine.reg_write(arm64.UC_ARM64_REG_LR, stop)
    machine.emu_start(start, stop, count=INSTRUCTIONS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/runtimes"), help="where packages are installed")
    folder = parser.parse_args().folder.resolve()
    sys.path[:0] = [str(installed("lief", "1.*", folder)), str(installed("unicorn", "2.*", folder))]
    names = operators(library(folder))
    assert {"Conv", "Gemm", "MatMul", "Softmax", "LayerNormalization"} <= set(names)
    head = {
        "runtime": "coreml",
        "source": f"the builders of the CoreML provider in the macOS library of onnxruntime {RELEASE}; "
        "dtypes and attributes are not known, nothing was run",
        "date": date.today().isoformat(),
        "tried": False,
        "releases": {RELEASE: {}},
    }
    rows = {
        f"{'com.microsoft' if name in CONTRIB else ''}::{name}": [[1, NEWEST, {}, RELEASE, RELEASE]]
        for name in sorted(names)
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    body = ",\n".join(f" {json.dumps(op)}: {json.dumps(each)}" for op, each in rows.items())
    TABLE.write_text("{" + ",\n".join([*parts, f'"kernels": {{\n{body}\n}}']) + "}\n", encoding="utf-8")
    print(len(names), "operators")


if __name__ == "__main__":
    main()
