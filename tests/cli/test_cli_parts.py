"""The parts of the command line: dynamic dims, feeds, files, progress."""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fx2onnx.base import events
from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.base.targets import check_target
from fx2onnx.capture.shapes.dynamic import Proposed
from fx2onnx.cli import feeds
from fx2onnx.cli.feeds import dynamic_shapes_of, parse_dynamic
from fx2onnx.cli.progress import Stages
from fx2onnx.files.staging import replacing


class TestDynamic:
    @pytest.mark.parametrize(
        ("texts", "expected"),
        [
            (["default"], "default"),
            (["none"], "none"),
            (["x:0=batch"], {"x": {0: "batch"}}),
            (["ids:0=batch,1=seq; mask:1 = seq"], {"ids": {0: "batch", 1: "seq"}, "mask": {1: "seq"}}),
            (["ids:0=batch", "ids:1=seq"], {"ids": {0: "batch", 1: "seq"}}),
            (["ids:-2=batch,-1=seq"], {"ids": {-2: "batch", -1: "seq"}}),
        ],
    )
    def test_forms(self, texts: list[str], expected: object) -> None:
        assert parse_dynamic(texts) == expected

    @pytest.mark.parametrize("text", ["", "x", "x:", "x:0", "x:a=b", "x:--1=b", ":0=b", "x:0=3d", "x:0=b,"])
    def test_other_forms_are_refused(self, text: str) -> None:
        with pytest.raises(UserError) as caught:
            parse_dynamic([text])
        assert caught.value.code == "E001"

    def test_shapes_for_the_exporter(self) -> None:
        from fx2onnx.sources import resolve

        source = resolve("zoo:mnist_cnn")
        assert dynamic_shapes_of(source, "default") == {"x": {0: Proposed("batch")}}
        assert dynamic_shapes_of(source, "none") is None
        assert dynamic_shapes_of(source, {"x": {2: "height"}}) == {"x": {2: "height"}}


@dataclass
class Description:
    name: str
    type: str
    shape: list[Any]


IDS = Description("ids", "tensor(int64)", ["batch", "seq"])
IMAGE = Description("image", "tensor(float)", ["batch", 3, 4, None])


class TestFeeds:
    def test_random_inputs_respect_dtype_and_dims(self) -> None:
        made = feeds.make_feeds([IDS, IMAGE], {}, {"batch": 5, "seq": 40}, seed=1)
        assert {name: value.shape for name, value in made.items()} == {"ids": (5, 40), "image": (5, 3, 4, 1)}
        assert set(np.unique(made["ids"])) == {0, 1}
        assert made["image"].dtype == np.float32
        again = feeds.make_feeds([IDS, IMAGE], {}, {"batch": 5, "seq": 40}, seed=1)
        assert all(np.array_equal(made[name], again[name]) for name in made)
        other = feeds.make_feeds([IDS, IMAGE], {}, {"batch": 5, "seq": 40}, seed=2)
        assert not np.array_equal(made["image"], other["image"])

    @pytest.mark.parametrize(("dims", "shape"), [({"n": 3}, (3, 6)), ({}, (1, 2)), ({"n": 3, "2*n": 5}, (3, 5))])
    def test_a_multiple_of_a_dim_follows_it(self, dims: dict[str, int], shape: tuple[int, ...]) -> None:
        made = feeds.make_feeds([Description("x", "tensor(float)", ["n", "2*n"])], {}, dims, seed=0)
        assert made["x"].shape == shape

    @pytest.mark.parametrize("type_name", sorted(feeds.DTYPES))
    def test_every_type_has_random_values(self, type_name: str) -> None:
        made = feeds.make_feeds([Description("x", type_name, [3])], {}, {}, seed=0)["x"]
        assert made.shape == (3,)
        assert made.dtype.name == feeds.DTYPES[type_name]

    def test_a_file_gives_values_and_names_the_dims_of_the_others(self, tmp_path: Path) -> None:
        values = np.arange(6, dtype=np.int64).reshape(2, 3)
        np.save(tmp_path / "ids.npy", values)
        made = feeds.make_feeds([IMAGE, IDS], {"ids": str(tmp_path / "ids.npy"), "image": "random"}, {}, seed=0)
        assert np.array_equal(made["ids"], values)
        assert list(made) == ["image", "ids"]
        assert made["image"].shape == (2, 3, 4, 1)

    @pytest.mark.parametrize(
        ("array", "code", "named"),
        [
            (np.zeros((2, 3), np.int32), "E401", "int64"),
            (np.zeros((2, 3, 1), np.int64), "E401", "[batch, seq]"),
            (np.zeros((2, 9), np.int64), "E401", "'seq' is 7"),
            (None, "E302", "no such file"),
            (b"not an array", "E302", ".npy"),
            (np.array([{}], dtype=object), "E302", "pickle"),
        ],
    )
    def test_files_that_do_not_fit(self, array: Any, code: str, named: str, tmp_path: Path) -> None:
        path = tmp_path / "ids.npy"
        if isinstance(array, bytes):
            path.write_bytes(array)
        elif array is not None:
            np.save(path, array, allow_pickle=True)
        with pytest.raises(UserError) as caught:
            feeds.make_feeds([IDS], {"ids": str(path)}, {"seq": 7}, seed=0)
        assert caught.value.code == code
        assert named in caught.value.render()

    def test_unknown_names_are_refused(self) -> None:
        with pytest.raises(UserError, match="did you mean ids"):
            feeds.make_feeds([IDS], {"idz": "random"}, {}, seed=0)
        with pytest.raises(UserError, match="dims: batch, seq"):
            feeds.make_feeds([IDS], {}, {"length": 3}, seed=0)
        with pytest.raises(UserError, match="type"):
            feeds.make_feeds([Description("s", "tensor(string)", [1])], {}, {}, seed=0)

    @pytest.mark.parametrize("texts", [["a"], ["=b"], ["a="], ["a=1", "a=2"]])
    def test_pairs_that_are_none(self, texts: list[str]) -> None:
        with pytest.raises(UserError):
            feeds.parse_pairs(texts, "--input")

    @pytest.mark.parametrize("text", ["batch=-1", "batch=two", "batch=1.5"])
    def test_sizes_that_are_none(self, text: str) -> None:
        with pytest.raises(UserError, match="whole number"):
            feeds.parse_dims([text])


