"""One look for every figure: palette, type, and the way from a matplotlib figure to SVG in the page.

Text stays text in the SVG (``svg.fonttype`` is ``none``): it can be selected, searched and read aloud, any script
that the reader's machine has can be shown, and files are a fifth of the size that outlines give. Layout is measured
in DejaVu Sans, which is wider than the fonts of common systems, so what fits here fits there.

Colours of the theme are written as hexadecimal values that occur nowhere else; in the page each becomes a CSS variable
that dark mode redefines. Written to a file, the same figure keeps its light colours.
"""

from __future__ import annotations

import functools
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
_inside: ContextVar[bool] = ContextVar("ductwork_report_style", default=False)

INK, MUTED, RULE, GRID, CARD, FAINT = "#1b1e24", "#5b6270", "#b9bfca", "#e4e7ec", "#fdfdfe", "#eff1f5"
STRONG = "#0072b2"
# Artists with this id are drawn without smoothing, so that no seams show between neighbouring cells.
CRISP = "crisp"
# Numbers inside coloured cells keep their colour in both modes, as the cells do.
ON_DARK, ON_LIGHT = "#fefefe", "#131416"
SIZE, SMALL = 9.0, 8.0

# Name, light, dark. Okabe and Ito's colours first, Tol's after them; DUCT, fine-tuning and class means have fixed ones.
_SERIES = (
    ("#0072b2", "#4da9e8"),
    ("#d55e00", "#ff8b4d"),
    ("#76797f", "#a9adb5"),
    ("#009e73", "#30c79b"),
    ("#cc79a7", "#e69fc6"),
    ("#8a6a1c", "#cba553"),
    ("#e69f00", "#f3bb41"),
    ("#56b4e9", "#92d2f8"),
    ("#332288", "#a196f2"),
    ("#882255", "#dc759f"),
    ("#44aa99", "#71d7c7"),
    ("#999933", "#cbcb62"),
    ("#117733", "#5fbf7d"),
    ("#aa4499", "#d987cb"),
    ("#661100", "#d08a78"),
    ("#c4ac3c", "#e6d47f"),
)
_GREY = 2
_MARKERS = "osD^vPX<>phd8Hos"
_KNOWN = (
    "duct",
    "finetune",
    "simplecil",
    "replay",
    "icarl",
    "memo",
    "l2p",
    "dualprompt",
    "codaprompt",
    "siprompt",
    "ease",
    "ranpac",
    "joint",
)
_ALIASES = {"coda": "codaprompt", "sprompt": "siprompt", "sprompts": "siprompt", "upperbound": "joint"}
PHASES: Mapping[str, str] = {
    "statistics": "#77aadd",
    "centers": "#77aadd",
    "training": "#ee8866",
    "finetune": "#ee8866",
    "merge": "#44bb99",
    "retrain": "#e3cf6e",
    "transport": "#ff9fb2",
    "evaluate": "#a9a93a",
    "checkpoint": "#93d4f5",
    "other": "#b4b7bd",
}
_MORE_PHASES = ("#c3a6dd", "#8fbf8f", "#d8a47f", "#8fa3bf")
_BREAKS, _NOT_XML = frozenset("\t\n\v\f\r\x85\u2028\u2029"), frozenset(("Cc", "Cs"))
_THEME = {
    INK: ("ink", "#e8eaee"),
    MUTED: ("muted", "#a3a9b5"),
    RULE: ("rule", "#4a505c"),
    GRID: ("grid", "#2c3038"),
    CARD: ("card", "#191c21"),
    FAINT: ("faint", "#242830"),
}

RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ductwork",
    "text.parse_math": False,
    "path.simplify": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SIZE,
    "text.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "lines.solid_capstyle": "round",
    "patch.linewidth": 0.0,
}


class Palette:
    """One colour and one marker for each method, the same in every figure (and for known methods in every report)."""

    def __init__(self, methods: Iterable[str]) -> None:
        names = sorted(set(methods))
        known = {name: _KNOWN.index(key) for name in names if (key := _key(name)) in _KNOWN}
        free = [slot for slot in range(len(_SERIES)) if slot not in known.values()] or list(range(len(_SERIES)))
        others = [name for name in names if name not in known]
        self._slots = known | {name: free[i % len(free)] for i, name in enumerate(others)}

    def colour(self, method: str) -> str:
        return _SERIES[self._slots[method]][0]

    def marker(self, method: str) -> str:
        return _MARKERS[self._slots[method]]

    def css(self, method: str) -> str:
        return f"var(--s{self._slots[method]})"


