"""Where the user wrote what a recorded call computes: for the backward pass, the line of the forward operation.

Autograd makes a node before the operator that it differentiates is recorded, and the engine that calls it has no frame of
the user's. So each recorded call notes the numbers of the nodes made since the last one.
"""

from __future__ import annotations

from typing import TypeAlias

from fx2onnx.base.source import SourceLocation
from fx2onnx.torchcompat.frames import ENGINE_CODE, nodes_made, running_node, user_location
from fx2onnx.torchcompat.modules import PATHS

Place: TypeAlias = tuple[SourceLocation | None, str]
"""A line, and the path of the module whose forward has it."""


class ForwardLines:
    """The places of one run's forward operations, by the numbers of their autograd nodes."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._noted = nodes_made()

    def place(self) -> Place:
        """Of the call that is being recorded. What a user's own ``backward`` calls has its own line."""
        node = running_node()
        if node is None:
            place = user_location(), PATHS.current
        else:
            own = user_location(ENGINE_CODE)
            place = self._places.get(node) or (user_location(), PATHS.current)
            place = place if own is None else (own, PATHS.current or place[1])
        made = nodes_made()
        for number in range(self._noted, made):
            self._places[number] = place
        self._noted = made
        return place
