"""``fx2onnx export --cluster``: the jobs of several models on a cluster whose workers are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.cli import workers
from fx2onnx.cli.job import Job
from tests.cli.support import invoke

_MODELS = """
import os, time
import torch

def linear(width=3): return torch.nn.Linear(width, 2), torch.randn(2, width)
def wide(): return linear(7)
def broken(): raise ValueError("this model cannot be built")
def dies(): os._exit(3)
def slow():
    with open("running", "a") as file:
        file.write(f"{os.getppid()}\\n")
    end = time.monotonic() + 60
    while not os.path.exists("killed") and time.monotonic() < end:
        time.sleep(0.1)
    return linear(5)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster_models.py").write_text(_MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("zoo:mnist_*", "--cluster", "localhost:8786"), "write dask://HOST:PORT"),
        (("zoo:mnist_*", "--cluster", "dask://localhost"), "write dask://HOST:PORT"),
        (("zoo:mnist_*", "--cluster", "dask://localhost:1", "--jobs", "2"), "--jobs is for this machine"),
    ],
)
def test_mistakes_are_one_error(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = invoke("export-many", *arguments, "-o", "out")
    assert (done.exit_code, "[E001]" in done.stderr, said in done.stderr) == (2, True, True), done.stderr
    assert not (folder / "out").exists()


def test_without_the_package_the_error_says_what_brings_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "distributed", raising=False)
    done = invoke("export", "zoo:mnist_*", "--cluster", "dask://localhost:1", "-o", "out")
    assert (done.exit_code, "[E602]" in done.stderr) == (2, True)
    assert "pip install 'fx2onnx[cluster]'" in done.stderr
    assert not (folder / "out").exists()


class Future:
    """As dask's, of a job that ended so."""

    def __init__(self, status: str, value: Any) -> None:
        self.status, self.value = status, value

    def exception(self) -> Any:
        return self.value

    def result(self) -> Any:
        return self.value


def test_a_worker_that_cannot_run_a_job_is_a_row() -> None:
    row = workers._row_of(Future("error", ModuleNotFoundError("No module named 'fx2onnx'")), Job("a:b", "b.onnx"))
    assert (row["ok"], row["source"], row["error"]["code"]) == (False, "a:b", "E900")
    assert "No module named 'fx2onnx'" in row["error"]["what"]


def test_a_file_that_is_elsewhere_is_an_error(folder: Path) -> None:
    there = {"ok": True, "digest": "0" * 64, "worker": "tcp://10.0.0.2:1", "exit_code": 0, "error": None}
    row = workers._row_of(Future("finished", dict(there)), Job("a:b", str(folder / "b.onnx")))
    assert (row["ok"], row["exit_code"], row["error"]["code"]) == (False, 2, "E301")
    assert "tcp://10.0.0.2:1" in row["error"]["what"]


@pytest.fixture
def dask_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra [cluster] is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def _kill_the_worker_of(running: Path, killed: list[int]) -> None:
    """As soon as the model that waits for it says which process of the cluster runs it."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if running.exists() and running.read_text().endswith("\n"):
            killed.append(int(running.read_text().split()[0]))
            os.kill(killed[0], signal.SIGKILL)
            time.sleep(1)
            running.with_name("killed").touch()
            return
        time.sleep(0.1)


def _close_when(running: Path, dask_cluster: Any) -> None:
    end = time.monotonic() + 120
    while not running.exists() and time.monotonic() < end:
        time.sleep(0.1)
    dask_cluster.close()
    running.with_name("killed").touch()


@pytest.mark.slow
def test_jobs_of_killed_workers_run_again_and_the_rest_as_on_one_machine(folder: Path, dask_cluster: Any) -> None:
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    sources = [f"cluster_models:{name}" for name in ("slow", "linear", "broken", "dies", "wide")]
    killed: list[int] = []
    killer = threading.Thread(target=_kill_the_worker_of, args=(folder / "running", killed))
    killer.start()
    call = ("export", *sources, "-o", "out", "--cluster", address, "--no-verify", "--json")
    done = invoke(*call)
    killer.join()
    assert killed
    runs = (folder / "running").read_text().split()
    assert len(runs) == 2
    assert runs[1] != runs[0] == str(killed[0])
    assert done.exit_code == 1, done.output
    rows = {row["source"].partition(":")[2]: row for row in json.loads(done.stdout)["exports"]}
    assert list(rows) == ["slow", "linear", "broken", "dies", "wide"]
    assert {name: (row["ok"], row["exit_code"]) for name, row in rows.items()} == {
        "slow": (True, 0),
        "linear": (True, 0),
        "wide": (True, 0),
        "broken": (False, 2),
        "dies": (False, 1),
    }
    assert "exit code 3" in rows["dies"]["error"]["what"]
    assert all((folder / f"out/cluster_models_{name}.onnx").exists() for name in ("slow", "linear", "wide"))
    again = json.loads(invoke(*call).stdout)
    assert again["skipped"] == 3
    assert (folder / "running").read_text().split() == runs
    here = invoke("export", *sources[:2], "-o", "out", "--no-verify")
    assert "2 of 2 models exported, 2 of them by an earlier run" in here.stdout


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_or_goes_is_one_error(
    folder: Path, dask_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 5)
    call = ("export", "cluster_models:slow", "cluster_models:linear", "-o", "out", "--no-verify", "--cluster")
    missing = invoke(*call, "dask://127.0.0.1:9")
    assert (missing.exit_code, "[E604]" in missing.stderr) == (2, True), missing.output
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    closer = threading.Thread(target=_close_when, args=(folder / "running", dask_cluster))
    closer.start()
    lost = invoke(*call, address)
    closer.join()
    assert (lost.exit_code, "[E604]" in lost.stderr) == (2, True), lost.output
    assert "the scheduler was lost" in lost.stderr


@pytest.mark.slow
def test_a_cluster_without_workers_is_one_error(dask_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LONELY_SECONDS", 3.0)
    address = dask_cluster.scheduler_address.replace("tcp://", "dask://")
    dask_cluster.scale(0)
    sources = ("cluster_models:wide", "cluster_models:linear")
    lonely = invoke("export", *sources, "-o", "out", "--no-verify", "--cluster", address)
    assert (lonely.exit_code, "[E604]" in lonely.stderr) == (2, True), lonely.output
    assert "without workers" in lonely.stderr