def class_colours(count: int) -> list[str]:
    """Colours for classes: those of the series but the grey one, from the start again where there are more classes."""
    bright = [light for number, (light, _) in enumerate(_SERIES) if number != _GREY]
    return [bright[i % len(bright)] for i in range(count)]


def phase_colours(phases: Iterable[str]) -> dict[str, str]:
    """A colour for each phase of work: fixed for the usual ones."""
    names = list(dict.fromkeys(phases))
    unknown = [name for name in names if name not in PHASES]
    return {name: PHASES.get(name) or _MORE_PHASES[unknown.index(name) % len(_MORE_PHASES)] for name in names}


def css_variables() -> tuple[str, str]:
    """Declarations of the theme for light and for dark mode."""
    theme = [(name, light, dark) for light, (name, dark) in _THEME.items()]
    series = [(f"s{i}", light, dark) for i, (light, dark) in enumerate(_SERIES)]
    every = [*theme, *series]
    return (
        "".join(f"--{name}:{light};" for name, light, _ in every),
        "".join(f"--{name}:{dark};" for name, _, dark in every),
    )


@contextmanager
def house() -> Iterator[None]:
    """Draw in the style of this module; nothing outside is changed."""
    import matplotlib

    if _inside.get():  # Setting 300 parameters takes as long as drawing: a page does so once.
        yield
        return
    token = _inside.set(True)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            # The browser has fonts for scripts that the measuring font lacks.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            matplotlib.rcParams.update(matplotlib.rcParamsDefault)
            matplotlib.rcParams.update(RC)
            yield
    finally:
        _inside.reset(token)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a function that draws a figure do so in the house style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with house():
            return draw(*args, **kwargs)

    return drawn


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float = SMALL, bold: bool = False) -> float:
    """Width in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=["DejaVu Sans"], size=size, weight="bold" if bold else "normal")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def shorten(text: str, width: float, size: float = SMALL) -> str:
    """``text``, or as much of it as fits into ``width`` points with an ellipsis."""
    text = clean(text)
    if text_width(text, size) <= width:
        return text
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text_width(text[:middle] + "…", size) <= width else (low, middle - 1)
    return text[:low].rstrip(" _-") + "…"


def clean(text: str) -> str:
    """Without characters that XML forbids, and on one line."""
    if text.isprintable():
        return text
    return "".join(" " if c in _BREAKS else c for c in text if c in _BREAKS or unicodedata.category(c) not in _NOT_XML)


def svg(figure: Figure, prefix: str, label: str) -> str:
    """Inline SVG: transparent, colours of the theme as CSS variables, ids made unique by ``prefix``."""
    buffer = io.BytesIO()
    with house():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.S)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="0 0 (\S+) (\S+)"', head)
    assert box is not None
    used = set(re.findall(r"#([A-Za-z][\w.-]*)", body))
    # Text between tags is never touched: it may hold numbers, colours and ids of its own.
    body = re.sub(r"<[^<>]*>", lambda tag: _lean(tag.group(), prefix, used), body)
    body = re.sub(r"\s*\n\s*", "\n", body.replace("<g/>", ""))
    width, height = float(box[1]), float(box[2])
    return (
        f'<svg role="img" aria-label="{escape(clean(label), quote=True)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="max-width:{width * 4 / 3:.0f}px">{body.strip()}'
    )


def _lean(tag: str, prefix: str, used: set[str]) -> str:
    """One tag: short numbers, theme variables, no ids but those that are referred to."""
    tag = tag.replace("xlink:href", "href").replace(" font-family: 'DejaVu Sans', sans-serif;", "")
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    tag = tag.replace(f' id="{CRISP}"', ' shape-rendering="crispEdges"')
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r"(url\(|href=\")#(?=[A-Za-z])", rf"\g<1>#{prefix}", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m.group()):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub(r"#[0-9a-f]{6}\b", lambda m: _VARIABLES.get(m.group(), m.group()), tag)


def _key(method: str) -> str:
    key = re.sub(r"[^a-z0-9]", "", method.lower())
    return _ALIASES.get(key, key)


_VARIABLES = {light: f"var(--{name})" for light, (name, _) in _THEME.items()} | {
    light: f"var(--s{i})" for i, (light, _) in enumerate(_SERIES)
}
