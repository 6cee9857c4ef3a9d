"""What `--json` prints, verb by verb: each is run on samples, and the names and types of what it printed are listed.

The code declares no shapes of its own: what is printed is what `rawlog.VERB` returns. So the page is made by running the verbs; the
test that compares pages fails when a name or a type changes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # docs/build.py runs as a script
from tests.data import calls  # noqa: E402

#: Where a verb has something to say: a directory of one system. `samples` for all others.
SOURCES = {
    **dict.fromkeys(("count", "find", "diff", "convert", "restore", "ingest"), ("samples/kafka",)),
    **dict.fromkeys(("repair", "rebuild"), ("samples/kafka-crashed", "samples/rocketmq")),
    **dict.fromkeys(("erase", "compact"), ("samples/kafka/transaction-open-0", "samples/kafka/compacted-0")),
    "rescue": ("samples/kafka",),
    "extract": ("samples/ambry",),
}
FILE = "samples/kafka/codec-zstd-0/00000000000000000000.log"
#: What has no shape of its own.
ROWS = {
    "query": "One object for each row, with the columns of the statement.",
    "head": "As `cat`.",
    "tail": "As `cat`.",
}
Shape = dict[str, set[str]]


def learn(shape: Shape, value: Any, path: str = "") -> None:
    """Add the names and types of a value. A structure that contains itself is listed once; names that are data are `*`."""
    kind = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}.get(
        type(value), "number"
    )
    if path:
        shape.setdefault(path, set()).add(kind)
    if isinstance(value, list):
        for item in value:
            learn(shape, item, path if path.endswith("[]") else f"{path}[]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            name = name if name.isidentifier() and not path.endswith(DATA) else "*"
            parts = path.split(".")
            if f"{name}[]" in parts:  # explain: children of children
                deeper = ".".join(parts[: parts.index(f"{name}[]") + 1])
                for item in inner:
                    learn(shape, item, deeper)
            else:
                learn(shape, inner, f"{path}.{name}" if path else name)


#: Objects whose names are data: tables, columns, topics.
DATA = ("tables", "counts", "by", "records", "configs", "settings", "properties", "topics", "kinds")


def printed(verb: str) -> list[dict[str, Any]]:
    """The lines of JSON that a verb prints for the samples."""
    from rawlog.cli import cli

    lines = []
    for source in SOURCES.get(verb, ("samples",)):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out", Path(source).name)
            places = {calls.SOURCE: source, calls.SOUND: source, calls.FILE: FILE, calls.OUT: str(out)}
            words = [word for word in calls.fill(calls.CALLS[verb][0], places) if word != "--json"]
            lines += CliRunner().invoke(cli, [verb, *words, "--json"]).stdout.splitlines()
    return [line if isinstance(line, dict) else {"": line} for line in map(json.loads, lines)]


def page() -> str:
    """The part of docs/json.md that lists all shapes."""
    from rawlog.cli import cli

    here = Path.cwd()
    os.chdir(ROOT)
    try:
        parts = []
        for verb in sorted(calls.CALLS):
            if not any("--json" in option.opts for option in cli.get_command(None, verb).params):  # type: ignore[arg-type,union-attr]
                continue
            parts.append(f"### {verb}")
            if verb in ROWS:
                parts.append(ROWS[verb])
                continue
            shapes: dict[str, Shape] = {}
            for line in printed(verb):
                learn(shapes.setdefault(str(line.get("table", "")), {}), line)
            for table, shape in sorted(shapes.items()):
                parts.append(f'Lines with `"table": "{table}"`:' if table else "")
                parts.append("| name | type |\n|---|---|\n" + "\n".join(_row(*item) for item in shape.items()))
        return "\n\n".join(filter(None, parts))
    finally:
        os.chdir(here)


def _row(name: str, kinds: set[str]) -> str:
    said = " or ".join(sorted(kinds - {"null"})) or "null in the samples"
    return f"| `{name}` | {said}{', null' if len(kinds) > 1 and 'null' in kinds else ''} |"
