"""The picture of a soak: one panel for each kind of resource, its samples and the line that was judged.

matplotlib is the optional extra ``plot``: it is imported here, when a picture is drawn, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentenv.soak.judge import FOUND, Outcome
from agentenv.soak.report import Judged, worst_first

MISSING = "no plot: matplotlib is not installed; pip install 'agentenv[plot]'"
_COLUMNS = 3
_COLOURS = {Outcome.LEAK: "tab:red", Outcome.SLOWER: "tab:red", Outcome.STEADY: "tab:green"}
_MOST_LINES = 50


def draw(judged: Sequence[Judged], path: Path, title: str) -> bool:
    """Draw to a PNG.

    Args:
        judged: All series.
        path: The file to write.
        title: Above everything.

    Returns:
        Whether it was drawn; False where matplotlib is not installed.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    panels: dict[str, list[Judged]] = {}
    for one in judged:
        panels.setdefault(one.series.resource.label, []).append(one)
    rows = max(1, math.ceil(len(panels) / _COLUMNS))
    figure = Figure(figsize=(5.2 * _COLUMNS, 2.6 * rows + 0.6))
    FigureCanvasAgg(figure)
    longest = max((one.series.times_s[-1] for one in judged), default=0.0)
    unit, name = (3600.0, "hours") if longest > 7200 else (60.0, "minutes") if longest > 120 else (1.0, "seconds")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for axis, (label, members) in zip(axes, panels.items(), strict=False):
        _panel(axis, label, worst_first(members), unit, name)
    for axis in list(figure.axes)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title)
    # Fixed margins: computing them takes longer than drawing.
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.5 / (2.6 * rows + 0.6), top=1 - 0.7 / (2.6 * rows + 0.6))
    figure.subplots_adjust(hspace=0.45, wspace=0.2)
    figure.savefig(path, dpi=100, format="png")
    return True


def _panel(axis: Any, label: str, members: Sequence[Judged], unit: float, name: str) -> None:
    worst = members[0]
    for one in members[:_MOST_LINES]:
        times = [t / unit for t in one.series.times_s]
        look: dict[str, Any] = {"color": "tab:blue"} if one is worst else {"color": "tab:gray", "alpha": 0.4}
        axis.plot(times, one.series.values, lw=0.7, **look)
    verdict = worst.verdict
    if verdict.trend is not None:
        ends = [verdict.begins_s, verdict.begins_s + verdict.window_s]
        line = [verdict.trend.start, verdict.trend.end]
        colour = _COLOURS.get(verdict.outcome, "tab:orange")
        axis.plot([t / unit for t in ends], line, color=colour, lw=1.8)
        axis.axvspan(0, ends[0] / unit, color="0.93", lw=0)
    whose = f" ({worst.series.sandbox})" if worst.series.sandbox else ""
    weight = "bold" if verdict.outcome in FOUND else "normal"
    axis.set_title(f"{label}{whose}: {verdict.outcome.value}", fontsize=9, fontweight=weight)
    axis.set_xlabel(name, fontsize=8)
    axis.set_ylabel(worst.series.resource.unit, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.ticklabel_format(useOffset=False, style="plain")
    # From zero: what does not change looks flat, and noise looks as small as it is.
    axis.set_ylim(0, 1.1 * max(max(one.series.values) for one in members[:_MOST_LINES]) or 1.0)
