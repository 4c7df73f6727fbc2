"""What the pages share: one self-contained HTML shell, and text from a policy made harmless and visible.

No script, no font, no picture comes from elsewhere; a policy says that nothing may, should a completion try.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6470; --line: #dfe3e8; --paper: #ffffff; --card: #f7f8fa;
  --series-1: #0072B2; --series-2: #D55E00; --series-3: #009E73; --series-4: #AA4499; --series-5: #B07D00;
  --series-6: #3B9AC9; --series-7: #555555; --up: #00704f; --down: #b04a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4b0; --line: #333a43; --paper: #14171b;
  --card: #1c2026; --series-1: #58b0ee; --series-2: #ff8b42; --series-3: #37c79b; --series-4: #df8bce;
  --series-5: #e3b341; --series-6: #8fd0f5; --series-7: #b5bcc5; --up: #4cd0a5; --down: #ff9d5c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 32px 28px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
h1 { font-size: clamp(20px, 6vw, 28px); line-height: 1.2; overflow-wrap: break-word; margin: 0 0 4px;
  letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 44px 0 12px; }
h3 { font-size: 14px; margin: 24px 0 8px; color: var(--soft); font-weight: 600; }
p { margin: 6px 0 12px; } .soft { color: var(--soft); } a { color: var(--series-1); }
code, pre, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 13px; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 26px; margin: 14px 0 0; padding: 0; }
.facts div { display: flex; flex-direction: column; } .facts dt { color: var(--soft); font-size: 12px; }
.facts dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr)); gap: 14px; }
.grid svg { width: 100%; }
.grid.large { grid-template-columns: repeat(auto-fill, minmax(min(460px, 100%), 1fr)); align-items: start; }
.beside { display: flex; flex-wrap: wrap; gap: 14px 28px; align-items: center; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; min-width: 0; }
.card > header { display: flex; justify-content: space-between; gap: 10px; align-items: baseline; margin-bottom: 6px; }
.card > header b { font-weight: 600; overflow-wrap: anywhere; }
.card > header span { color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap; font-size: 13px; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin: 0 0 14px; }
.tile { flex: 0 1 auto; min-width: min(230px, 100%); } .tile .big { white-space: nowrap;
  font-size: clamp(20px, 7vw, 30px); font-weight: 650; letter-spacing: -.02em; line-height: 1.2;
  font-variant-numeric: tabular-nums; } .tile .arrow { color: var(--soft); font-weight: 400; }
.up { color: var(--up); } .down { color: var(--down); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: 13px; } td.n, th.n { text-align: right; }
td { overflow-wrap: break-word; } td code { overflow-wrap: anywhere; }
.range { color: var(--soft); white-space: nowrap; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 300px; overflow-y: auto; }
.asked { margin: 0 0 14px; } .grid + .asked { margin-top: 28px; }
.turn { border-left: 3px solid var(--line); padding: 1px 0 1px 10px; margin: 8px 0; }
.turn > small { color: var(--soft); display: block; } .turn.said { border-left-color: var(--series-1); }
.control { color: var(--paper); background: var(--series-2); border-radius: 3px; padding: 0 3px; font-size: 11px; }
.chips { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0 0; font-size: 13px; }
.chips span { white-space: nowrap; font-variant-numeric: tabular-nums; }
.tree, .tree ul { list-style: none; margin: 0; padding: 0; } .tree ul { padding-left: 18px; margin-left: 5px;
  border-left: 1px solid var(--line); } .tree li { padding: 1px 0; } .tree > li { display: grid;
  grid-template-columns: 130px minmax(0, 1fr); padding: 6px 0; border-bottom: 1px solid var(--line); }
.tree .slot { color: var(--soft); }
details > summary { cursor: pointer; } footer { margin-top: 48px; color: var(--soft); font-size: 13px; }
@media (max-width: 600px) { body { padding: 20px 14px 40px; } .tree > li { grid-template-columns: 1fr; } }
@media print { pre { max-height: none; } .card { break-inside: avoid; } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LIMIT = 8000
"""Characters of one text that a page shows."""


def page(title: str, body: str) -> str:
    """A whole HTML page that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def escape(value: object) -> str:
    """Any value as text that is safe in HTML, attributes included."""
    return html.escape(_encodable(str(value)), quote=True)


def breakable(name: str) -> str:
    """A name as HTML that a narrow page breaks after its points, slashes and underscores, and nowhere else.

    >>> breakable("advantages.scale")
    'advantages.<wbr>scale'
    """
    return re.sub(r"(?<=[./_])(?=\w)", "<wbr>", escape(name))


def visible(text: str, limit: int = LIMIT) -> str:
    """Text of a policy as HTML: escaped, cut at `limit`, and characters that would hide or act shown by name.

    >>> visible("a<b\\x1b[31m")
    'a&lt;b<span class="control">ESC</span>[31m'
    """
    shown = "".join(_mark(c) for c in text[:limit])
    return shown + (f'<span class="soft"> … {len(text) - limit:,} more characters</span>' if len(text) > limit else "")


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """Labelled values in a row; those that are None or empty are left out."""
    items = [f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs if v not in (None, "")]
    return f'<dl class="facts">{"".join(items)}</dl>'


def rows(head: Iterable[str], body: Iterable[Iterable[str]], numeric: bool = True) -> str:
    """A table; every cell is HTML already. Columns after the first are set right if `numeric`."""
    mark = ' class="n"' if numeric else ""
    top = "".join(f"<th{mark if i else ''}>{cell}</th>" for i, cell in enumerate(head))
    lines = ["".join(f"<td{mark if i else ''}>{cell}</td>" for i, cell in enumerate(line)) for line in body]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{f"<tr>{top}</tr>" if top else ""}{table}</table></div>'


def duration(seconds: float) -> str:
    """Seconds as people say it: '48 s', '3 min 20 s', '2 h 5 min'."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plain(value: object) -> str:
    """A JSON value in a line of text, every digit of it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(plain, value)) + "]" if value else "none"
    return str(value)


NAMES = {0: "NUL", 7: "BEL", 8: "BS", 13: "CR", 27: "ESC", 127: "DEL"}


def _mark(char: str) -> str:
    """One character as HTML: itself if it shows, else its name; line feeds and tabs stay."""
    if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co"):
        return html.escape(char, quote=True)
    return f'<span class="control">{NAMES.get(ord(char), f"U+{ord(char):04X}")}</span>'


def _encodable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()