class TestFiles:
    def test_checking_leaves_nothing_behind(self, tmp_path: Path) -> None:
        check_target(tmp_path / "model.onnx")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_write_permission_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(UserError, match="E301"):
            check_target(tmp_path / "model.onnx")

    def test_a_file_in_place_of_a_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="is not a folder"):
            check_target(tmp_path / "file" / "model.onnx")

    def test_replacing_keeps_the_old_file_when_the_block_fails(self, tmp_path: Path) -> None:
        target = tmp_path / "report.json"
        target.write_text("old")

        def write_and_fail() -> None:
            with replacing(target) as temporary:
                temporary.write_text("half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            write_and_fail()
        assert target.read_text() == "old"
        assert list(tmp_path.iterdir()) == [target]
        with replacing(target) as temporary:
            temporary.write_text("new")
        assert target.read_text() == "new"
        assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (97_800_000, "97.8 MB"), (2 * 10**9, "2.00 GB")],
)
def test_human_size(size_bytes: int, text: str) -> None:
    assert human_size(size_bytes) == text


class TestStages:
    def test_without_a_terminal_each_stage_is_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Stages() as stages:
            with stages.stage("build [zoo]"):
                pass
            assert stages.call("export", lambda: 7) == 7
        captured = capsys.readouterr()
        assert [line.split()[0] for line in captured.err.splitlines()] == ["build", "export"]
        assert "[zoo]" in captured.err
        assert captured.out == ""

    def test_quiet_says_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Stages(quiet=True) as stages, stages.stage("build"):
            pass
        assert capsys.readouterr().err == ""

    def test_on_a_terminal_the_running_phase_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = io.StringIO()
        monkeypatch.setattr("fx2onnx.cli.progress.is_terminal", lambda stream: True)
        monkeypatch.setattr(
            "fx2onnx.cli.progress.console", lambda *, stderr=False: Console(file=screen, force_terminal=True, width=80)
        )

        def work() -> None:
            with events.recording("export"), events.record("lower"), events.record("weights"):
                deadline = time.monotonic() + 5
                while "lower > weights" not in screen.getvalue() and time.monotonic() < deadline:
                    time.sleep(0.01)

        with Stages() as stages:
            stages.call("export", work)
        assert "lower > weights" in screen.getvalue()
        assert "✓" in screen.getvalue()
