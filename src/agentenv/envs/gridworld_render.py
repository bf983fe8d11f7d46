"""Pictures of a GridWorld: text for terminals, pixels for videos and image observations. numpy only, no display.

The floor with its walls, goals and traps is drawn once for a layout; a frame is a copy of it with the agent on top.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentenv.envs.gridworld_layout import Layout

Picture = NDArray[np.uint8]

_FLOOR = (236, 236, 230)
_LINE = (214, 214, 206)
_WALL = (64, 68, 75)
_START = (206, 218, 232)
_GOAL = (72, 160, 96)
_TRAP = (196, 78, 66)
_AGENT = (38, 92, 188)

# Below this a line between tiles would cover too much of the tile.
_LINED_TILE_PX = 6


def draw_text(layout: Layout, agent: int) -> str:
    """Draw one character a cell: A agent, S start, G goal, X trap, # wall, '.' floor; rows end in newlines."""
    marks = {layout.start: "S"}
    marks |= dict.fromkeys(layout.walls, "#") | dict.fromkeys(layout.goals, "G") | dict.fromkeys(layout.traps, "X")
    marks[agent] = "A"
    rows = range(0, layout.rows * layout.columns, layout.columns)
    return "".join("".join(marks.get(cell, ".") for cell in range(row, row + layout.columns)) + "\n" for row in rows)


def draw_floor(layout: Layout, tile_px: int) -> Picture:
    """Draw everything but the agent.

    Args:
        layout: What to draw.
        tile_px: Side of a cell in pixels.

    Returns:
        uint8 RGB of shape (rows * tile_px, columns * tile_px, 3).
    """
    cells = np.empty((layout.rows * layout.columns, 3), np.uint8)
    cells[:] = _FLOOR
    cells[layout.start] = _START
    for members, colour in ((layout.walls, _WALL), (layout.goals, _GOAL), (layout.traps, _TRAP)):
        cells[list(members)] = colour
    picture = cells.reshape(layout.rows, layout.columns, 3).repeat(tile_px, axis=0).repeat(tile_px, axis=1)
    if tile_px >= _LINED_TILE_PX:
        picture[::tile_px] = _LINE
        picture[:, ::tile_px] = _LINE
    return picture


def agent_mask(tile_px: int) -> NDArray[np.bool_]:
    """Return the pixels of a tile that the agent covers: a disc, or the whole tile where a disc would not show.

    Returns:
        bool of shape (tile_px, tile_px, 1), ready to be broadcast over colours.
    """
    if tile_px < _LINED_TILE_PX:
        return np.ones((tile_px, tile_px, 1), np.bool_)
    # The tile's first row and column are line: the disc sits in the middle of the rest.
    off_centre = np.arange(tile_px) - tile_px / 2
    inside: NDArray[np.bool_] = np.hypot(off_centre[:, None], off_centre) <= 0.36 * tile_px
    return inside[:, :, None]


def draw_frame(floor: Picture, mask: NDArray[np.bool_], layout: Layout, agent: int) -> Picture:
    """Return a fresh copy of ``floor`` with the agent on its cell."""
    tile_px = mask.shape[0]
    row, column = divmod(agent, layout.columns)
    frame = floor.copy()
    tile = frame[row * tile_px : (row + 1) * tile_px, column * tile_px : (column + 1) * tile_px]
    np.copyto(tile, _AGENT, where=mask, casting="unsafe")
    return frame
