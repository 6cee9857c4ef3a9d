"""The pages of the browser: files, rows, bytes, findings. Each is a function of what was opened and of a query."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawlog import registry
from rawlog.model.errors import OptionError
from rawlog.model.explain import Node
from rawlog.model.finding import Finding, Severity
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import counted, size_text
from rawlog.pages.browser import shell
from rawlog.pages.browser.files import (
    Listing,
    Measures,
    OpenedPaths,
    Scope,
    check_inside,
)
from rawlog.pages.browser.rows import (
    MOST_ROWS,
    ROWS,
    Cursor,
    Page,
    Row,
    cell,
    kind,
    last_rows,
    rows_of,
    whole,
    with_spaces,
)
from rawlog.pages.browser.server import Check, Checks
from rawlog.pages.browser.shell import Query, anchor, key, link
from rawlog.pages.bytes import bytes_and_fields
from rawlog.pages.frame import (
    Safe,
    Size,
    facts,
    joined,
    section,
    table,
    tag,
    text,
    when,
)
from rawlog.pages.results import TONES, VERDICTS, verdict
from rawlog.pages.results import listing as causes_listing
from rawlog.reading.explain import explain_in_file
from rawlog.reading.parts import copies, marks

#: So many lines of a list are on one page.
LINES = 200
#: Of the fields below one field so many are shown, and so many of those that have fields themselves: records of a batch.
SHOWN_FIELDS, SHOWN_RECORDS = 400, 40
#: So many rows of a file are on its own page.
FIRST_ROWS = 50
#: So many bytes are verified when the first page is opened, which waits so many seconds for it; and the seconds in which stores of a page
#: are measured.
VERIFIED_AT_ONCE, HEALTH_SECONDS, MEASURE_SECONDS = 256 << 20, 2.0, 2.0
#: Seconds in which a frame must be found.
SECONDS = 10.0
#: Columns of `records` in the order of their importance.
_FIRST = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class Views:
    """The pages over what was opened."""

    def __init__(self, opened: OpenedPaths, checks: Checks) -> None:
        self.opened, self.checks = opened, checks
        self.measures = Measures()

    def scope(self, query: Query) -> tuple[Listing, Scope]:
        """The files that a query names. AccessError if it names none, or a link that leads elsewhere by now."""
        listing = self.opened.listing()
        scope = listing.scope(query.get("in", ""))
        if scope.file is not None:
            check_inside(self.opened, scope.wide)
        return listing, scope

    # Files ------------------------------------------------------------------------------------------------------------

    def files(self, query: Query) -> str:
        """A directory with its stores and files, or a file."""
        listing, scope = self.scope(query)
        if scope.file is not None:
            return self._file(query, listing, scope, scope.file)
        folder = listing.folders[scope.name]
        here = listing.store_at(scope.name)
        stores = [store for store in listing.stores_below(scope.name) if store is not here]
        wanted = query.get("q", "").lower()
        parts: list[Safe] = [
            shell.notes((*listing.left_out, *_lake_notes(self.opened))) if not scope.name else Safe("")
        ]
        parts.append(_cards(scope, listing.stores_below(scope.name)))
        if not scope.name:
            parts.append(self._health(listing, scope))
        if stores:
            parts.append(self._stores(query, listing, stores, wanted))
        parts.append(self._folder(query, listing, scope.name, [*folder.folders], [*folder.files], wanted))
        parts.append(section("Search", shell.search(query, scope.tree.tables, RECORDS.name)))
        title = _store_title(here) if here is not None else scope.name or ", ".join(self.opened.paths)
        return shell.page(title, scope.name, *parts, here="files")

    def _health(self, listing: Listing, scope: Scope) -> Safe:
        """Whether all is well. What is small is verified now, in the background; else a link starts it."""
        check = self.checks.get("")
        if check is None and 0 < scope.tree.size <= VERIFIED_AT_ONCE:
            check = self.checks.start("", replace(scope.tree, roots=self.opened.paths))
            check.wait(HEALTH_SECONDS)
        more = anchor("all findings", link("findings"))
        if check is None:
            start = anchor(joined(("Verify ", size_text(scope.tree.size))), link("findings", start=1), class_="button")
            return section("Health", tag("p", "Not verified yet. ", start), name="health")
        if check.findings is None:
            words = text(check.failure) if check.failure else "Verification is under way. "
            return section("Health", tag("p", words, "" if check.failure else more), name="health")
        title, sentence, tone = VERDICTS[check.findings.verdict]
        badge = tag("span", title, class_=f"badge {tone}")
        numbers = (("error", check.findings.errors), ("warning", check.findings.warnings))
        counts = ", ".join(counted(number, name) for name, number in numbers if number)
        return section("Health", tag("p", badge, f" {sentence} ", f"{counts}; " if counts else "", more), name="health")

    def _stores(self, query: Query, listing: Listing, stores: Sequence[Store], wanted: str) -> Safe:
        named = [(_store_title(store), listing.folder_of(store), store) for store in stores]
        chosen = [row for row in named if wanted in row[0].lower() or wanted in row[1].lower()]
        start = query.number("stores", 1 << 31) or 0
        titles = {row[0] for row in chosen[start : start + LINES]}
        replicas = marks(copies(store for title, _, store in named if title in titles))
        head = (
            *("partition or store", "system", "records", "start offset", "end offset", "size", "files", "changed"),
            *("findings", "in"),
        )
        until = time.monotonic() + MEASURE_SECONDS
        measures = {store.path: self.measures.of(store, until) for _, _, store in chosen[start : start + LINES]}
        rows = [
            (
                anchor(text(title), link("at", in_=name)),
                store[0].system,
                measures[store.path].records,
                measures[store.path].start,
                measures[store.path].end,
                Size(store.size),
                len(store),
                when(int(store.modified * 1_000_000)) if store.modified else None,
                self._badge([finding for file in store for finding in self.checks.findings_in(file.path)]),
                joined((text(name, 120), tag("span", f" {replicas[store.path]}", class_="soft")))
                if store.path in replicas
                else text(name, 120),
            )
            for title, name, store in chosen[start : start + LINES]
        ]
        shown = _table(head, rows, "Partitions and stores")
        return section(
            "Partitions and stores",
            _filter(query),
            shown,
            _more(query, "at", "stores", start, len(chosen)),
            name="stores",
        )

    def _folder(
        self, query: Query, listing: Listing, name: str, folders: Sequence[str], files: Sequence[str], wanted: str
    ) -> Safe:
        entries = [(inner, True) for inner in sorted(folders)] + [(inner, False) for inner in sorted(files)]
        chosen = [entry for entry in entries if wanted in entry[0].lower()]
        start = query.number("files", 1 << 31) or 0
        rows: list[tuple[Any, ...]] = []
        for last, is_folder in chosen[start : start + LINES]:
            full = f"{name}/{last}" if name else last
            where = anchor(text(f"{last}/" if is_folder else last, 120), link("at", in_=full))
            if is_folder:
                rows.append((where, "directory", None, None, None, None, None))
                continue
            file = listing.files[full]
            state = file.problem or file.place.state
            rows.append(
                (
                    where,
                    file.format or "unknown",
                    Size(file.size),
                    file.place.start_offset,
                    when(int(file.modified * 1_000_000)) if file.modified else None,
                    self._badge(self.checks.findings_in(file.path)),
                    state,
                )
            )
        head = ("name", "format", "size", "first offset", "changed", "findings", "state")
        return section(
            "Here",
            _filter(query) if len(entries) > 20 else Safe(""),
            _table(head, rows, "Files and directories"),
            _more(query, "at", "files", start, len(chosen)),
            name="here",
        )

    def _file(self, query: Query, listing: Listing, scope: Scope, file: File) -> str:
        format = registry.formats().get(str(file.format))
        pairs = [
            ("Format", f"{file.format}: {format.title}" if format else "not of any known format"),
            ("Size", f"{size_text(file.size)} ({file.size:,} bytes)"),
            ("First offset", file.place.start_offset),
            ("Changed", when(int(file.modified * 1_000_000)) if file.modified else None),
            ("Topic", file.place.topic),
            ("Partition", file.place.partition),
            ("State", file.place.state),
            ("Problem", file.problem),
        ]
        parts = [section("File", facts(pairs))]
        if format is not None and file.problem is None:
            if format.tables and scope.default_table.name in {table.name for table in format.tables}:
                parts.append(self._first_rows(query, listing, scope))
            if format.tables:
                parts.append(section("Search", shell.search(query, scope.tree.tables, scope.default_table.name)))
            if format.can("explain"):
                parts.append(section("Bytes", _byte_form(scope.name)))
        parts.append(self._findings_section(listing, self.checks.findings_in(file.path)))
        return shell.page(scope.name.rpartition("/")[2], scope.name, *parts, here="files")

    def _first_rows(self, query: Query, listing: Listing, scope: Scope) -> Safe:
        """The first rows of a file, and the way to all of them."""
        table = scope.default_table
        page = rows_of(listing, scope, table, query.selection(), cursor=None, most=FIRST_ROWS)
        return section(
            f"Rows of {table.name}",
            shell.notes(list(page.notes)),
            self._rows(listing, page, table, Query({"in": scope.name})),
            self._turn(Query({"in": scope.name}), scope, table, page),
            name="rows",
        )

    def _findings_section(self, listing: Listing, findings: Sequence[Finding]) -> Safe:
        if not findings:
            return Safe("")
        return section("Findings", self._places(listing, findings), name="findings")

    def _badge(self, findings: Sequence[Finding]) -> Safe:
        serious = [finding for finding in findings if finding.severity is not Severity.INFO]
        if not serious:
            return Safe("")
        worst = min(serious, key=lambda finding: list(Severity).index(finding.severity)).severity
        return tag("span", counted(len(serious), worst.value if len({finding.severity for finding in serious}) == 1 else "finding"),
                   class_=f"badge {TONES[worst]}")  # fmt: skip

    # Rows -------------------------------------------------------------------------------------------------------------

    def rows(self, query: Query) -> str:
        """Rows of a table from a place on, or those that a search finds; the next page goes on from there."""
        listing, scope = self.scope(query)
        table = registry.table_named(query["table"]) if "table" in query else scope.default_table
        most = query.number("n", MOST_ROWS) or ROWS
        selection = query.selection(listing.tree if table is RECORDS else None)
        if "last" in query:
            page = last_rows(scope, table, selection, most)
        else:
            cursor = Cursor.parse(query["cursor"]) if "cursor" in query else None
            page = rows_of(listing, scope, table, selection, cursor=cursor, most=most)
        for name in selection.unused(table):
            page.note(f"{name.replace('_', ' ')} does not change {table.name}: it has no column for it")
        if "decode" in query and table is not RECORDS:
            page.note(f"only the table records is decoded, not {table.name}")
        content = (
            shell.notes(list(page.notes)),
            section(
                f"Rows of {table.name}",
                self._rows(listing, page, table, query),
                self._turn(query, scope, table, page),
                name="rows",
            ),
            section("Search", shell.search(query, scope.tree.tables, table.name)),
        )
        title = f"{table.name} of {scope.name or 'all files'}"
        return shell.page(title, scope.name, *content, here="rows")

    def _rows(self, listing: Listing, page: Page, table: Table, query: Query) -> Safe:
        decode = query.get("decode")
        if not page.rows:
            is_search = bool(query.keys() - {"in", "table", "n", "last", "decode"})
            none = "There is no such row." if is_search else "There are no rows."
            return tag("p", "No such row was found so far." if page.is_late else none, role="status")
        names = _columns(table, page.rows[0].values)
        framed = page.rows[0].file is not None
        heads = [tag("th", "bytes", scope="col", class_="n")] if framed else []
        heads += [tag("th", name, scope="col", class_=kind(page.rows[0].values[name])) for name in names]
        lines = []
        shown: set[Finding] = set()
        by_path: dict[str, list[Finding]] = {}
        for finding in page.findings:
            by_path.setdefault(str(finding.path), []).append(finding)
        for row in page.rows:
            here = _findings_of(row, by_path, self.checks) if row.file is not None else []
            cells = [tag("td", cell(row.values[name]), class_=kind(row.values[name])) for name in names]
            if row.file is not None:
                number = row.values.get("offset") if table is RECORDS else None
                where = link("bytes", in_=listing.names[row.file.path], frame=row.position, row=number, decode=decode)
                cells.insert(0, tag("td", anchor(f"{row.position:,}", where), class_="n"))
            lines.append(tag("tr", *cells, data_row=True, class_="damaged" if here else None))
            for finding in here:
                if finding not in shown:
                    shown.add(finding)
                    message = joined(
                        (
                            tag("span", finding.severity.value, class_=f"badge {TONES[finding.severity]}"),
                            " ",
                            text(finding.message),
                        )
                    )
                    lines.append(
                        tag(
                            "tr",
                            tag("td", message, " ", tag("code", finding.code), colspan=len(heads)),
                            class_="finding",
                        )
                    )
        caption = f"{counted(len(page.rows), 'row')} of {table.name}"
        grid = tag(
            "table",
            tag("caption", caption, class_="sr"),
            tag("thead", tag("tr", *heads)),
            tag("tbody", *lines),
            class_="rows",
        )
        return tag("div", grid, class_="scroll tall", tabindex="0", role="region", aria_label=caption)

    def _turn(self, query: Query, scope: Scope, table: Table, page: Page) -> Safe:
        """What comes next: the next page, the end, export."""
        plain = {name: value for name, value in query.items() if name not in ("cursor", "last", "n")}
        skipping = {"errors": "skip"} if page.has_damage else {}
        parts = []
        if page.next is not None:
            label = "Search on" if page.is_late else "Next page"
            parts.append(
                anchor(
                    joined((label, " ", key("n"))),
                    link("rows", {**plain, "n": query.get("n")}, cursor=page.next),
                    data_key="n",
                    class_="button",
                )
            )
            if page.is_late:
                parts.append(
                    tag("span", f"{size_text(page.searched)} were searched in the time that a page has.", role="status")
                )
        elif "last" not in query and page.rows:
            parts.append(tag("span", "These are the last rows.", class_="soft"))
        if registry.formats_with(table) and "last" not in query:
            parts.append(
                anchor(joined(("Last rows ", key("G"))), link("rows", plain, last=1), data_key="G", class_="button")
            )
        exports = with_spaces(
            [
                anchor(
                    label,
                    link("export", {**plain, **skipping}, as_=form, table=table.name),
                    class_="button",
                    data_key="e" if form == "jsonl" else None,
                    download=True,
                )
                for form, label in shell.FORMS
            ]
        )
        sentence = "Export all of them, without what is damaged, as " if skipping else "Export all of them as "
        parts.append(tag("span", sentence, *exports, key("e"), class_="exports"))
        return joined(
            (
                tag("p", *with_spaces(parts), class_="turn"),
                shell.command_line(_command(self.opened, scope, table, query)),
            )
        )

    # Bytes ------------------------------------------------------------------------------------------------------------

    def bytes(self, query: Query) -> str:
        """A frame of a file: its bytes next to its fields; above them, the record that was asked for."""
        listing, scope = self.scope(query)
        if scope.file is None:
            raise OptionError(f"{scope.name or 'everything'}: choose a file to see bytes of")
        file, places = (
            scope.file,
            {name: query.number(name) for name in ("frame", "at", "offset", "number") if name in query},
        )
        if len(places) > 1:
            raise OptionError("one of byte, offset and number, not several")
        begins = "frame" in places
        explained = explain_in_file(
            file,
            scope.wide.files,
            at=places.get("frame", places.get("at")),
            offset=places.get("offset"),
            number=places.get("number"),
            begins=begins,
            seen=_patience(),
        )
        nodes, left_out = bound_nodes(explained.nodes, query.number("row"))
        start = min((node.position for node in explained.nodes), default=0)
        stop = max((node.position + node.size for node in explained.nodes), default=0)
        content: list[Safe] = [_frame_links(scope.name, file, start, stop), shell.notes(left_out)]
        content.append(self._record(listing, scope, file, start, query))
        content.append(self._findings_section(listing, _findings_between(file, start, stop, self.checks)))
        content.append(bytes_and_fields(nodes))
        content.append(section("Go to", _byte_form(scope.name)))
        title = f"{scope.name.rpartition('/')[2]}, bytes {start:,} to {stop - 1:,}" if stop else scope.name
        return shell.page(title, scope.name, *content, here="files")

    def _record(self, listing: Listing, scope: Scope, file: File, start: int, query: Query) -> Safe:
        """The record of an offset in a frame, its values whole."""
        offset = query.number("row")
        if offset is None or not scope.tree.has(RECORDS):
            return Safe("")
        name = listing.names[file.path]
        record_query = Query({"from": str(offset), **({"decode": query["decode"]} if "decode" in query else {})})
        selection = record_query.selection(listing.tree)
        page = rows_of(listing, scope, RECORDS, selection, cursor=Cursor(name, start), most=1)
        if not page.rows or page.rows[0].values["offset"] != offset:
            return Safe("")
        values = page.rows[0].values
        plain = [name for name in _columns(RECORDS, values) if name not in ("key", "value", "headers")]
        parts = [facts((name, cell(values[name])) for name in plain)]
        for side in ("key", "value"):
            parts.append(tag("h3", side))
            parts.append(whole(values[side]))
        if values["headers"]:
            parts.append(tag("h3", "headers"))
            parts.append(
                _table(
                    ("name", "value"),
                    [(text(h["key"]), whole(h["value"])) for h in values["headers"][:200]],
                    "Headers",
                )
            )
        return section(f"Record {offset:,}", *parts, name="record")

    # Findings ---------------------------------------------------------------------------------------------------------

    def findings(self, query: Query) -> str:
        """What verification finds in some files. It runs in the background; the page shows how far it is."""
        from rawlog.verbs.report import causes, next_steps

        listing, scope = self.scope(query)
        check = self.checks.get(scope.name)
        if "start" in query and (check is None or check.is_done):
            check = self.checks.start(
                scope.name, replace(scope.wide if scope.file else scope.tree, roots=self.opened.paths)
            )
        start = anchor(
            joined(("Verify ", size_text(scope.tree.size), " ", key("v"))),
            link("findings", in_=scope.name, start=1),
            class_="button",
            data_key="v",
        )
        title = f"Findings in {scope.name or 'all files'}"
        if check is None:
            about = "These files were not verified yet. Verification reads all of them once, in the background."
            content = [section("Verify", tag("p", about), tag("p", start))]
        elif not check.is_done:
            content = [_progress(check)]
        elif check.findings is None:
            content = [section("Verify", tag("p", text(check.failure), class_="error", role="alert"), tag("p", start))]
        else:
            findings = check.findings
            grouped = causes(findings, self.opened.paths)
            content = [
                verdict(findings, next_steps(findings, grouped, check.tree)),
                section("Places", self._places(listing, findings.items), name="places"),
                section("Findings by cause", causes_listing(grouped), name="findings"),
                tag("p", start),
            ]
        return shell.page(title, scope.name, *content, here="findings")

    def _places(self, listing: Listing, findings: Sequence[Finding]) -> Safe:
        if not findings:
            return tag("p", "No findings.")
        order = sorted(findings, key=lambda finding: list(Severity).index(finding.severity))
        rows = []
        for finding in order[:LINES]:
            name = listing.names.get(finding.path or "")
            where: Any = text(finding.path or "the files together")
            if name is not None:
                to = (
                    link("bytes", in_=name, at=finding.position)
                    if finding.position is not None
                    else link("at", in_=name)
                )
                where = anchor(text(name, 120), to)
            badge = tag("span", finding.severity.value, class_=f"badge {TONES[finding.severity]}")
            rows.append(
                (where, badge, finding.position, finding.offset, text(finding.message), tag("code", finding.code))
            )
        more = tag("p", f"The first {LINES:,} of {len(findings):,}.") if len(findings) > LINES else Safe("")
        return joined((_table(("file", "severity", "byte", "offset", "message", "rule"), rows, "Findings"), more))


# Parts of pages ---------------------------------------------------------------------------------------------------------------


def _progress(check: Check) -> Safe:
    share = 0 if not check.tree.size else min(1.0, check.size / check.tree.size)
    message = f"{size_text(check.size)} of {size_text(check.tree.size)} were verified."
    bar = Safe(f'<progress max="100" value="{share * 100:.0f}" aria-label="Verified"></progress>')
    again = anchor("Show how far it is", link("findings", in_=check.name), class_="button")
    return tag(
        "section", tag("h2", "Verifying"), bar, tag("p", message, role="status"), tag("p", again), data_reload="1"
    )


def _lake_notes(opened: OpenedPaths) -> list[str]:
    from rawlog.lakes.names import is_lake

    return [f"{path} is a lake: ask it with SQL." for path in opened.paths if is_lake(path)]


def _cards(scope: Scope, stores: Sequence[Store]) -> Safe:
    systems = sorted({file.system for file in scope.tree if file.system})
    items = (
        ("Files", f"{len(scope.tree):,}"),
        ("Size", size_text(scope.tree.size)),
        ("Partitions and stores", f"{len(stores):,}"),
        ("Systems", ", ".join(systems) or "none"),
    )
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in items), class_="cards")


def _store_title(store: Store) -> str:
    place = store[0].place
    if place.topic is not None:
        return f"{place.topic}-{place.partition}" if place.partition is not None else place.topic
    return store.path.rstrip("/").rpartition("/")[2] or store.path


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> Safe:
    """A table whose rows the keyboard walks."""
    shown = table(head, rows, caption, whole=False) if rows else tag("p", "Nothing here.", class_="soft")
    return Safe(shown.replace("<tbody><tr>", "<tbody><tr data-row>").replace("</tr><tr>", "</tr><tr data-row>"))


def _filter(query: Query) -> Safe:
    value = shell.attribute(query.get("q", ""))
    box = Safe(f'<input type="search" name="q" value="{value}" autocomplete="off" spellcheck="false" data-key="l">')
    label = tag("label", "Only names with ", box, " ", key("l"))
    return tag(
        "form", shell.hidden_fields({"in": query.get("in", "")}), label, class_="filter", action="at", method="get"
    )


def _more(query: Query, page: str, name: str, start: int, total: int) -> Safe:
    """Links to the other pages of a long list."""
    if total <= LINES:
        return Safe("")
    range_text = f"{start + 1:,} to {min(start + LINES, total):,} of {total:,}"
    parts: list[Safe] = [tag("span", range_text)]
    if start:
        parts.append(anchor("Before", link(page, query, **{name: max(0, start - LINES)}), class_="button"))
    if start + LINES < total:
        parts.append(
            anchor(
                joined(("More ", key("n"))), link(page, query, **{name: start + LINES}), data_key="n", class_="button"
            )
        )
    return tag("p", *with_spaces(parts), class_="turn")


def _byte_form(name: str) -> Safe:
    fields = []
    for field, label, letter in (("at", "Byte", "b"), ("offset", "Offset", "o"), ("number", "Frame number", "")):
        box = Safe(
            f'<input name="{field}" inputmode="numeric" autocomplete="off"{f" data-key={chr(34)}{letter}{chr(34)}" if letter else ""}>'
        )
        fields.append(
            tag("form", shell.hidden_fields({"in": name}), tag("label", tag("span", label, key(letter) if letter else ""), box),
                Safe('<button type="submit">Go</button>'), class_="search small", action="bytes", method="get")
        )  # fmt: skip
    first = anchor("First frame", link("bytes", in_=name), class_="button")
    return tag("div", *fields, first, class_="goto")


def _frame_links(name: str, file: File, start: int, stop: int) -> Safe:
    parts = []
    if start > 0:
        parts.append(
            anchor(
                joined(("Previous frame ", key("p"))),
                link("bytes", in_=name, at=start - 1),
                data_key="p",
                class_="button",
            )
        )
    if stop < file.size:
        parts.append(
            anchor(
                joined(("Next frame ", key("n"))), link("bytes", in_=name, frame=stop), data_key="n", class_="button"
            )
        )
    return tag("p", *with_spaces(parts), class_="turn")


def bound_nodes(nodes: Sequence[Node], offset: int | None) -> tuple[list[Node], list[str]]:
    """The fields of a frame up to a number that a page can show; those of the record with an offset are among them."""
    notes: list[str] = []

    def cut(node: Node) -> Node:
        children = node.children
        most = SHOWN_RECORDS if any(child.children for child in children) else SHOWN_FIELDS
        if len(children) > most + SHOWN_RECORDS:
            # The fields in front of the records, the first ones, and those around the record that was asked for.
            plain = next((at for at, child in enumerate(children) if child.children), 0) if most == SHOWN_RECORDS else 0
            first = min(plain, SHOWN_FIELDS) + most // 2
            chosen = next((at for at, child in enumerate(children) if offset is not None and _is_of(child, offset)), 0)
            start = max(first, chosen - most // 4)
            kept = [*children[:first], *children[start : start + most // 2]]
            notes.append(
                f"{node.name}: {len(children):,} parts, of which {len(kept):,} are shown; `rawlog explain` shows all"
            )
            children = kept
        return replace(node, children=[cut(child) for child in children])

    return [cut(node) for node in nodes], notes


def _is_of(node: Node, offset: int) -> bool:
    return any(child.meaning == f"offset {offset:,}" for child in node.children)


def _patience() -> Callable[[object], None]:
    """What ends the search for a frame when it takes too long."""
    end = time.monotonic() + SECONDS

    def seen(frames: object) -> None:
        if time.monotonic() > end:
            raise OptionError(f"not found within {SECONDS:.0f} seconds: `rawlog explain` has no such limit")

    return seen


def _findings_between(file: File, start: int, stop: int, checks: Checks) -> list[Finding]:
    row = Row({}, file, start, stop - start)
    from rawlog.reading.inspect import RuleChoice, check_file

    findings = check_file(file, RuleChoice(), start=start, stop=stop).findings if stop > start else []
    by_path = {file.path: [finding for finding in findings if finding.position is not None]}
    return _findings_of(row, by_path, checks)


def _findings_of(row: Row, by_path: dict[str, list[Finding]], checks: Checks) -> list[Finding]:
    """The findings at the bytes of a row's frame: of this page, and of verifications before."""
    assert row.file is not None
    findings = dict.fromkeys((*by_path.get(row.file.path, ()), *checks.findings_in(row.file.path)))
    return [
        finding
        for finding in findings
        if finding.position is not None and row.position <= finding.position < row.position + row.size
    ]


def _columns(table: Table, values: Any) -> list[str]:
    if table is RECORDS:
        more = [name for name in values if name not in (*_FIRST, "timestampType")]  # what decoding adds
        return [*(name for name in _FIRST if name in values), *more]
    return list(values)


def _command(opened: OpenedPaths, scope: Scope, table: Table, query: Query) -> list[str]:
    """The command that prints the same rows."""
    names = {
        "from": "--from-offset",
        "to": "--to-offset",
        **{name: f"--{name}" for name in ("since", "until", "topic", "partition", "key", "id", "where", "decode")},
    }
    paths = [scope.file.path] if scope.file is not None else list(opened.paths)
    if scope.file is None and scope.name:
        paths = [_folder_path(scope)]
    parts = ["rawlog", "cat", *paths, *(["--table", table.name] if table is not RECORDS else [])]
    if "text" in query:
        parts = ["rawlog", "find", query["text"], *paths]
    for name, option in names.items():
        if name in query:
            parts += [option, query[name]]
    return [*parts, "--json"]


def _folder_path(scope: Scope) -> str:
    import os

    paths = [file.path for file in scope.tree]
    return (
        os.path.commonpath([os.path.dirname(path) for path in paths]) if paths and "://" not in paths[0] else scope.name
    )
