"""Print what the declarations say into the pages: byte tables, tables and rules of formats, and which family has which file.

A page keeps its prose. What is between `<!-- name -->` and `<!-- /name -->` is generated from the registry.
`python docs/build.py` writes the pages, `--check` only says whether one is out
of date (exit 1).
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import figures
import proof
import shapes
import supply

from rawlog import registry
from rawlog.model.format import Family, Format
from rawlog.model.layout import Layout
from rawlog.model.table import Table
from rawlog.reading.inspect import framing_rules
from tests import every_byte

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "formats"


def formats(family: Family) -> str:
    rows = ["| format | files | what it is | can |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` | `{one.files}` | {one.title} | {', '.join(one.abilities()) or 'recognise'} |"
        for one in family.formats
    ]
    return "\n".join(rows)


def layouts(family: Family) -> str:
    seen: dict[str, Layout] = {}
    for one in family.formats:
        for layout in one.layouts:
            seen.setdefault(layout.name, layout)
    return "\n\n".join(_layout(layout) for layout in seen.values())


def _layout(layout: Layout) -> str:
    rows = [f"### {layout.name} ({layout.size} bytes)", "", "| byte | size | field | type | |", "|---|---|---|---|---|"]
    rows += [
        f"| {layout.at(field.name)} | {field.size} | `{field.name}` | `{field.type}` | {field.note} |"
        for field in layout.fields
    ]
    return "\n".join(rows)


def tables(family: Family) -> str:
    return "\n\n".join(table(one) for one in family.tables)


def table(table: Table) -> str:
    rows = [
        f"### `{table.name}`",
        "",
        f"{table.about[:1].upper()}{table.about[1:]}.",
        "",
        "| column | type | |",
        "|---|---|---|",
    ]
    rows += [f"| {column.name} | `{column.type}` | {column.note} |" for column in table.columns]
    return "\n".join(rows)


def rules(family: Family) -> str:
    kind = family.store_class
    found = [*kind.rules(), *kind.tree_rules(), *kind.replica_rules()]
    for one in family.formats:
        found += [*_framing(one), *one.all_rules]
    rows = []
    for one in sorted(found, key=lambda rule: rule.code):
        rows.append(f"**`{one.code}`** ({one.severity.value})\n\n{one.about}")
    return "\n\n".join(rows)


def _framing(format: Format) -> list[object]:
    return list(framing_rules(format)) if format.can("scan") else []


SECTIONS: dict[str, Callable[[Family], str]] = {
    "formats": formats,
    "layouts": layouts,
    "tables": tables,
    "rules": rules,
}


def rendered(page: str, family: Family) -> str:
    """The page with its generated parts made again."""
    for name, make in SECTIONS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if pattern.search(page):
            content = make(family)
            page = pattern.sub(lambda found, text=content: f"{found[1]}{text}\n{found[2]}", page)
    return page


def systems() -> str:
    """The table of systems in the README."""
    rows = ["| system | files | tables |", "|---|---|---|"]
    for family in registry.families():
        files = ", ".join(f"`{one.name.split('.', 1)[1]}`" for one in family.formats if one.can("scan"))
        names = ", ".join(f"`{table.name}`" for table in family.tables)
        rows.append(f"| {family.title} | {files} | {names} |")
    return "\n".join(rows)


def questions() -> str:
    """The ten questions in the README, from the page that answers them."""
    page = (ROOT / "docs" / "tutorials" / "questions.md").read_text()
    rows = ["| question | command |", "|---|---|"]
    for number, question, command in re.findall(r"(?m)^## (\d+)\. (.+)\n\n```sh\n(.+)\n", page):
        anchor = re.sub(r"[^a-z0-9 -]", "", f"{number}. {question}".lower()).replace(" ", "-")
        shown = re.sub(r"\s+#.*", "", command)
        rows.append(f"| [{question}](docs/tutorials/questions.md#{anchor}) | `{shown}` |")
    return "\n".join(rows)


# Code and the map of rooms ---------------------------------------------------------------------------------------------------


def rooms() -> str:
    """Every module with the first sentence of its docstring, room by room."""
    package = ROOT / "src" / "rawlog"
    lines = []
    for room in sorted(path for path in package.iterdir() if (path / "__init__.py").exists()):
        lines += [f"### `{room.name}/`", "", _about(room / "__init__.py"), "", "| file | what it is |", "|---|---|"]
        for path in sorted(room.rglob("*.py")):
            is_package = path.name == "__init__.py"
            if path == room / "__init__.py" or (is_package and not _about(path)):
                continue
            name = path.parent.relative_to(room).as_posix() + "/" if is_package else path.relative_to(room).as_posix()
            lines.append(f"| `{name}` | {_about(path)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _about(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`])", text)[0].replace("|", "\\|")


# Measurements ---------------------------------------------------------------------------------------------------------------

MEASURED = ROOT / "docs" / "performance.json"


def measurements() -> dict[str, Any]:
    """What `make bench` wrote when the page was made."""
    measured: dict[str, Any] = json.loads(MEASURED.read_text())
    return measured


def machine() -> str:
    """What it was measured on."""
    measured = measurements()
    facts, cases = measured["machine"], measured["cases"]
    loads = [case["load"] for case in cases]
    days = sorted({case["when"][:10] for case in cases})
    shared = (
        " Other programs wanted its cores and caches: rates are lower than on a quiet machine, and ratios are less certain."
        if max(loads) > facts["cores"] + 1
        else ""
    )
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB; {facts['system']}; Python {facts['python']}, "
        f"pyarrow {facts['pyarrow']}, kernels: {facts['kernels']}; {' to '.join(dict.fromkeys((days[0], days[-1])))}. "
        f"The load of the machine was {min(loads):.0f} to {max(loads):.0f} meanwhile.{shared}"
    )


def _clock(case: dict[str, Any]) -> str:
    """Threads gain nothing but time on the wall; all else is compared by processor time."""
    return "wall" if case["case"].startswith("two threads") else "cpu"


def _rate(case: dict[str, Any], way: dict[str, Any]) -> str:
    rate = way["rows"] / way[_clock(case)]["best_s"]
    number = (
        f"{rate / 1e6:.2f} M"
        if rate >= 1e6
        else f"{rate / 1e3:.0f} k"
        if rate >= 1e4
        else f"{rate:,.0f}"
        if rate >= 10
        else f"{rate:.1f}"
    )
    return f"{number} {case['counts']}/s"


def performance() -> str:
    """A row for each case and each way next to rawlog's."""
    rows = ["| case | rawlog | next to | that | its time is |", "|---|---|---|---|---|"]
    for case in measurements()["cases"]:
        work, *others = case["ways"]
        about = f"{case['script']}: {case['case']}, {case['size']:,} {case['unit']}"
        for other, ratio in zip(others, case["ratios"], strict=True):
            value = ratio[_clock(case)]
            is_loss = other["role"] == "peer" and value < 1
            text = f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×"
            name = f"*{other['name']}*" if other["role"] == "limit" else other["name"]
            rows.append(
                f"| {about} | {_rate(case, work)} | {name} | {_rate(case, other)} | {f'**{text}**' if is_loss else text} |"
            )
            about = ""
    return "\n".join(rows)


