"""Print what the declarations say into the pages of docs/formats: byte tables, tables, rules.

A page keeps its prose; what stands between `<!-- name -->` and `<!-- /name -->` is made here from the registry.
`python docs/build.py` writes the pages, `--check` only tells whether one is out of date (exit 1).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from rawlog import registry
from rawlog.core.format import Family, Format
from rawlog.core.layout import Layout
from rawlog.core.tables import Table
from rawlog.reading.inspection import framing_rules

PAGES = Path(__file__).parent / "formats"
README = Path(__file__).parent.parent / "README.md"


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
    return "\n\n".join(_table(table) for table in family.tables)


def _table(table: Table) -> str:
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
    found = [*family.all_group_rules, *family.all_rules]
    found += family.replica_rules() if family.replica_rules is not None else ()
    for one in family.formats:
        found += [*_framing(one), *one.all_rules]
    rows = []
    for one in sorted(found, key=lambda rule: rule.code):
        rows.append(f"**`{one.code}`** ({one.severity.value})\n\n{one.about}")
    return "\n\n".join(rows)


def _framing(format: Format) -> list[object]:
    return list(framing_rules(format)) if format.scan is not None else []


SECTIONS: dict[str, Callable[[Family], str]] = {
    "formats": formats,
    "layouts": layouts,
    "tables": tables,
    "rules": rules,
}


def rendered(page: str, family: Family) -> str:
    """The page with its made parts anew."""
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
        files = ", ".join(f"`{one.name.split('.', 1)[1]}`" for one in family.formats if one.scan is not None)
        names = ", ".join(f"`{table.name}`" for table in family.tables)
        rows.append(f"| {family.title} | {files} | {names} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    stale = []
    for family in registry.families():
        path = PAGES / f"{family.name}.md"
        if not path.exists():
            stale.append(f"{path.name}: missing")
            continue
        before = path.read_text()
        after = rendered(before, family)
        if before != after:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(after)
    before = README.read_text()
    after = re.sub(
        r"(<!-- systems -->\n).*?(<!-- /systems -->)",
        lambda found: f"{found[1]}{systems()}\n{found[2]}",
        before,
        flags=re.DOTALL,
    )
    if before != after:
        stale.append(README.name)
        if "--check" not in arguments:
            README.write_text(after)
    print("\n".join(stale) or "all pages are up to date")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
