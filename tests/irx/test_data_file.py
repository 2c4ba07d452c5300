"""The bytes that weights of any layout get in the data file."""

import errno
import itertools
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

import fx2onnx
from fx2onnx.irx import data_file, reference
from fx2onnx.irx import io as irx_io
from fx2onnx.irx.data_file import ALIGNMENT_BYTES, BESIDE_BYTES, BUFFER_BYTES, Piece, write_data
from fx2onnx.lower import weights
from fx2onnx.lower.weights import ModuleWeight
from fx2onnx.optimize.weights import DerivedTensor, ScaledTensor, TransposedTensor

BIG = torch.arange(700 * 1100, dtype=torch.float32).reshape(700, 1100)
WIDE = torch.arange(2 * (BUFFER_BYTES // 4 + 7), dtype=torch.float32).reshape(2, -1)
LAYOUTS = {
    "contiguous": BIG,
    "transposed": BIG.t(),
    "a column slice, transposed": BIG[:, 3:900].t(),
    "every second row": BIG[::2],
    "every second column": BIG[:, ::2],
    "rows longer than the buffers": WIDE.flip(0).t().contiguous().t(),
    "columns longer than the buffers": WIDE.t(),
    "a vector with gaps, longer than the buffers": WIDE.reshape(-1)[::2],
    "a stack of transposed matrices": torch.stack([BIG, -BIG]).mT,
    "axes in another order": torch.arange(24 * 50 * 700).reshape(24, 50, 700).permute(2, 0, 1),
    "expanded": torch.arange(1000.0).expand(900, 1000),
    "bfloat16": BIG.to(torch.bfloat16).t(),
    "float16": BIG.half().t(),
    "float8": BIG.to(torch.float8_e4m3fn).t(),
    "float64": BIG.double().t(),
    "bool": (BIG % 2 == 0).t(),
    "complex parts": torch.view_as_real(torch.complex(BIG, -BIG).t()),
    "a scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 5),
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_are_those_of_the_contiguous_tensor(layout, tmp_path):
    tensor = LAYOUTS[layout]
    path = tmp_path / "data"
    (place,) = write_data(str(path), [ModuleWeight(tensor, "w")])
    assert place == (0, tensor.nbytes)
    assert path.read_bytes() == raw(tensor)


@pytest.mark.parametrize("lazy", [False, True])
def test_many_tensors_lie_at_their_places(lazy, tmp_path):
    """Written by one thread where all are plain, by two where some are reordered."""
    torch.manual_seed(0)
    tensors = [torch.randn(1 + 37 * i, 300 + i) for i in range(40)]
    sources = [ModuleWeight(tensor, f"w{i}") for i, tensor in enumerate(tensors)]
    if lazy:
        tensors = [tensor.t() for tensor in tensors]
        sources = [TransposedTensor(source, (1, 0), f"t{i}") for i, source in enumerate(sources)]
    path = tmp_path / "data"
    places = write_data(str(path), sources)
    content = path.read_bytes()
    assert len(content) == sum(places[-1])
    for tensor, (offset, length) in zip(tensors, places, strict=True):
        assert offset % ALIGNMENT_BYTES == 0
        assert content[offset : offset + length] == raw(tensor)
    for (offset, length), (following, _) in itertools.pairwise(places):
        assert not any(content[offset + length : following])


@pytest.mark.parametrize("given", [1, 3])
def test_a_weight_that_gives_another_number_of_bytes_is_an_error(given, tmp_path):
    class Wrong(ModuleWeight):
        def pieces(self, size):
            yield from [Piece(4, lambda _: np.zeros(4, np.uint8))] * given

    with pytest.raises(OSError, match=f"the weight b gave {4 * given} bytes instead of 8"):
        write_data(str(tmp_path / "data"), [ModuleWeight(torch.ones(9), "a"), Wrong(torch.ones(2), "b")])


@pytest.mark.parametrize("alone", [True, False])
def test_a_piece_of_another_length_is_an_error(alone, tmp_path):
    wrong = DerivedTensor(lambda: np.zeros(3, np.float32), (), ir.DataType.FLOAT, (2,), "wrong")
    with pytest.raises(OSError, match="the weight wrong gave 12 bytes instead of 8"):
        write_data(str(tmp_path / "data"), [wrong] if alone else [ModuleWeight(torch.ones(9), "a"), wrong])


def test_a_tensor_of_onnx_ir_is_written_too(tmp_path):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    path = tmp_path / "data"
    write_data(str(path), [ir.Tensor(array, name="w")])
    assert path.read_bytes() == array.tobytes()


@pytest.mark.parametrize("when", ["preparing", "making"])
@pytest.mark.parametrize("beside", [False, True])
def test_an_error_of_a_weight_reaches_the_caller_and_ends_the_work(when, beside, tmp_path):
    made = []

    def make(failing):
        if failing and when == "making":
            raise MemoryError("no")
        made.append(failing)
        return np.zeros(BUFFER_BYTES, np.uint8)

    class Failing(DerivedTensor):
        def pieces(self, size):
            if when == "preparing":
                raise MemoryError("no")
            return super().pieces(size)

    def tensor(failing):
        kind = Failing if failing else DerivedTensor
        return kind(lambda: make(failing), (), ir.DataType.UINT8, (BUFFER_BYTES,), "w")

    count = 2 * BESIDE_BYTES // BUFFER_BYTES if beside else 3
    with pytest.raises(MemoryError):
        write_data(str(tmp_path / "data"), [tensor(True)] + [tensor(False) for _ in range(count)])
    assert len(made) < count


def test_two_threads_make_at_the_same_time(tmp_path):
    meeting = threading.Barrier(2, timeout=60)

    def make():
        if len(met) < 2:
            met.append(None)
            meeting.wait()  # breaks where one thread does all
        return np.full(BUFFER_BYTES, 7, np.uint8)

    met = []
    count = BESIDE_BYTES // BUFFER_BYTES
    tensors = [DerivedTensor(make, (), ir.DataType.UINT8, (BUFFER_BYTES,), "w") for _ in range(count)]
    path = tmp_path / "data"
    write_data(str(path), tensors)
    assert path.read_bytes() == b"\7" * BESIDE_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("view", "factor"), [((900, 700), (900, 1)), ((900, 700), (1, 700)), ((3, 300, 700), (3, 1, 700))]
)
def test_scaled_weights_are_the_same_by_blocks_and_at_once(dtype, view, factor, tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(900, 700, dtype=torch.float64).to(dtype)
    scale = torch.randn(factor, dtype=torch.float64)
    tensor = ScaledTensor(ModuleWeight(weight, "w"), view, lambda s: s, [ModuleWeight(scale, "s")], "scaled")
    path = tmp_path / "data"
    write_data(str(path), [tensor])
    assert path.read_bytes() == tensor.tobytes()
    expected = (weight.double().reshape(view) * scale).reshape(900, 700)
    got = torch.from_numpy(tensor.numpy().astype(np.float64))
    rounding = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps if dtype != torch.float64 else 0)
    torch.testing.assert_close(got, expected, rtol=2 * rounding, atol=0 if dtype != torch.float16 else 1e-7)


def test_a_float32_matrix_is_transposed_by_blas():
    """Else the tests above compare NumPy's way with itself."""
    assert weights._somatcopy() is not None


@pytest.mark.parametrize("blas", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
@pytest.mark.parametrize(
    ("rows", "columns", "width"), [(1, 1, 1), (3, 5, 9), (16, 16, 16), (257, 31, 40), (2000, 3, 3)]
)
def test_transposed_pieces(rows, columns, width, dtype, blas, monkeypatch):
    if not blas:
        monkeypatch.setattr(weights, "_somatcopy", lambda: None)
    whole = np.random.default_rng(0).integers(-100, 100, (rows, width)).astype(dtype)
    if dtype == np.float32:
        whole.flat[0] = 1e-41  # a denormal number
        whole.flat[-1] = np.nan
    matrix = whole[:, :columns]
    size = 2 * rows * matrix.itemsize
    content = b""
    for length, make in weights.transposed_pieces(matrix, size):
        assert length <= size
        place = np.full(length, 255, np.uint8)
        assert make(place) is None
        content += place.tobytes()
    assert content == np.ascontiguousarray(matrix.T).tobytes()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("when", ["reserving", "writing"])
def test_a_full_disk_is_an_error(lazy, when, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "no space")

    if when == "reserving":
        monkeypatch.setattr(data_file.os, "posix_fallocate", full)
    else:
        monkeypatch.setattr(data_file, "_write", full)
    sources = [ModuleWeight(BIG, f"w{i}") for i in range(9)]
    if lazy:
        sources = [TransposedTensor(source, (1, 0), source.name) for source in sources]
    with pytest.raises(OSError, match="no space"):
        write_data(str(tmp_path / "data"), sources)


def test_a_file_system_that_cannot_reserve_is_written_to(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(data_file.os, "posix_fallocate", refuse)
    write_data(str(tmp_path / "data"), [ModuleWeight(BIG, "w")])
    assert (tmp_path / "data").read_bytes() == raw(BIG)


class Vast(torch.nn.Module):
    """3.6 GB of weights that take 4 bytes: one number, seen 30,000 x 30,000 times."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1).expand(30_000, 30_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


def test_more_than_protobuf_holds_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    """As one file, as a message, and beside a checkpoint; what lies in other files does not count."""
    result = fx2onnx.export(Vast(), (torch.ones(1, 30_000),))
    path, model = tmp_path / "m.onnx", result.model
    tracemalloc.start()
    for write in (
        lambda: result.save(path, external_data=False),
        lambda: result.model_proto,
        lambda: reference.save(model, path),
    ):
        with pytest.raises(fx2onnx.UserError, match=r"3\.6 GB of weights do not fit into one file") as caught:
            write()
        assert caught.value.code == "E301"
        assert "external_data=True" in caught.value.next[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**7
    assert list(tmp_path.iterdir()) == []
    weights = list(model.graph.initializers.values())
    irx_io.require_fitting(model, outside=weights)
    for value in weights:
        size = ir.Shape([30_000, 30_000])
        value.const_value = ir.ExternalTensor("w", 0, value.const_value.nbytes, ir.DataType.FLOAT, shape=size, name="w")
    assert reference.save(model, path).model_bytes < 10_000