def chart(role: str) -> str:
    """The ratios to all peers, or limits."""
    bars = [
        figures.Bar(f"{case['script']}: {case['case']} / {ratio['to']}"[:58], ratio[_clock(case)])
        for case in measurements()["cases"]
        for ratio in case["ratios"]
        if ratio["role"] == role
    ]
    bars.sort(key=lambda bar: bar.ratio)
    titles = {
        "peer": "Time of each peer, rawlog's is 1",
        "limit": "Time of each limit, rawlog's is 1: how near rawlog is to it",
    }
    return figures.ratios(titles[role], bars, "takes less than rawlog", "takes more than rawlog")


def refreshed(page: str) -> str:
    """A page outside of docs/formats with its generated parts made again."""
    for name, make in GENERATED.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = pattern.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", page)  # type: ignore[misc]
    return page


GENERATED: dict[str, Callable[[], str]] = {
    "systems": systems,
    "questions": questions,
    "rooms": rooms,
    "machine": machine,
    "performance": performance,
    "licences": supply.licences,
    "json": shapes.page,
    "every-byte": every_byte.table,
    "proof": proof.table,
}
CHARTS = {ROOT / "docs" / "pictures" / f"performance-{role}s.svg": role for role in ("peer", "limit")}


def main(arguments: list[str]) -> int:
    os.environ.pop(registry.VARIABLE, None)  # the pages are about rawlog's own families
    stale = []
    pages: dict[Path, Callable[[str], str]] = {}
    for family in registry.families():
        path = PAGES / f"{family.name}.md"
        if path.exists():
            pages[path] = partial(rendered, family=family)
        else:
            stale.append(f"{path.name}: missing")
    pages |= dict.fromkeys((ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))), refreshed)
    pages |= {path: lambda _, role=role: chart(role) for path, role in CHARTS.items()}  # type: ignore[misc]
    for path, make in pages.items():
        before = path.read_text() if path.exists() else ""
        after = make(before)
        if before != after:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(after)
    print("\n".join(stale) or "all pages are up to date")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
