"""``Profile``: what exports cost, with every form that it is shown and written in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

from fx2onnx.base.errors import UserError
from fx2onnx.base.targets import check_target
from fx2onnx.files.staging import write_text
from fx2onnx.report.compare import ProfileComparison
from fx2onnx.report.page import page
from fx2onnx.report.profile_data import ProfileData
from fx2onnx.report.trace import chrome_trace, speedscope


class Profile(ProfileData):
    """Measurements of exports, and their views."""

    def table(self) -> str:
        """Phases, operations and lines as text."""
        from fx2onnx.report.table import as_text  # rich is slow to import

        return as_text(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """The documented JSON form."""
        _write(path, json.dumps(self.as_dict(), indent=1) + "\n")

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """For chrome://tracing and Perfetto."""
        _write(path, json.dumps(chrome_trace(self)))

    def to_speedscope(self, path: str | os.PathLike[str]) -> None:
        """For speedscope."""
        _write(path, json.dumps(speedscope(self)))

    def to_html(self, path: str | os.PathLike[str], comparisons: Sequence[ProfileComparison] = ()) -> None:
        """One page that needs nothing beside it. ``comparisons`` with earlier profiles get a view of their own."""
        _write(path, page(self, comparisons))

    def write(self, path: str | os.PathLike[str]) -> None:
        """The form that the end of ``path`` names. Raises UserError E001 for an unknown one."""
        writer(path)(self, path)


_WRITERS: dict[str, Callable[[Profile, str | os.PathLike[str]], None]] = {
    ".speedscope.json": Profile.to_speedscope,
    ".trace.json": Profile.to_chrome_trace,
    ".json": Profile.to_json,
    ".html": Profile.to_html,
    ".txt": lambda profile, path: _write(path, profile.table() + "\n"),
}


def writer(path: str | os.PathLike[str]) -> Callable[[Profile, str | os.PathLike[str]], None]:
    """What writes a profile to a path of this end. Raises UserError E001."""
    name = os.path.basename(os.fspath(path)).lower()
    for suffix, function in _WRITERS.items():
        if name.endswith(suffix):
            return function
    raise UserError("E001", f"'{path}' names no form of a profile", next=f"end it with {', '.join(_WRITERS)}")


def _write(path: str | os.PathLike[str], text: str) -> None:
    write_text(check_target(path, what="the profile"), text)
