"""The page of `report`: what is here, is it healthy, what to do next; then every system and topic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog.model.finding import Findings, Startup
from rawlog.model.groups import Group, Transactions
from rawlog.model.store import Look, Panel
from rawlog.model.text import counted, offset_range, size_text
from rawlog.model.verb import Line, Tone
from rawlog.pages import frame
from rawlog.pages import results as findings
from rawlog.pages.frame import (
    Safe,
    Size,
    bar,
    command,
    details,
    duration,
    facts,
    joined,
    rate,
    table,
    tag,
    text,
    time_text,
    when,
)
from rawlog.pages.results import Cause, Step
from rawlog.reading.profile import Offsets, Profile, Series, Sizes, each_label, merge_profiles

# ----------------------------------------------------------------------------------------------------------------------
# Charts: figures that uPlot draws from data in the page, each with its numbers as a table; and strips of offsets as SVG.


#: So many points a chart has, and so many rows its table.
POINTS, CHART_ROWS = 96, 24
#: How wide a strip of offsets is, in units of its own.
STRIP = 1000


#: Units of a rate, by the least width of a point: name, sign and seconds. A rate per second is hard to read over days.
RATES = (("day", "d", 86_400), ("hour", "h", 3600), ("minute", "min", 60), ("second", "s", 1))


def _outside(far: int, where: str = "this range") -> str:
    """Records that are left out of a time span."""
    has = "has a timestamp" if far == 1 else "have timestamps"
    return f"{counted(far, 'record')} {has} far outside {where}"


def over_time(series: Series, name: str) -> Safe:
    """Records and bytes per second over time."""
    if not series:
        return Safe("")
    near, far = series.usual()
    shown = near.coarse(POINTS)
    width, rows = shown.width, shown.rows()
    starts, records, sizes = _fill_gaps(rows, shown.level)
    unit, sign, seconds = next(rate for rate in RATES if width >= rate[2] or rate[2] == 1)
    data = {
        "kind": "time",
        "x": starts,
        "width": round(width, 3),
        "series": [
            {
                "label": f"records per {unit}",
                "unit": f"records/{sign}",
                "values": [_short(count * seconds / width) for count in records],
            },
            {
                "label": f"bytes per {unit}",
                "unit": f"B/{sign}",
                "values": [_short(size * seconds / width) for size in sizes],
            },
        ],
    }
    coarse = series.coarse(CHART_ROWS)
    lines = [
        (when(start), count, Size(size), _short(count * seconds / coarse.width)) for start, count, size in coarse.rows()
    ]
    heads = (f"from (each {duration(coarse.width)})", "records", "bytes", f"records per {unit}")
    note = f"{_outside(far, 'the range of this chart')}: only in the table." if far else ""
    return figure(data, f"Throughput of {name}", heads, lines, note)


def _fill_gaps(rows: list[tuple[int, int, int]], level: int) -> tuple[list[float], list[int], list[int]]:
    """Buckets in seconds, with empty ones where time went by without records: one at each end of such a time."""
    buckets: list[tuple[int, int, int]] = []
    step = 1 << level
    for row in rows:
        if buckets and row[0] - buckets[-1][0] > step:
            buckets += [(empty, 0, 0) for empty in dict.fromkeys((buckets[-1][0] + step, row[0] - step))]
        buckets.append(row)
    return (
        [round(start / 1e6, 3) for start, _, _ in buckets],
        [value for _, value, _ in buckets],
        [value for _, _, value in buckets],
    )


def of_sizes(sizes: Sizes, name: str) -> Safe:
    """How many messages have which size."""
    rows = sizes.rows()
    if not rows:
        return Safe("")
    labels = [_power(low) for low, _, _ in rows]
    data = {
        "kind": "bars",
        "labels": labels,
        "series": [{"label": "messages", "unit": "messages", "values": [count for *_, count in rows]}],
    }
    total = max(1, sizes.count)
    lines = [
        ("0 B" if not high else f"{low:,} to {high:,} B", count, round(100 * count / total, 2))
        for low, high, count in rows
    ]
    return figure(data, f"Message sizes of {name}", ("size of key and value", "messages", "percent"), lines)


def _power(size: int) -> str:
    """A power of two: `16 KiB`."""
    for unit, least in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= least:
            return f"{size // least} {unit}"
    return f"{size} B"


def figure(
    data: dict[str, Any], title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
) -> Safe:
    """A chart with its table. `note` says what the chart leaves out."""
    source = Safe(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
    plot = tag(
        "div",
        class_="plot",
        role="img",
        tabindex="0",
        aria_label=f"{title}. Arrow keys move through it; a table follows.",
    )
    return tag(
        "figure",
        tag("figcaption", title),
        _legend(data),
        plot,
        tag("p", class_="reading", aria_live="polite"),
        Safe(f'<script type="application/json">{source}</script>'),
        tag("p", note, class_="about") if note else "",
        details("Numbers as a table", table(head, rows, title)),
        class_="chart",
    )


def _legend(data: dict[str, Any]) -> Safe:
    marks = (Safe("<i></i>"), Safe('<i class="two"></i>'))
    return tag(
        "p",
        *(tag("span", mark, line["label"]) for mark, line in zip(marks, data["series"], strict=False)),
        class_="legend",
    )


def strip(offsets: Offsets, name: str) -> Safe:
    """The offsets of a partition as a strip from the first to the last, with its gaps; and the gaps as a table."""
    gaps = offsets.largest()
    if not gaps or offsets.start is None or offsets.stop is None:
        return Safe("")
    first, span = offsets.start, max(1, offsets.covered)
    drawn = [f'<rect class="there" width="{STRIP}" height="20"/>']
    for gap in gaps:
        left, wide = (gap.start - first) * STRIP / span, max(2.0, gap.size * STRIP / span)
        what = text(f"{offset_range(gap.start, gap.stop)} are not there")
        drawn.append(
            f'<rect class="gap" x="{min(left, STRIP - wide):.2f}" width="{wide:.2f}" height="20"><title>{what}</title></rect>'
        )
    missing = f"{counted(offsets.count, 'gap')}, {counted(offsets.missing, 'offset')} not there"
    label = text(f"Offsets {first:,} to {offsets.stop - 1:,} of {name}: {missing}")
    picture = Safe(
        f'<svg class="strip" viewBox="0 0 {STRIP} 20" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )
    lines = [(gap.start, gap.stop - 1, gap.size, when(gap.before), when(gap.after)) for gap in gaps]
    more = f"; the {len(gaps)} largest are listed" if offsets.count > len(gaps) else ""
    ends = tag("p", tag("span", f"{first:,}"), tag("span", f"{offsets.stop - 1:,}"), class_="ends")
    head = ("first missing", "last missing", "offsets", "last record before", "first record after")
    return tag(
        "figure",
        tag(
            "figcaption",
            f"{name}: {counted(offsets.count, 'gap')}, {counted(offsets.missing, 'offset')} not there{more}",
        ),
        picture,
        ends,
        details("Gaps as a table", table(head, lines, f"Gaps of {name}")),
        class_="gaps",
    )


def _short(value: float) -> float:
    """Four digits are enough for a chart."""
    return float(f"{value:.4g}")


#: So many topics of a system get charts of their own, the largest; all are in the table.
TOPICS = 250
#: So many keys, labels of one aspect, partitions and rows of other tables are shown.
KEYS, LABELS, PARTITIONS, ROWS = 10, 12, 200, 300
#: So many strips of gaps are drawn for one topic.
STRIPS = 8


@dataclass(slots=True)
class Topic:
    """A topic, its partitions, and all of them together."""

    name: str
    partitions: dict[int | None, Profile]
    profile: Profile
    size: int = 0


@dataclass(slots=True)
class System:
    """One system: its files, topics, and all its records together."""

    name: str
    title: str
    files: int
    size: int
    topics: list[Topic]
    profile: Profile
    errors: int = 0
    warnings: int = 0


@dataclass(frozen=True, slots=True)
class FormatLine:
    """The files of one format."""

    name: str
    title: str
    files: int
    size: int


@dataclass(slots=True, repr=False)
class Overview:
    """What is at some paths: `verdict`, `findings`, and per system and topic what the records look like. `to_html` makes the page."""

    roots: tuple[str, ...]
    files: int
    size: int
    findings: Findings
    causes: list[Cause] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    systems: list[System] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    transactions: list[Transactions] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    formats: list[FormatLine] = field(default_factory=list)
    #: The command that lists every file.
    listing: str = ""
    created: float = field(default_factory=time.time)

    @property
    def verdict(self) -> str:
        """As `verify` gives it: clean, suspect, damaged or unknown."""
        return self.findings.verdict

    @property
    def records(self) -> int:
        return sum(system.profile.records for system in self.systems)

    def as_json(self) -> dict[str, Any]:
        """The numbers, for machines."""
        return {
            **self.findings.summary(),
            "size": self.size,
            "records": self.records,
            "systems": [
                {
                    "system": system.name,
                    "files": system.files,
                    "size": system.size,
                    "records": system.profile.records,
                    "topics": [_topic_json(topic) for topic in system.topics],
                }
                for system in self.systems
            ],
            "causes": [
                {"code": cause.code, "severity": cause.severity.value, "count": cause.count, "files": cause.files}
                for cause in self.causes
            ],
            "next": [{"text": step.text, "command": step.command} for step in self.steps],
        }

    def to_html(self) -> str:
        """The page, self-contained."""
        return page(self)

    def __repr__(self) -> str:
        what = f"{counted(self.records, 'record')} in {counted(self.files, 'file')}"
        return f"<rawlog.Overview {', '.join(self.roots)}: {self.verdict}, {what}>"

    def _repr_html_(self) -> str:
        """The numbers as a table, for a notebook."""
        from rawlog.model.text import html_table

        rows = [
            (system.title, len(system.topics), system.profile.records, size_text(system.size))
            for system in self.systems
        ]
        return html_table(("system", "topics", "records", "size"), rows, repr(self))


def _topic_json(topic: Topic) -> dict[str, Any]:
    profile = topic.profile
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "records": profile.records,
        "size": topic.size,
        "payload": profile.payload,
        "min_timestamp": profile.low,
        "max_timestamp": profile.high,
        "keys": profile.distinct.count if profile.records - profile.without_key else 0,
        "gaps": sum(partition.offsets.count for partition in topic.partitions.values() if partition.offsets),
    }


def page(view: Overview) -> str:
    """The whole page."""
    title = frame.title_of(view.roots)
    when = time_text(int(view.created * 1_000_000))
    top = frame.heading("report", title, tag("p", f"As of {when}", class_="when"), frame.paths(view.roots))
    content = frame.main(
        findings.verdict(view.findings, view.steps),
        _cards(view),
        _contents(view),
        _findings(view),
        *(_system(view, system) for system in view.systems),
        _groups(view),
        _transactions(view),
        _files(view),
    )
    return frame.document(f"rawlog report: {title}", top, content, has_charts=True)


# The first screen ---------------------------------------------------------------------------------------------------------


def _cards(view: Overview) -> Safe:
    low, high, far = merge_profiles(system.profile for system in view.systems).usual_times()
    topics = sum(len(system.topics) for system in view.systems)
    partitions = sum(len(topic.partitions) for system in view.systems for topic in system.topics)
    lags = [group.lag for group in view.groups if group.lag is not None]
    opened = [transaction for transactions in view.transactions for transaction in transactions.open]
    hanging = sum(transaction.is_hanging for transaction in opened)
    cards = [
        *(("Would a broker start?", *_startup(startup)) for startup in view.findings.startups),
        ("Systems" if len(view.systems) != 1 else "System", *_names(view)),
        ("Size", size_text(view.size), counted(view.files, "file")),
        ("Records", f"{view.records:,}", f"{counted(topics, 'topic')}, {counted(partitions, 'partition')}"),
        (
            "Time span",
            _span(low, high),
            "" if low is None else f"{time_text(low)} to {time_text(high)}" + (f"; {_outside(far)}" if far else ""),
        ),
    ]
    if view.groups:
        cards.append(
            (
                "Consumer groups",
                f"{len(view.groups):,}",
                f"{sum(lags):,} records still to read" if lags else "lag unknown",
            )
        )
    if view.transactions:
        cards.append(("Open transactions", f"{len(opened):,}", f"{hanging:,} hang" if hanging else "none hangs"))
    items = (
        tag("div", tag("dt", name), tag("dd", value), tag("dd", more, class_="more") if more else "")
        for name, value, more in cards
    )
    return tag("dl", *items, class_="cards")


#: So many things that a broker would do are named on a card.
PREDICTIONS = 3


def _startup(startup: Startup) -> tuple[str, str]:
    """Whether a broker would start on the directories of a node, and the first of what it would do."""
    more = [prediction.message for prediction in startup.predictions[:PREDICTIONS]]
    hidden = len(startup.predictions) - len(more)
    where = ", ".join(startup.paths)
    return "yes" if startup.starts else "no", "; ".join([where, *more, *([f"{hidden:,} more"] if hidden > 0 else [])])


def _names(view: Overview) -> tuple[str, str]:
    names = [system.title for system in view.systems]
    return (names[0], "") if len(names) == 1 else (str(len(names)), ", ".join(names))


def _span(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return "unknown"
    return "one moment" if low == high else duration((high - low) / 1e6)


def _contents(view: Overview) -> Safe:
    links = [("findings", "Findings", len(view.causes))]
    links += [(f"system-{system.name}", system.title, len(system.topics)) for system in view.systems]
    links += [("groups", "Consumer groups", len(view.groups))] if view.groups else []
    links += (
        [("transactions", "Transactions", sum(len(transactions.open) for transactions in view.transactions))]
        if view.transactions
        else []
    )
    links += [("files", "Files", view.files)]
    items = (
        tag("li", tag("a", title, " ", tag("span", f"{number:,}"), href=f"#{name}")) for name, title, number in links
    )
    return tag("nav", tag("ul", *items), class_="contents", aria_label="Contents")


def _findings(view: Overview) -> Safe:
    notes = [tag("li", text(note, 500)) for note in view.notes]
    more = tag("ul", *notes, class_="notes") if notes else ""
    about = "One entry per cause: what it means, where it was found, and which command helps. rawlog never changes a source."
    return frame.section("Findings", findings.listing(view.causes), joined([more]), name="findings", about=about)


# Systems and topics -------------------------------------------------------------------------------------------------------


def _system(view: Overview, system: System) -> Safe:
    profile = system.profile
    state = (
        Line(f"{counted(system.errors, 'error')}", Tone.BAD) if system.errors else
        Line(f"{counted(system.warnings, 'warning')}", Tone.CHANGED) if system.warnings else
        Line("no errors, no warnings", Tone.GOOD)
    )  # fmt: skip
    parts: list[Safe] = [
        facts(
            (
                ("State", text(state)),
                ("Files", f"{system.files:,}"),
                ("Size", size_text(system.size)),
                *_numbers(profile),
            )
        )
    ]
    parts.append(
        tag("div", over_time(profile.series, system.title), of_sizes(profile.sizes, system.title), class_="pair")
    )
    parts += [_panel(panel) for panel in view.panels if panel.system == system.name]
    if system.topics:
        parts.append(tag("h3", "Topics"))
        parts.append(_topics_table(system))
        largest = sorted(system.topics, key=lambda topic: (-topic.profile.payload, topic.name))
        parts += [_topic(topic) for topic in largest[:TOPICS]]
        if len(largest) > TOPICS:
            parts.append(
                tag("p", f"{len(largest) - TOPICS:,} smaller topics are only in the table above.", class_="about")
            )
    return frame.section(system.title, *parts, name=f"system-{system.name}")


def _numbers(profile: Profile) -> list[tuple[str, Any]]:
    """What a profile says, in words."""
    if not profile.records:
        return []
    low, high, far = profile.usual_times()
    seconds = 0 if low is None or high is None else (high - low) / 1e6
    usual = profile.records - far
    span = "" if low is None else f"{time_text(low)} to {time_text(high)}"
    pairs: list[tuple[str, Any]] = [
        ("Records", f"{profile.records:,}"),
        ("Time span", span + (f"; {_outside(far)}" if far else "")),
        ("Average throughput", rate(usual, seconds, "records") if seconds else ""),
        ("Average message", f"{profile.sizes.mean:,.0f} B, largest {profile.sizes.largest:,} B"),
    ]
    if profile.frames and profile.stored:
        pairs.append(
            (
                "Batches",
                (
                    f"{profile.frames:,}, {profile.records / profile.frames:,.1f} records "
                    f"and {size_text(profile.stored // profile.frames)} each"
                ),
            )
        )
        ratio = profile.payload / profile.stored
        pairs.append(("Stored bytes", f"{1 / ratio:,.2f} per byte of keys and values" if ratio else ""))
    if profile.without_value:
        pairs.append(("Without a value (tombstones)", f"{profile.without_value:,}"))
    if profile.records_per_key is not None:
        keys, most = profile.distinct.count, profile.records_per_key
        pairs.append(("Different keys", f"about {keys:,}"))
        pairs.append(
            ("Compaction would keep", f"about {min(100.0, 100 / max(most, 1e-9)):.0f} % of the records with keys")
        )
    return pairs


def _topics_table(system: System) -> Safe:
    rows = []
    most = max((topic.profile.records for topic in system.topics), default=1) or 1
    for topic in sorted(system.topics, key=lambda topic: (-topic.profile.records, topic.name)):
        profile = topic.profile
        gaps = sum(partition.offsets.count for partition in topic.partitions.values() if partition.offsets)
        codecs = ", ".join(label for aspect, label, _, _ in each_label(profile) if aspect == "codec")
        rows.append(
            (
                topic.name,
                len(topic.partitions),
                profile.records,
                bar(profile.records / most),
                Size(topic.size or profile.payload),
                round(profile.sizes.mean, 1),
                gaps or None,
                codecs,
                when(profile.low),
                when(profile.high),
            )
        )
    head = ("topic", "partitions", "records", "share", "size", "mean bytes", "gaps", "codec", "first", "last")
    return table(head, rows[:5000], f"Topics of {system.title}", sortable=True, filtered=True, whole=False)


def _topic(topic: Topic) -> Safe:
    profile = topic.profile
    summary = joined(
        (
            tag("span", topic.name, class_="what"),
            tag(
                "span",
                f"{counted(profile.records, 'record')}, {size_text(topic.size or profile.payload)}",
                class_="many",
            ),
        )
    )
    parts: list[Safe] = [
        facts((("Partitions", f"{len(topic.partitions):,}"), *_numbers(profile))),
        tag("div", over_time(profile.series, topic.name), of_sizes(profile.sizes, topic.name), class_="pair"),
        _labels(profile, topic.name),
        _keys(profile, topic.name),
        *_gaps(topic),
    ]
    if len(topic.partitions) > 1 or any(partition.offsets for partition in topic.partitions.values()):
        parts.append(_partitions(topic))
    return details(summary, *parts, class_="topic")


def _labels(profile: Profile, name: str) -> Safe:
    """What the format counts: codecs, producers, operations."""
    tables: list[Safe] = []
    for aspect, frequencies in profile.labels.items():
        rows = frequencies.first(LABELS)
        total = max(1, frequencies.total)
        lines = [
            (label, number, bar(number / total, f"{100 * number / total:.1f} %"), Size(frequencies.sizes.get(label, 0)))
            for label, number in rows
        ]
        more = f", the {LABELS} most frequent" if len(frequencies.counts) > LABELS else ""
        tables.append(
            tag(
                "div",
                tag("h4", f"By {aspect}"),
                table((aspect, "number", "share", "bytes"), lines, f"{name} by {aspect}{more}"),
            )
        )
    return tag("div", *tables, class_="pair") if tables else Safe("")


def _keys(profile: Profile, name: str) -> Safe:
    if not profile.keys:
        return Safe("")
    lines = [
        (key, number, bar(number / max(1, profile.records), f"{100 * number / max(1, profile.records):.2f} %"))
        for key, number in profile.keys.first(KEYS)
    ]
    exact = "" if not profile.keys.missed else f" Numbers are at least these, and at most {profile.keys.missed:,} more."
    note = tag("p", f"Of about {profile.distinct.count:,} different keys.{exact}", class_="about")
    return tag(
        "div",
        tag("h4", "Most frequent keys"),
        note,
        table(("key", "records", "share"), lines, f"Most frequent keys of {name}"),
    )


def _gaps(topic: Topic) -> Iterator[Safe]:
    gapped = [
        (number, profile.offsets)
        for number, profile in topic.partitions.items()
        if profile.offsets is not None and profile.offsets.count
    ]
    if gapped:
        yield tag("h4", "Offset gaps")
        yield tag(
            "p",
            "Compaction and aborted or expired transactions leave gaps; the findings say which are damage.",
            class_="about",
        )
    for number, offsets in sorted(gapped, key=lambda item: -item[1].missing)[:STRIPS]:
        yield strip(offsets, topic.name if number is None else f"{topic.name}-{number}")
    if len(gapped) > STRIPS:
        yield tag("p", f"{len(gapped) - STRIPS:,} more partitions with smaller gaps are in the table.", class_="about")


def _partitions(topic: Topic) -> Safe:
    rows = []
    for number, profile in list(topic.partitions.items())[:PARTITIONS]:
        offsets = profile.offsets
        rows.append(
            (
                number,
                profile.records,
                None if offsets is None else offsets.start,
                None if offsets is None else offsets.stop,
                None if offsets is None else offsets.count,
                None if offsets is None or not offsets.covered else round(100 * profile.records / offsets.covered, 1),
                Size(profile.stored or profile.payload),
                when(profile.low),
                when(profile.high),
            )
        )
    head = (
        "partition",
        "records",
        "first offset",
        "next offset",
        "gaps",
        "present, percent",
        "bytes",
        "first",
        "last",
    )
    more = f", the first {PARTITIONS}" if len(topic.partitions) > PARTITIONS else ""
    return joined((tag("h4", f"Partitions{more}"), table(head, rows, f"Partitions of {topic.name}", sortable=True)))


# What only some systems have ----------------------------------------------------------------------------------------------


def _panel(panel: Panel) -> Safe:
    section = panel.section
    shown = section.rows if section.most is None else section.rows[: section.most]
    rows: Sequence[Sequence[Any]] = shown
    if panel.look is Look.BARS:
        numbers = [_number(row[1]) for row in shown]
        most = max(numbers, default=0) or 1
        rows = [(row[0], bar(number / most, row[1]), *row[2:]) for row, number in zip(shown, numbers, strict=True)]
    more = f", the first {len(shown):,} of {len(section.rows):,}" if len(shown) < len(section.rows) else ""
    where = tag("p", tag("code", panel.path), class_="code") if panel.path else ""
    name = f"{section.title} of {panel.path}" if panel.path else section.title
    listed = table(section.head, rows, f"{name}{more}", filtered=panel.look is not Look.BARS, kind=panel.look.value)
    return tag(
        "div",
        tag("h3", section.title),
        tag("p", panel.about, class_="about") if panel.about else "",
        where,
        listed,
        class_="panel",
    )


def _number(cell: str | Line) -> float:
    shown = cell.text if isinstance(cell, Line) else cell
    plain = shown.replace(",", "")
    return float(plain) if plain.isdigit() else 0.0


def _groups(view: Overview) -> Safe:
    if not view.groups:
        return Safe("")
    most = max((group.lag or 0 for group in view.groups), default=0) or 1
    rows = [
        (
            group.name,
            group.system,
            group.state or "",
            None if group.members is None else len(group.members),
            bar((group.lag or 0) / most, f"{group.lag:,}") if group.lag is not None else "unknown",
            when(group.last_commit),
        )
        for group in sorted(view.groups, key=lambda group: -(group.lag or 0))
    ]
    positions = [
        (
            group.name,
            position.topic,
            position.partition,
            position.committed_offset,
            position.end_offset,
            position.lag,
            position.member or "",
            when(position.commit_time),
        )
        for group in view.groups
        for position in group.positions
    ]
    head = ("group", "system", "state", "members", "lag", "last commit")
    each = ("group", "topic", "partition", "committed", "end", "lag", "member", "last commit")
    more = f"the first {ROWS} of {len(positions):,}" if len(positions) > ROWS else f"{len(positions):,}"
    return frame.section(
        "Consumer groups",
        table(head, rows[:ROWS], "Consumer groups by lag", sortable=True, filtered=True),
        details(
            f"Committed offsets: {more}",
            table(each, positions[:ROWS], "Committed offsets", sortable=True, filtered=True),
        ),
        name="groups",
        about="How many records each group still has to read, by the offsets that it committed.",
    )


def _transactions(view: Overview) -> Safe:
    if not view.transactions:
        return Safe("")
    opened = [
        (transactions.system, transaction) for transactions in view.transactions for transaction in transactions.open
    ]
    opened.sort(key=lambda pair: not pair[1].is_hanging)
    rows = [
        (
            Line("hangs", Tone.BAD) if transaction.is_hanging else Line("open", Tone.CHANGED),
            f"{transaction.topic}-{transaction.partition}",
            transaction.first_offset,
            transaction.producer_id,
            transaction.transactional_id or "unknown",
            transaction.status or "unknown",
            when(transaction.last_time),
        )
        for _, transaction in opened
    ]
    ids = [transactional_id for transactions in view.transactions for transactional_id in transactions.ids]
    aborted = [transaction for transactions in view.transactions for transaction in transactions.aborted]
    states = [
        (
            transactional_id.transactional_id,
            transactional_id.status or "",
            transactional_id.producer_id,
            ", ".join(transactional_id.partitions),
            when(transactional_id.update_time),
        )
        for transactional_id in ids
    ]
    undone = [
        (
            f"{transaction.topic}-{transaction.partition}",
            transaction.start,
            transaction.stop - 1,
            transaction.producer_id,
        )
        for transaction in aborted
    ]
    head = ("state", "partition", "from offset", "producer", "transactional id", "coordinator", "last write")
    advice = [tag("li", text(item, 600)) for item in dict.fromkeys(item.advice for _, item in opened if item.advice)]
    return frame.section(
        "Transactions",
        table(head, rows[:ROWS], "Open transactions", filtered=True) if rows else tag("p", "No transaction is open."),
        tag("ul", *advice, class_="notes") if advice else Safe(""),
        details(
            f"Transactional ids: {len(ids):,}",
            table(("id", "state", "producer", "partitions", "last change"), states[:ROWS], "Transactional ids"),
        ),
        details(
            f"Aborted: {len(aborted):,}",
            table(("partition", "first offset", "last offset", "producer"), undone[:ROWS], "Aborted transactions"),
        ),
        name="transactions",
        about="An open transaction keeps consumers that read committed records waiting. It hangs if its coordinator does not know of it.",
    )


def _files(view: Overview) -> Safe:
    most = max((format.size for format in view.formats), default=1) or 1
    rows = [
        (format.name, format.title, format.files, bar(format.size / most, size_text(format.size)))
        for format in view.formats
    ]
    listed = tag("p", "All of them: ", command(view.listing), class_="helps") if view.listing else Safe("")
    return frame.section(
        "Files", table(("format", "what it is", "files", "size"), rows, "Files by format"), listed, name="files"
    )
