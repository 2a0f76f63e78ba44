"""Plots as self-contained SVG to embed in a page.

Text is kept as text and colours become CSS variables, so that a plot follows the light or dark theme of the page.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from typing import Any, Final

# Placeholder colours that no figure uses by chance; the page maps each to one colour per theme.
INK: Final = "#110101"
FAINT: Final = "#110102"
BLUE: Final = "#110103"
ORANGE: Final = "#110104"
GREEN: Final = "#110105"
RED: Final = "#110106"
_VARIABLES: Final = {
    INK: "ink",
    FAINT: "faint",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    RED: "red",
}
_SETTINGS: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_WIDTH_IN: Final = 6.4
_THOUSAND: Final = 1_000

_NAME_CHARS_MAX: Final = 28

Times = Sequence[float]
Box = tuple[float, float, float, float]


def available() -> bool:
    """Return True if matplotlib, an extra, is installed."""
    return find_spec("matplotlib") is not None


class Canvas:
    """Figure with one or more stacked panels.

    Args:
        figure: Figure of matplotlib.
        panels: Axes of the figure, top to bottom.
    """

    def __init__(self, figure: Any, panels: Sequence[Any]) -> None:
        self.panels = panels
        self._figure = figure

    def legend(self, columns: int) -> None:
        """Add a legend below the panels."""
        self._figure.legend(loc="outside lower center", ncols=columns)

    def svg(self, title: str) -> str:
        """Render the figure as SVG; ``title`` is its text for screen readers."""
        buffer = io.StringIO()
        self._figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        body = text[text.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'<g id="[^"]*">', "<g>", body)
        body = re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda found: _opening(title, found[1]), body)
        body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), body)  # a tenth of a point
        body = re.sub(r"(font: [^']*)'DejaVu Sans'[^;\"]*", r"\1system-ui, sans-serif", body)
        for colour, variable in _VARIABLES.items():
            body = body.replace(colour, f"var(--{variable})")
        return body


def _opening(title: str, view_box: str) -> str:
    return f'<svg role="img" aria-label="{escape(title)}" {view_box}>'


@contextmanager
def canvas(name: str, heights_in: Sequence[float]) -> Iterator[Canvas]:
    """Create an empty figure; ``name`` makes the ids within its SVG unique on a page."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra whose import takes half a second
    from matplotlib.figure import Figure  # noqa: PLC0415 - part of the same extra

    with mpl.rc_context(_SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH_IN, sum(heights_in)), layout="constrained")
        grid = figure.subplots(len(heights_in), 1, sharex=True, squeeze=False, height_ratios=heights_in)
        yield Canvas(figure, [row[0] for row in grid])


def short_numbers() -> Any:
    """Return an axis format that writes 20,000 as 20k."""
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - an extra, see canvas

    return FuncFormatter(lambda value, _place: f"{value / _THOUSAND:g}k" if value >= _THOUSAND else f"{value:g}")


def time_axis(panel: Any, duration_s: float) -> float:
    """Label the time axis in hours or minutes; return the seconds of the unit."""
    unit_s, unit = (3_600.0, "h") if duration_s > 3.0 * 3_600.0 else (60.0, "min")
    panel.set_xlabel(f"time since the start of the trace, {unit}")
    panel.set_xlim(0.0, max(duration_s, 1.0) / unit_s)
    return unit_s


def name_points(panel: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Write the name of each point at the first of six places next to it that overlaps no other name or point.

    Args:
        panel: Axes with their final limits.
        points: Name and place of each point; one without a name gets none, but is not covered either.
    """
    panel.figure.canvas.draw()
    per_point = panel.figure.dpi / 72.0
    height = 9.0 * per_point
    pixels = [panel.transData.transform((x, y)) for _, x, y in points]
    occupied = [(x - height / 2, y - height / 2, x + height / 2, y + height / 2) for x, y in pixels]
    for (name, at_x, at_y), (x, y) in zip(points, pixels, strict=True):
        if not name:
            continue
        shown = name[:_NAME_CHARS_MAX]
        width = 4.6 * per_point * len(shown)
        left_of_point = -7 - width / per_point
        spots = [(7, -3), (left_of_point, -3), (7, 7), (7, -14), (left_of_point, 7), (7, 18)]
        boxes = [(x + dx * per_point, y + dy * per_point) for dx, dy in spots]
        covered = [
            sum(_overlap((left, low, left + width, low + height), other) for other in occupied) for left, low in boxes
        ]
        best = covered.index(min(covered))
        left, low = boxes[best]
        occupied.append((left, low, left + width, low + height))
        panel.annotate(shown, (at_x, at_y), xytext=spots[best], textcoords="offset points", fontsize=8)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
