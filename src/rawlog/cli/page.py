"""The page of `explain --html`: one self-contained file, bytes on the left and fields on the right, each pointing at the other."""

from __future__ import annotations

from html import escape

from rawlog.core.explain import Node
from rawlog.core.format import File
from rawlog.core.text import printable, to_json

_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2em;color:#1b1f24;background:#fff}
h1{font-size:1.2em;overflow-wrap:anywhere} table{border-collapse:collapse} th{text-align:left;font-weight:600}
td,th{padding:.15em .8em .15em 0;vertical-align:top;border-bottom:1px solid #eaeef2}
td.n,td.h{font-family:ui-monospace,monospace} td.n{text-align:right} td.h{max-width:26em;overflow-wrap:anywhere;color:#57606a}
td.v{font-family:ui-monospace,monospace;max-width:26em;overflow-wrap:anywhere} td.m{color:#57606a;max-width:32em}
tr.top td{font-weight:600;border-top:2px solid #d0d7de} tr:hover td{background:#fff8c5}
details>summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#21262d}tr:hover td{background:#272115}
td.h,td.m{color:#8d96a0}tr.top td{border-color:#30363d}}
"""


def page(file: File, nodes: list[Node]) -> str:
    """The whole page as text."""
    title = f"{printable(file.path)} ({file.format})"
    rows = "".join(_row(depth, node) for top in nodes for depth, node in top.walk())
    heads = "".join(f"<th>{name}</th>" for name in ("position", "name", "type", "value", "meaning", "hex"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></body></html>\n"
    )


def _row(depth: int, node: Node) -> str:
    value = node.value
    text = "" if value is None else printable(value) if isinstance(value, (bytes, str)) else to_json(value)
    cells = (
        ("n", f"{node.position:,}"),
        ("", printable(node.name)),
        ("", printable(node.type)),
        ("v", text),
        ("m", printable(node.meaning)),
        ("h", node.hex),
    )
    body = "".join(
        f'<td class="{kind}"{_indent(depth) if index == 1 else ""}>{_folded(text)}</td>'
        for index, (kind, text) in enumerate(cells)
    )
    return f"<tr{' class=top' if depth == 0 else ''}>{body}</tr>"


def _indent(depth: int) -> str:
    return f' style="padding-left:{depth * 1.2:.1f}em"'


def _folded(text: str) -> str:
    """Long text folds away, whole."""
    if len(text) <= 200:
        return escape(text)
    return f"<details><summary>{escape(text[:96])}…</summary>{escape(text)}</details>"
