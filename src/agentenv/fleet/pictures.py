"""Frames of a replayed episode as a file: a GIF that moves, or the last one as PNG. Needs Pillow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentenv.errors import ConfigError, Problem

if TYPE_CHECKING:
    from agentenv.fleet.replaying import Frame

_MOST_FRAMES = 1000


class Pictures:
    """Takes the frames of one episode; ``save`` writes the file."""

    def __init__(self, path: Path, rows: int) -> None:
        """Prepare.

        Args:
            path: Ends in .gif or .png.
            rows: How many frames there may be; of more than 1000, every n-th is taken.

        Raises:
            ConfigError: The name ends otherwise, the folder does not exist, or Pillow is not installed.
        """
        if path.suffix.lower() not in (".gif", ".png"):
            raise _mistake(f"expected a name that ends in .gif or .png, got {str(path)!r}")
        if not path.absolute().parent.is_dir():
            raise _mistake(f"expected a file in a folder that exists, got {str(path)!r}")
        try:
            from PIL import Image
        except ImportError:
            raise _mistake("drawing needs Pillow, which is not installed", "pip install 'agentenv[plot]'") from None
        self._path, self._image = path, Image
        self._moves = path.suffix.lower() == ".gif"
        self._every = -(-rows // _MOST_FRAMES)
        self._rows = rows
        self._frames: list[Any] = []

    def take(self, row: int, render: Callable[[], Frame]) -> None:
        """After the answer of a row: draw it, if it is wanted."""
        if self._moves and (row % self._every == 0 or row == self._rows - 1):
            self._frames.append(self._image.fromarray(render()).quantize(64))
        elif not self._moves and row == self._rows - 1:
            self._frames = [self._image.fromarray(render())]

    def take_last(self, render: Callable[[], Frame]) -> None:
        """The episode parted from its record before its end: draw where it stands, if nothing was drawn."""
        if not self._frames:
            self._frames = [self._image.fromarray(render())]

    def save(self, fps: float) -> int:
        """Write the file; returns how many frames it has."""
        if not self._moves:
            self._frames[-1].save(self._path)
            return 1
        first, *rest = self._frames
        duration_ms = 10 * max(2, round(100 * self._every / fps))  # a GIF counts in hundredths of a second
        first.save(self._path, save_all=True, append_images=rest, duration=duration_ms, loop=0)
        return len(self._frames)


def _mistake(message: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem("argument", "--render", message, hint)])
