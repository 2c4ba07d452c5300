"""Mutate the lines that changed since a commit, and report the mutants that no test noticed: ``make mutate BASE=main``.

The mutants are Cosmic Ray's operators on each changed file of ``fx2onnx/``, one session a file, in a worktree of ``HEAD``.
The tests of a mutant are the test files that name the module, then those of its room.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS_OF_ROOM = {"aten_map": "ops", "files": "base", "exporting": "exporting", "manifest": "generation"}
"""The folders of ``tests/`` of the rooms whose folder has another name."""
TIMEOUT_SECONDS = 900


def output_of(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout


def changed(base: str) -> list[str]:
    """The files of the package that changed since ``base``, and are still there."""
    return output_of("git", "diff", "--name-only", "--diff-filter=d", base, "HEAD", "--", "fx2onnx/**.py").split()


def tests_of(file: str) -> list[str]:
    """The test files that name the module of ``file``, and the folder of its room."""
    module = file.removesuffix(".py").replace("/", ".")
    naming = subprocess.run(
        ["git", "grep", "-l", module, "--", "tests/**.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    room = file.split("/")[1]
    folder = f"tests/{TESTS_OF_ROOM.get(room, room)}"
    found = [name for name in naming.stdout.split() if Path(name).name.startswith("test_")]
    return found + ([folder] if (ROOT / folder).is_dir() else [])


def mutate(file: str, tests: list[str], base: str, tree: Path, tools: Path) -> str:
    """The report of the mutants of ``file`` that survive ``tests``."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow and not long", *tests]
    config, session = tree.parent / "session.toml", tree.parent / "session.sqlite"
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(file)}\ntimeout = {TIMEOUT_SECONDS}\nexcluded-modules = []\n"
        f"test-command = {json.dumps(shlex.join(command))}\n"
        f'[cosmic-ray.distributor]\nname = "local"\n[cosmic-ray.filters.git-filter]\nbranch = {json.dumps(base)}\n'
    )
    session.unlink(missing_ok=True)
    names = str(config), str(session)
    output_of(str(tools / "cosmic-ray"), "baseline", names[0], cwd=tree)  # the tests must be green without a mutant
    output_of(str(tools / "cosmic-ray"), "init", *names, cwd=tree)
    output_of(str(tools / "cr-filter-git"), "--config", *names, cwd=tree)
    output_of(str(tools / "cosmic-ray"), "exec", *names, cwd=tree)
    return output_of(str(tools / "cr-report"), "--surviving-only", "--show-diff", names[1], cwd=tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="the commit before the change")
    parser.add_argument("--tools", type=Path, required=True, help="folder of the commands of Cosmic Ray")
    parser.add_argument("--tests", nargs="+", help="the tests to run, where those of the rooms take too long")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        output_of("git", "worktree", "add", "--detach", str(tree), "HEAD")
        os.environ["PYTHONPATH"] = str(tree)
        try:
            for file in changed(options.base):
                tests = options.tests or tests_of(file)
                print(f"{file}: {' '.join(tests)}", flush=True)
                print(mutate(file, tests, options.base, tree, options.tools.absolute()), flush=True)
        finally:
            output_of("git", "worktree", "remove", "--force", str(tree))


if __name__ == "__main__":
    main()
