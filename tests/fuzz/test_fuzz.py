"""A small number of cases of each fuzz target, and that the watch sees what it is for."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import HEAVY, TARGETS
from tests.fuzz.mutate import STRANGE

PROBE = """
import contextlib, os, socket, subprocess, sys
from pathlib import Path
import tests.fuzz.__main__ as driver

def strange(rng, folder):
    with contextlib.suppress(Exception):
        ACTION
driver.TARGETS["probe"] = strange
sys.exit(driver.run_target("probe", 0, range(1)))
"""


@pytest.mark.parametrize(
    ("names", "cases"),
    [
        pytest.param([name for name in TARGETS if name not in HEAVY], 40, marks=pytest.mark.long),
        pytest.param(HEAVY, 200, marks=pytest.mark.slow),
    ],
    ids=["light", "heavy"],
)
def test_a_few_cases_of_each_target(names: list[str], cases: int) -> None:
    targets = [word for name in names for word in ("--target", name)]
    command = [sys.executable, "-m", "tests.fuzz", "--light", "--cases", str(cases), "--seed", "7", *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == list(names)


def test_a_case_is_the_same_at_each_run(tmp_path: Path) -> None:
    for name, case in TARGETS.items():
        if name in HEAVY:
            continue
        made = []
        for run in "ab":
            folder = tmp_path / f"{name}-{run}" / "case"
            folder.mkdir(parents=True)
            if name != "checkpoint":  # whose files are those of config
                with contextlib.suppress(Exception):
                    case(random.Random(5), folder)
            files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink())
            own = str(folder).encode()
            made.append({path.name: path.read_bytes().replace(own, b"") for path in files})
        assert made[0] == made[1]


@pytest.mark.slow  # each is a process that imports torch
@pytest.mark.parametrize(
    ("action", "seen"),
    [
        ("open('/etc/passwd').read()", "open '/etc/passwd'"),
        ("os.symlink('/etc/passwd', folder / 'a'); (folder / 'a').read_text()", "open"),
        ("os.system('true')", "os.system"),
        ("subprocess.run(['true'])", "subprocess.Popen"),
        ("socket.getaddrinfo('localhost', 1)", "socket.getaddrinfo"),
        (f"eval('{STRANGE}')", "compile"),
        (f"__import__('{STRANGE}')", "import"),
        ("sys.path.insert(0, str(folder)); (folder / 'm.py').write_text(''); import m", "exec"),
        ("raise KeyboardInterrupt", "! KeyboardInterrupt"),
        ("bytearray(8 << 30); os.system('true')", "0 faults"),  # the limit makes a MemoryError
        ("os._exit(3)", "the process died"),
        ("driver.signal.setitimer(driver.signal.ITIMER_REAL, 0.1)\n        while True: pass", "! Hangs"),
    ],
)
def test_the_watch_sees_what_must_not_be(action: str, seen: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE.replace("ACTION", action)], capture_output=True, text=True)
    assert seen in done.stdout, done.stdout + done.stderr
    assert done.returncode == (0 if seen == "0 faults" else 1)
