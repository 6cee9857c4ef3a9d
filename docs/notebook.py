"""Run the cells of the example notebook and write it with its results: `python docs/notebook.py`. Needs nothing but rawlog and DuckDB.

Results are what a notebook would show: printed text, and of the last expression its table (`_repr_html_`) or its text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "notebook.ipynb"
CELLS = (
    "# rawlog in a notebook\nLogs, rows, findings, explanations and answers are shown as tables. The files are those of `samples/`.",
    'import rawlog\n\nlog = rawlog.open("samples/kafka")\nlog',
    "Rows are read when they are asked for. `to_arrow()` gives all of them; Polars and DuckDB take them as they are.",
    'rawlog.rows("samples/kafka", topic="codec-zstd", columns=["offset", "timestamp", "key", "value"], limit=5)',
    "Jump to an offset, or search in all systems at once.",
    'rawlog.find("key-602", "samples", errors="skip", limit=5, columns=["topic", "partition", "offset", "key"])',
    "Is it healthy? Damage is a finding with a place, never an exception.",
    'rawlog.verify("samples/replay")',
    "The bytes of a batch, field by field:",
    'rawlog.explain("samples/kafka/transactions-0", offset=3)',
    "A question in SQL, answered by DuckDB:",
    (
        'sql = "SELECT topic, count(*) AS records FROM records GROUP BY topic ORDER BY topic"\n'
        'rawlog.query(sql, "samples/kafka", engine="duckdb")'
    ),
    "What a repair would keep and drop:",
    'rawlog.repair("samples/replay", "out/notebook", dry_run=True)',
    'And a page to walk through all of it: `rawlog.browse("samples")` serves it on this machine; [browse](browse.md) says more.',
)


def is_text(cell: str) -> bool:
    return not cell.startswith(("import ", "rawlog.", "sql = "))


def run(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; what it prints and what its last expression is."""
    body = ast.parse(code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102 - our own cells
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
        shown = None if value is None else {"text/plain": [repr(value)]}
        if shown is not None and hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if shown is not None:
        outputs.append({"output_type": "execute_result", "data": shown, "metadata": {}})
    return outputs


def notebook() -> dict[str, Any]:
    """The notebook with the results of its cells, run in the current directory."""
    names: dict[str, Any] = {}
    cells = []
    count = 0
    for number, cell in enumerate(CELLS):
        made: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": cell.splitlines(keepends=True)}
        if is_text(cell):
            cells.append({"cell_type": "markdown", **made})
            continue
        count += 1
        outputs = run(cell, names)
        for one in outputs:
            if one["output_type"] == "execute_result":
                one["execution_count"] = count
        cells.append({"cell_type": "code", **made, "execution_count": count, "outputs": outputs})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    os.chdir(ROOT)
    PAGE.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n")
    print(PAGE)
