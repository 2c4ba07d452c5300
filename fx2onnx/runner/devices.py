"""Names of onnxruntime about devices and memory, for scripts that name them.

There is one processor and one memory here, so these values say what they were made of and decide nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import VERSION
from fx2onnx.runner.options import refusal
from fx2onnx.runner.ort_value import OrtValue, OrtValueVector  # noqa: F401  (the second is a name of onnxruntime's)


class OrtAllocatorType(enum.IntEnum):
    """onnxruntime's kinds of memory allocators; the choice has no effect here."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """onnxruntime's kinds of owners of a value's memory; there is one here."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(enum.IntEnum):
    """The kind of a device's memory; there is one."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(enum.IntEnum):
    """The processor that memory belongs to."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(enum.IntEnum):
    """The kind of a processor."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(enum.IntEnum):
    """onnxruntime's preferences of a processor; there is one here."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(enum.IntEnum):
    """onnxruntime's layouts of a sparse tensor in memory."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtCompileApiFlags(enum.IntFlag):
    """Flags of ``ModelCompiler``, which is refused."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtDeviceVendorId(enum.IntEnum):
    """PCI numbers of makers of processors."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


@dataclass(frozen=True)
class OrtDevice:
    """A processor by its name and number."""

    name: str = "cpu"
    number: int = 0
    vendor: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
        """Raises: UserError E001 for another processor than the CPU."""
        if ort_device_name.lower() != "cpu":
            raise UserError("E001", f"there is no device {ort_device_name!r}", next='use "cpu"')
        return OrtDevice("cpu", device_id, max(vendor_id, 0))

    def device_id(self) -> int:
        return self.number

    def device_type(self) -> str:
        return self.name

    def device_mem_type(self) -> int:
        return 0

    def device_vendor_id(self) -> int:
        return self.vendor


@dataclass(frozen=True)
class OrtMemoryInfo:
    """The memory of values: the machine's own."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, mem_type, vendor_id)


class OrtArenaCfg:
    """Settings of onnxruntime's arena, kept as given; memory is planned for each set of shapes here."""

    def __init__(self, *settings: Any) -> None:
        names = ("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
        given = settings[0] if len(settings) == 1 else dict(zip(names, settings, strict=True))
        self.max_mem: int = given.get("max_mem", 0)
        self.arena_extend_strategy: int = given.get("arena_extend_strategy", -1)
        self.initial_chunk_size_bytes: int = given.get("initial_chunk_size_bytes", -1)
        self.max_dead_bytes_per_chunk: int = given.get("max_dead_bytes_per_chunk", -1)
        self.initial_growth_chunk_size_bytes: int = given.get("initial_growth_chunk_size_bytes", -1)
        self.max_power_of_two_extend_bytes: int = given.get("max_power_of_two_extend_bytes", -1)


@dataclass(frozen=True)
class OrtHardwareDevice:
    """The processor of this machine."""

    type: OrtHardwareDeviceType = OrtHardwareDeviceType.CPU
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0


@dataclass(frozen=True)
class OrtEpDevice:
    """The one processor, with the provider that runs on it."""

    ep_name: str = "CPUExecutionProvider"
    ep_vendor: str = "fx2onnx"
    device: OrtHardwareDevice = OrtHardwareDevice()

    @property
    def ep_metadata(self) -> dict[str, str]:
        return {"version": VERSION}

    @property
    def ep_options(self) -> dict[str, str]:
        return {}

    def memory_info(self, memory_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT) -> OrtMemoryInfo:
        return OrtMemoryInfo()

    def create_sync_stream(self, options: Any = None) -> None:
        """Raises: UserError E001, since nothing runs beside the caller."""
        raise refusal("OrtSyncStream")


def get_ep_devices() -> list[OrtEpDevice]:
    """The processors that a session can run on."""
    return [OrtEpDevice()]


def get_build_info() -> str:
    """One line on what this is, as onnxruntime has it."""
    return f"ORT Build Info: fx2onnx={VERSION}, numpy={np.__version__}, build type=Release"


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Accepted: threads are those of each session's ``intra_op_num_threads``."""


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Accepted: memory is planned for each set of shapes, and shared by nothing."""


def create_and_register_allocator_v2(
    provider_type: str, memory_info: OrtMemoryInfo, options: Any = None, arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Accepted: memory is planned for each set of shapes, and shared by nothing."""


def has_collective_ops() -> bool:
    """False: nothing runs on several machines."""
    return False


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Accepted: no library has to be loaded ahead."""


def print_debug_info() -> None:
    """Print the versions that a report should name."""
    print(get_build_info())


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Write the elements of each value of ``src`` into that of ``dst``. Raises: ValueError for other numbers of values."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
