"""At every step of a commit the old files or the new ones are there, whole, whatever stops it."""

from __future__ import annotations

import json
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fx2onnx import ExportWarning, export_folder, load
from fx2onnx.base.errors import UserError
from fx2onnx.exporting import folder as folders
from fx2onnx.files.folder_commit import MANIFEST, FileEntry, commit_folder, path_now, read_entries
from fx2onnx.irx import io
from fx2onnx.irx.reference import save_together
from tests.faults import harness
from tests.faults.harness import Striker, apart, in_child, names, struck


@dataclass(frozen=True)
class Scenario:
    """Three commits into a folder. ``state`` gives the name of the whole state that a reader finds, or raises."""

    old: Callable[[Path], None]
    new: Callable[[Path], None]
    other: Callable[[Path], None]
    """What a second writer commits."""
    state: Callable[[Path], str]


FILES = ("files/staging.py", "files/folder_commit.py", "irx/io.py", "irx/model_files.py", "irx/data_file.py",
         "irx/data_file.py", "exporting/folder.py")  # fmt: skip
SLOW = pytest.mark.slow  # the same as the shorter ones, on more files
SIZE = 600
"""The size of a weight: more than ``EXTERNAL_MIN_BYTES``."""


def model(number: float, weights: int = 2) -> ir.Model:
    """``y = x + w0 + w1 ...``, every weight full of ``number``."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([SIZE]))
    nodes, initializers, last = [], [], x
    for index in range(weights):
        tensor = ir.tensor(np.full(SIZE, number, np.float32), name=f"w{index}")
        weight = ir.Value(name=f"w{index}", type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        nodes.append(ir.Node("", "Add", [last, weight], num_outputs=1, name=f"n{index}"))
        last = nodes[-1].outputs[0]
        last.name, last.type, last.shape = f"y{index}", x.type, x.shape
        initializers.append(weight)
    graph = ir.Graph([x], [last], nodes=nodes, initializers=initializers, opset_imports={"": 20}, name=f"g{number:.0f}")
    return ir.Model(graph, ir_version=10)


def number_of(path: Path) -> float:
    """The number that the weights hold. Raises where two of them, or the graph's name, say different ones."""
    found = onnx.load(path)
    numbers = {float(v) for w in found.graph.initializer for v in np.unique(onnx.numpy_helper.to_array(w))}
    numbers.add(float(found.graph.name[1:]))
    (number,) = numbers
    return number


def saving(number: float, outside: bool) -> Callable[[Path], None]:
    return lambda folder: void(io.save(model(number), folder / "m.onnx", external_data=outside))


def void(_: object) -> None:
    pass


def single_state(folder: Path) -> str:
    return {1.0: "old", 2.0: "new", 3.0: "other"}[number_of(folder / "m.onnx")]


def exporting(number: float, *graphs: str) -> Callable[[Path], None]:
    """What ``export_folder`` does once its graphs are made."""

    def act(folder: Path) -> None:
        with folders.staging(folder) as stage:
            save_together({name: model(number) for name in graphs}, stage, "weights")
            (stage / "config.json").write_text(f'{{"number": {number}}}')
            commit_folder(stage, folder, {"task": "text-generation"})

    return act


def folder_state(folder: Path) -> str:
    entries = read_entries(folder)
    paths = {name: path_now(folder, name, entry.digest) for name, entry in entries.items()}
    assert all(FileEntry.of(path) == entries[name] for name, path in paths.items())
    numbers = {number_of(path) for name, path in paths.items() if name.endswith(".onnx")}
    numbers.add(float(paths["config.json"].read_text().split()[1][:-1]))
    (number,) = numbers
    return {1.0: "old", 2.0: "new", 3.0: "other"}[number]


