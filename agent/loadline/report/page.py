"""HTML pages in one file, without scripts or external resources; for phones and desktops, light and dark."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

COLOURS: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c2024; --soft: #5b6470; --faint: #aab2bd;
  --blue: #2266cc; --orange: #d9730d; --green: #2e8b57; --red: #c92a2a; --edge: #dde1e7; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1d2125; --ink: #e8eaed; --soft: #a3acb8;
  --faint: #5a636e; --blue: #6ea8fe; --orange: #f0a04b; --green: #5fc88f; --red: #ff7b7b; --edge: #30363d; } }
"""
"""Colours of the light and the dark theme, which plots refer to."""
_STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
p { margin: .3rem 0 .8rem; max-width: 60rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .8rem; min-width: 0; }
.narrow { max-width: 46rem; }
.tiles { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin: 1rem 0; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .5rem .8rem; }
.tile b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow: auto; max-height: 48rem; border: 1px solid var(--edge); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--edge); vertical-align: top; }
thead th { position: sticky; top: 0; background: var(--card); white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
tr.marked td { color: var(--red); }
tr:last-child td, tr:last-child th { border-bottom: 0; }
pre { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .8rem; overflow: auto;
  max-height: 32rem; font-size: 13px; }
summary { cursor: pointer; margin: .5rem 0; }
"""


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Build a page. Sections are HTML; title and subtitle are text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{COLOURS}{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(subtitle)}</p>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Build a section with a heading; parts are HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def grid(cards: Iterable[str]) -> str:
    """Lay out cards side by side where the width allows."""
    return '<div class="grid">\n' + "\n".join(cards) + "\n</div>"


def card(title: str, picture: str) -> str:
    """Build a card with a title and a plot, which is HTML."""
    return f'<figure class="card" style="margin:0"><h3>{escape(title)}</h3>{picture}</figure>'


def tiles(numbers: Iterable[tuple[str, str]]) -> str:
    """Build tiles of headline numbers: pairs of value and label."""
    inner = "\n".join(
        f'<div class="tile"><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>'
        for value, name in numbers
    )
    return f'<div class="tiles">\n{inner}\n</div>'


def paragraph(text: str) -> str:
    """Build a paragraph of text."""
    return f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Build preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, *parts: str) -> str:
    """Build a collapsed section; parts are HTML."""
    return f"<details><summary>{escape(title)}</summary>\n" + "\n".join(parts) + "\n</details>"


def facts(rows: Iterable[Sequence[str]]) -> str:
    """Build a table of names and sentences."""
    body = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f'<div class="scroll"><table><tbody>\n{body}\n</tbody></table></div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int], marked: set[int]) -> str:
    """Build a scrollable table; ``numbers`` are right-aligned columns, ``marked`` are highlighted rows."""

    def cells(kind: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{kind}{' class=number' if place in numbers else ''}>{escape(cell)}</{kind}>"
            for place, cell in enumerate(row)
        )

    body = "\n".join(
        f"<tr{' class=marked' if place in marked else ''}>{cells('td', row)}</tr>" for place, row in enumerate(rows)
    )
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    return f'<div class="scroll"><table>{head}\n<tbody>\n{body}\n</tbody></table></div>'
