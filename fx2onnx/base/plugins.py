"""Extensions of fx2onnx that installed packages add by entry points.

Nothing is read before something of a group is asked for, and nothing is imported before it is used. A package that fails
costs what it adds and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from fx2onnx.base.errors import UserError, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Result = TypeVar("Result")

TRANSLATIONS = "fx2onnx.translations"
KERNELS = "fx2onnx.kernels"
PATCHES = "fx2onnx.patches"
SOURCES = "fx2onnx.sources"
TARGETS = "fx2onnx.targets"
GROUPS = (TRANSLATIONS, KERNELS, PATCHES, SOURCES, TARGETS)


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of a group."""

    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def package(self) -> str:
        """The distribution that has it, with its version."""
        distribution = self.entry.dist
        return f"{distribution.name} {distribution.version}" if distribution is not None else self.entry.value

    def load(self) -> Any:
        """The object that it names. Raises UserError E603."""
        return self.using(self.entry.load)

    def using(self, load: Callable[[], Result]) -> Result:
        """The object that ``load`` gives, which imports from the package. Raises UserError E603."""
        try:
            return load()
        except Exception as error:  # importing somebody else's package may raise anything
            raise self.unfit(f"loading it raised {type(error).__name__}: {first_line(error)}") from error

    def unfit(self, why: str) -> UserError:
        """The error for what cannot be used."""
        kind = self.entry.group.partition(".")[2]
        name = self.package.partition(" ")[0]
        return UserError(
            "E603",
            f"'{self.name}' of the package {self.package} ({self.entry.group}) cannot be used",
            why=why,
            next=[
                f"update or remove the package: pip install --upgrade {name}, pip uninstall {name}",
                f"docs/extending.md says what {kind} of other packages look like",
            ],
        )


def plugins(group: str) -> tuple[Plugin, ...]:
    """The plugins of a group, by name, as installed packages declare them; no package is imported."""
    return _installed()[group]


def find(group: str, name: str, taken: Iterable[str] = ()) -> Plugin | None:
    """The one of that name, if any. Raises UserError E603 where several packages have it, or it is ``taken``."""
    fitting = [plugin for plugin in plugins(group) if plugin.name == name]
    if len(fitting) > 1:
        others = " and ".join(plugin.package for plugin in fitting[1:])
        raise fitting[0].unfit(f"{others} has that name, too")
    if fitting and name in taken:
        raise fitting[0].unfit("fx2onnx itself has that name")
    return fitting[0] if fitting else None


@lru_cache(maxsize=len(GROUPS))
def import_all(group: str) -> tuple[str, ...]:
    """Import everything of a group, which registers itself. Returns a line for each that cannot be used."""
    problems = []
    for plugin in plugins(group):
        try:
            plugin.load()
        except UserError as error:
            problems.append(f"{error.what}: {error.why}")
    return tuple(problems)


@lru_cache(maxsize=1)
def _installed() -> dict[str, tuple[Plugin, ...]]:
    from importlib.metadata import entry_points

    found = entry_points()
    return {group: tuple(map(Plugin, sorted(found.select(group=group)))) for group in GROUPS}