SCENARIOS = {
    "one file": Scenario(saving(1, False), saving(2, False), saving(3, False), single_state),
    "two files": Scenario(saving(1, True), saving(2, True), saving(3, True), single_state),
    "one file over two": Scenario(saving(1, True), saving(2, False), saving(3, True), single_state),
    "two files over one": Scenario(saving(1, False), saving(2, True), saving(3, False), single_state),
    "a folder": Scenario(exporting(1, "a.onnx", "b.onnx"), exporting(2, "a.onnx", "b.onnx"), exporting(3, "a.onnx", "b.onnx"), folder_state),
    "a folder of another kind": Scenario(exporting(1, "model.onnx"), exporting(2, "a.onnx", "b.onnx"), exporting(3, "model.onnx"), folder_state),
}  # fmt: skip


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return SCENARIOS[request.param]


class Case:
    """Fresh copies of the old state to strike at, and what a quiet commit leaves."""

    def __init__(self, scenario: Scenario, tmp_path: Path) -> None:
        self.scenario, self.place = scenario, tmp_path / "place"
        self._old, clean = tmp_path / "old", tmp_path / "clean"
        for place in (self._old, clean):
            place.mkdir()
            scenario.old(place)
        self.old_names = names(self._old)
        scenario.new(clean)
        self.new_names = names(clean)
        assert (scenario.state(self._old), scenario.state(clean)) == ("old", "new")

    def fresh(self) -> Path:
        """``place``, holding the old state and nothing else."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._old, self.place)
        return self.place

    def commit_anew(self) -> None:
        """The new state over the old one. Making it ready makes no calls that count."""
        with Striker.paused():
            self.fresh()
        self.scenario.new(self.place)

    def check_next(self, place: Path) -> None:
        """The next commit succeeds and leaves what a quiet one does: nothing of the one before."""
        self.scenario.new(place)
        assert self.scenario.state(place) == "new"
        assert sorted(path.name for path in place.iterdir()) == self.new_names


@pytest.fixture
def case(scenario: Scenario, tmp_path: Path) -> Case:
    return Case(scenario, tmp_path)


def check_after(case: Case, error: BaseException | None, lasting: bool = False) -> str:
    """The state after a fault that this process outlived. Nothing is left but what is old or new."""
    left = {name for name in names(case.place) if not (lasting and name.startswith(".fx2onnx-"))}
    if error is not None:
        assert left == set(case.old_names) or left & set(case.new_names)
    assert left <= {*case.old_names, *case.new_names}
    state = case.scenario.state(case.place)
    assert error is not None or state == "new"
    assert lasting or state == "new" or left == set(case.old_names), "nothing of what failed is left"
    return state


def is_in_order(states: list[str]) -> bool:
    """Return whether the new state, once it is there, stays."""
    return set(states) == {"old", "new"} and states == sorted(states, key=("old", "new").index)


@pytest.mark.long_cases("a folder", "a folder of another kind")
@apart
def test_killed_before_every_call(case: Case) -> None:
    """A copy of the folder at each call is what a kill would leave there; locks end with their process."""
    place = case.fresh()
    copy = place.with_name("copy")
    states: list[str] = []

    def look(*_: object) -> None:
        shutil.copytree(place, copy)
        states.append(case.scenario.state(copy))
        case.check_next(copy)
        shutil.rmtree(copy)

    with Striker(1, look, lasting=True):
        case.scenario.new(place)
    assert is_in_order(states)


@pytest.mark.long_cases("two files")
@pytest.mark.parametrize("name", ["two files", pytest.param("a folder", marks=SLOW)])
@apart
def test_really_killed_before_every_call(name: str, tmp_path: Path) -> None:
    case = Case(SCENARIOS[name], tmp_path)
    states: list[str] = []
    code = -signal.SIGKILL
    while code == -signal.SIGKILL:
        code = in_child(lambda: die_at(len(states) + 1, case))
        states.append(case.scenario.state(case.place))
        case.check_next(case.place)
        case.fresh()
    assert code == 0
    assert is_in_order(states)


def die_at(call: int, case: Case) -> None:
    with Striker(call, harness.kill):
        case.commit_anew()


@pytest.mark.long_cases("two files-interrupt", "a folder-interrupt", "a folder of another kind-interrupt")
@pytest.mark.parametrize("fault", [harness.interrupt, pytest.param(harness.terminate, marks=SLOW)])
@apart
def test_interrupted_before_every_call(case: Case, fault: harness.Fault) -> None:
    states = []
    for error in struck(case.commit_anew, fault):
        assert isinstance(error, (KeyboardInterrupt, SystemExit))
        states.append(check_after(case, error))
        case.check_next(case.place)
    assert is_in_order(states)


@pytest.mark.long_cases(
    "two files-no_space-False",
    "two files-no_space-True",
    "two files-refused-False",
    "two files-refused-True",
    "a folder-no_space-False",
    "a folder-no_space-True",
    "a folder-refused-False",
    "a folder-refused-True",
    "a folder of another kind-no_space-False",
    "a folder of another kind-no_space-True",
    "a folder of another kind-refused-False",
    "a folder of another kind-refused-True",
)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("fault", [harness.no_space, harness.refused])
@apart
def test_a_call_that_fails(case: Case, fault: harness.Fault, lasting: bool) -> None:
    states = []
    for error in struck(case.commit_anew, fault, lasting):
        assert error is None or (isinstance(error, UserError) and error.code in ("E301", "E302"))
        states.append(check_after(case, error, lasting))
        case.check_next(case.place)
    assert set(states) == {"old", "new"}


@pytest.mark.long_cases("two files")
@pytest.mark.parametrize(
    "name",
    ["two files", pytest.param("one file over two", marks=SLOW), pytest.param("a folder of another kind", marks=SLOW)],
)
@apart
def test_a_second_writer_at_every_call(name: str, tmp_path: Path) -> None:
    case = Case(SCENARIOS[name], tmp_path)
    second = harness.SecondWriter(lambda: case.scenario.other(case.place))
    ends = set()
    for error in struck(case.commit_anew, second):
        assert error is None
        second.wait()
        ends.add(case.scenario.state(case.place))
        assert not [path.name for path in case.place.iterdir() if path.name.startswith(".")]
        case.check_next(case.place)
    assert ends == {"new", "other"}


@pytest.mark.long_cases("two files")
@pytest.mark.parametrize("name", ["two files", pytest.param("a folder of another kind", marks=SLOW)])
@apart
def test_interrupted_at_every_line(name: str, tmp_path: Path) -> None:
    case = Case(SCENARIOS[name], tmp_path)
    states = []
    for error in harness.interrupted_at_lines(case.commit_anew, FILES):
        assert isinstance(error, KeyboardInterrupt)
        states.append(case.scenario.state(case.place))
        case.check_next(case.place)
    assert set(states) == {"old", "new"}
    assert len(states) > 60


@apart
def test_a_fresh_folder_that_fails_is_not_there(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for error in struck(lambda: exporting(1, "a.onnx")(target), harness.no_space, lasting=True):
        assert target.exists() == (target / MANIFEST).exists()
        assert error is not None or target.exists()
        assert not target.exists() or folder_state(target) == "old"
        shutil.rmtree(target, ignore_errors=True)


def test_only_files_of_an_export_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("somebody's own")
    with pytest.raises(Exception, match="which no export wrote"):
        exporting(1, "a.onnx")(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "somebody's own"


def test_a_manifest_names_nothing_outside_its_folder(tmp_path: Path) -> None:
    """A stranger's manifest has nothing removed that an export did not write."""
    (tmp_path / "victim.data").write_text("precious")
    place = tmp_path / "place"
    place.mkdir()
    entry = f'{{"bytes": 8, "digest": "{FileEntry.of(tmp_path / "victim.data").digest}"}}'
    (place / "notes.txt").write_text("my notes")
    (place / MANIFEST).write_text(
        f'{{"files": {{"../victim.data": {entry}, "/etc/victim.data": {entry}}}, "copied": {{"notes.txt": {entry}}}}}'
    )
    exporting(1, "a.onnx")(place)
    assert (tmp_path / "victim.data").read_text() == "precious"
    assert (place / "notes.txt").read_text() == "my notes"
    assert folder_state(place) == "old"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders of models that generate: one graph, and an encoder with its decoder."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("gpt2", "t5")}
    export_folder("hf:gpt2?n_layer=1&n_embd=8&n_head=1&vocab_size=50&bos_token_id=1&eos_token_id=2", places["gpt2"])
    export_folder(
        "hf:t5?num_layers=1&d_model=8&d_kv=4&d_ff=8&num_heads=2&vocab_size=50",
        places["t5"],
        task="text2text-generation-with-past",
    )
    config = places["t5"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"decoder_start_token_id": 0}))
    return places


