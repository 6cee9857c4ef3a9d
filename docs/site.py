"""Build the site: `python docs/site.py [TARGET]`, out/site unless another is named. Warnings are errors, links are checked.

The pages of docs/ are copied to TARGET.source, where the reference (docs/reference.py) and the figures (docs/figures.py) are
added; Sphinx makes HTML of all of it. A page that is added to a directory of docs/ is in the navigation without being named anywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import figures
import reference
from sphinx.cmd.build import build_main

import rawlog
from rawlog import registry
from rawlog.model.layout import Layout

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: A map of a sample in the page of its system: path, table, what gives the colour, what a box is.
MAPS = {
    "kafka": ("the partition codec-mixed-0", "samples/kafka/codec-mixed-0", "kafka.batches", "codec", "batch"),
    "rocketmq": ("the commit log of samples/rocketmq", "samples/rocketmq", "rocketmq.messages", "topic", "message"),
    "ambry": ("the log segments of samples/ambry/9", "samples/ambry", "ambry.messages", "kind", "message"),
    "replay": (
        "the recording samples/replay/basic.log",
        "samples/replay/basic.log",
        "replay.entries",
        "version",
        "entry",
    ),
}

#: A partition with several segments, whose offset index is drawn too.
INDEXED = "samples/kafka/segments-by-size-0"


def source_pages() -> dict[str, str]:
    """All pages of the site by name."""
    pages = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    for path in DOCS.rglob("*.ipynb"):
        pages[f"{path.relative_to(DOCS).with_suffix('')}-shown.md"] = notebook(path)
    pages |= {f"reference/{name}": text for name, text in reference.pages().items()}
    pages["samples.md"] = (ROOT / "samples" / "README.md").read_text()
    pages["decisions/index.md"] = "# Decisions\n\nWhy rawlog is as it is.\n\n```{toctree}\n:glob:\n\n0*\n```\n"
    placed = set(re.findall(r"(?m)^([\w/-]+)$", pages["index.md"]))
    guides = [name[:-3] for name in pages if "/" not in name and name[:-3] not in placed | {"index"}]
    pages["index.md"] = pages["index.md"].replace("GUIDES", "\n".join(guides))
    for name in pages:
        pages[name] = with_figures(name, pages[name])
    return pages


def notebook(path: Path) -> str:
    """An executed notebook as a page: its text, its code, and what was shown."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", [])})
            kind = "{raw} html" if "text/html" in data else "text"
            parts.append(f"`````{kind}\n{''.join(data.get('text/html') or data.get('text/plain', []))}\n`````")
    return "\n\n".join(parts) + "\n"


def with_figures(name: str, page: str) -> str:
    """The page with a figure at each layout, and a map of a sample at the top of a format's page."""
    family = Path(name).stem
    if name.startswith("formats/") and family in MAPS:
        title, *_, what = MAPS[family]
        figure = f"![{title}: one box for each {what}](../figures/map-{family}.svg)"
        figure += f"\n\n*{title[0].upper()}{title[1:]}, byte by byte: one box for each {what}.*"
        if family == "kafka":
            figure += f"\n\n![The segments of {INDEXED}, and where their offset indexes point](../figures/map-kafka-index.svg)"
            figure += "\n\n*A partition is a row of segments. The offset index points at the first batch after every 4 KB or so: "
            figure += "a reader jumps to one, and walks on.*"
        page = re.sub(r"(?m)^## ", f"{figure}\n\n## ", page, count=1)
    for layout in layouts():
        heading = f"### {layout.name} ({layout.size} bytes)\n"
        figure = f"\n![{layout.name}: its {layout.size} bytes, 16 in a row](../figures/{figures.slug(layout.name)}-{layout.size}.svg)\n"
        page = page.replace(heading, heading + figure)
    return page


def layouts() -> Iterator[Layout]:
    seen = set()
    for family in registry.families():
        for layout in (layout for one in family.formats for layout in one.layouts):
            if layout.name not in seen and layout.size:
                seen.add(layout.name)
                yield layout


def drawings() -> dict[str, str]:
    """The figures by name."""
    made = {f"{figures.slug(one.name)}-{one.size}.svg": figures.layout(one) for one in layouts()}
    for family, (title, path, table, kind, what) in MAPS.items():
        made[f"map-{family}.svg"] = figures.file_map(title, boxes_of(path, table, kind, what))
    marks: dict[str, list[int]] = {}
    for row in rawlog.read(ROOT / INDEXED, table="kafka.index", columns=["path", "position"]).to_pylist():
        marks.setdefault(os.path.relpath(row["path"], ROOT).replace(".index", ".log"), []).append(row["position"])
    files = boxes_of(INDEXED, "kafka.batches", "codec", "batch")
    made["map-kafka-index.svg"] = figures.file_map(
        "segments and offset index", files, marks, "entry of the offset index"
    )
    return made


def boxes_of(path: str, table: str, kind: str, what: str) -> list[tuple[str, list[figures.Box]]]:
    """The files of a sample with their frames."""
    rows = rawlog.read(ROOT / path, table=table, columns=["path", "position", "size", kind]).to_pylist()
    files = []
    for file, members in groupby(rows, lambda row: row["path"]):
        boxes = [
            figures.Box(
                at := row["position"], row["size"], str(row[kind]), f"{what} at byte {at:,}, {row['size']:,} bytes"
            )
            for row in members
        ]
        files.append((os.path.relpath(file, ROOT), boxes))
    return files


def stage(folder: Path) -> None:
    """Write the pages and figures that changed; remove what is not there any more."""
    wanted = {name: text.encode() for name, text in source_pages().items()}
    wanted |= {f"figures/{name}": text.encode() for name, text in drawings().items()}
    wanted |= {str(path.relative_to(DOCS)): path.read_bytes() for path in DOCS.rglob("*.ipynb")}
    wanted |= {f"pictures/{path.name}": path.read_bytes() for path in (DOCS / "pictures").iterdir()}
    for path in [path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)) not in wanted]:
        path.unlink()
    for name, data in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """The places where a page or style sheet would ask the network for something; a link to follow is not one."""
    asked = re.compile(
        r"""(?:<(?:script|img|iframe|source)[^>]*\ssrc|<link[^>]*\shref)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import"""
    )
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    return [f"{path.relative_to(site)}: {found[0]}" for path in pages for found in asked.finditer(path.read_text())]


def main(arguments: list[str]) -> int:
    os.environ.pop(registry.VARIABLE, None)  # the pages are about rawlog's own families
    target = Path(arguments[0] if arguments else ROOT / "out" / "site").resolve()
    source, doctrees = (target.with_name(f"{target.name}.{name}") for name in ("source", "doctrees"))
    stage(source)
    if target.exists():
        shutil.rmtree(target)
    common = ["-W", "-E", "--keep-going", "-q", "-j", "2", "-c", str(DOCS), "-d", str(doctrees)]
    code = build_main([*common, "-b", "html", str(source), str(target)])
    foreign = loaded_from_elsewhere(target) if code == 0 else []
    if foreign:
        print("\n".join(["something is loaded from elsewhere:", *foreign]), file=sys.stderr)
        return 1
    if code == 0:
        print(f"{sum(1 for _ in target.rglob('*.html'))} pages: {target / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