def restage(source: Path, target: Path) -> None:
    """Commit the files of an exported folder once more, into ``target``."""
    facts = json.loads((source / MANIFEST).read_text())
    for key in ("files", "copied", "version"):
        facts.pop(key)
    with folders.staging(target) as stage:
        for path in source.iterdir():
            if path.name != MANIFEST:
                shutil.copyfile(path, stage / path.name)
        commit_folder(stage, target, facts)


@pytest.mark.long
@apart
def test_load_opens_one_export_or_the_other_at_every_call(exported: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "place"
    restage(exported["gpt2"], place)
    kinds: list[tuple[str, ...]] = []

    def look(*_: object) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(place, copy)
        model = load(copy, "runner")
        tokens = model.generate(
            input_ids=np.array([[3, 4]]), attention_mask=np.ones((1, 2), np.int64), max_new_tokens=1
        )
        assert tokens.shape[0] == 1
        kinds.append(tuple(sorted(model.graphs)))
        assert model.config["model_type"] == {1: "gpt2", 2: "t5"}[len(model.graphs)]
        shutil.rmtree(copy)

    with Striker(1, look, lasting=True):
        restage(exported["t5"], place)
    assert set(kinds) == {("model",), ("decoder_model", "encoder_model")}
    assert kinds == sorted(kinds, key=len)
    assert not (place / "model.onnx").exists()


@pytest.mark.long_cases(but=["onnxruntime-weights.*.data"])
@pytest.mark.parametrize("file", ["decoder_model.onnx", "weights.*.data"])
@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_load_refuses_files_that_were_not_written(
    file: str, engine: str, exported: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(exported["t5"], place)
    (path,) = place.glob(file)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    for changed in (content, content[:-1], content + b"0"):
        path.write_bytes(changed)
        with pytest.raises(UserError, match="is not the file that was exported"):
            load(place, engine)
    path.unlink()
    with pytest.raises(UserError, match="lacks"):
        load(place, engine)


def test_load_reads_what_the_manifest_names_and_configs_may_be_edited(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(exported["t5"], place)
    (place / "model.onnx").write_bytes((exported["gpt2"] / "model.onnx").read_bytes())
    settings = json.loads((place / "generation_config.json").read_text())
    (place / "generation_config.json").write_text(json.dumps(settings | {"max_new_tokens": 3}))
    with pytest.warns(ExportWarning, match="generation_config.json' is not the file that was exported"):
        model = load(place, "runner")
    assert sorted(model.graphs) == ["decoder_model", "encoder_model"]
    (place / "generation_config.json").unlink()
    with pytest.warns(ExportWarning, match="lacks generation_config.json: where that is meant, take"):
        load(place, "runner")
    stated = json.loads((place / "fx2onnx.json").read_text())
    (place / "fx2onnx.json").write_text(json.dumps(stated | {"copied": {}}))
    with warnings.catch_warnings(action="error", category=ExportWarning):
        load(place, "runner")
    assert model.generation_config["max_new_tokens"] == 3


def test_a_newer_manifest_is_refused(exported: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "place"
    shutil.copytree(exported["t5"], place)
    stated = json.loads((place / MANIFEST).read_text())
    (place / MANIFEST).write_text(json.dumps(stated | {"version": 99}))
    with pytest.raises(UserError, match="of version 99"):
        load(place, "runner")


def test_a_digest_of_a_manifest_is_no_path(tmp_path: Path) -> None:
    """What a pending file is called comes from the digest."""
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "place"
    place.mkdir()
    (place / MANIFEST).write_text(
        json.dumps({"files": {"a.onnx": {"bytes": 1, "digest": "/../../outside/" + "x" * 17}}})
    )
    assert read_entries(place) == {}
    with pytest.raises(UserError, match="E302"):
        load(place, "runner")
