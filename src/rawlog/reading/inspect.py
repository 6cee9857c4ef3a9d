"""Files looked at whole, for the `files` and `findings` tables: rules run, frames measured.

Damage never raises here: it becomes a finding with a place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import registry
from rawlog.io.walk import describe, walk
from rawlog.model.errors import AccessError, DataError, RawlogError
from rawlog.model.finding import (
    UNKNOWN,
    Finding,
    Findings,
    Mark,
    Rule,
    Severity,
    is_on_request,
    rule,
)
from rawlog.model.format import (
    MAX_DECOMPRESSED,
    MAX_HEADERS,
    NO_TIME,
    Family,
    File,
    Format,
    Inspection,
    Replicas,
    Spans,
    Want,
)
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.table import FILES, RECORDS
from rawlog.model.text import valid_text
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.store import Panel
    from rawlog.reading.profile import FileProfile


def inspect_file(file: File) -> Findings:
    """All findings on one file alone."""
    return check_file(file, RuleChoice()).finish(RuleChoice())


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """Which rules to run: all, only some, or all but some, by code or by a code's first words; and the limits of reading."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_decompressed: int = MAX_DECOMPRESSED
    max_headers: int = MAX_HEADERS
    #: Whether to account for every offset, too.
    complete: bool = False

    @property
    def asks_completeness(self) -> bool:
        """Whether rules run that are only about what is missing."""
        return self.complete or any(map(is_on_request, self.only))

    def takes(self, code: str) -> bool:
        if is_on_request(code) and not self.asks_completeness:
            return False

        def named(names: Iterable[str]) -> bool:
            return any(code == name or code.startswith(f"{name}.") for name in names)

        return (not self.only or named(self.only)) and not named(self.skip)


@dataclass(slots=True)
class FileCheck:
    """What one pass over a file, or over a split of it, found. Splits of one file merge in order."""

    file: File
    findings: list[Finding] = field(default_factory=list)
    frames: int = 0
    #: What rules remember, by code; and what the checks of the whole store need to know of the file.
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary: Summaries | None = None
    measure: Measure | None = None
    #: What its records look like, if asked.
    profile: FileProfile | None = None
    #: Why the file could not be read to its end.
    error: AccessError | None = None
    #: Whether the split ends where the next one begins. If not, the file must be checked in one.
    fits: bool = True

    def merge(self, following: FileCheck, chosen: RuleChoice) -> bool:
        """Take in the split that follows; False if the file must be checked in one."""
        if not self.fits or not following.fits:
            return False
        rules = {rule.code: rule for rule in rules_of(self.file, chosen)}
        for code, memory in following.memories.items():
            earlier, merge = self.memories.get(code), rules[code].merge
            merged = (
                memory
                if not earlier
                else earlier
                if not memory
                else merge(earlier, memory)
                if merge is not None
                else None
            )
            if merged is None:
                return False
            self.memories[code] = merged
        if self.summary is not None and following.summary is not None:
            self.summary = self.summary.merge(following.summary)
        if self.measure is not None and following.measure is not None:
            self.measure.merge(following.measure)
        if self.profile is not None and following.profile is not None:
            self.profile.merge(following.profile)
        self.findings += following.findings
        self.frames += following.frames
        return self.summary is None or self.summary.rises

    def finish(self, chosen: RuleChoice) -> Findings:
        """The findings on the file as a whole."""
        for frame_rule in rules_of(self.file, chosen):
            memory = self.memories.get(frame_rule.code)
            if frame_rule.finish is not None and memory:
                self.findings += frame_rule.report(
                    frame_rule.finish(memory), path=self.file.path, format=self.file.format
                )
        return Findings(self.findings, files=1, frames=self.frames)


class Summaries:
    """What a pass makes of a file for the checks of each family that compares it with others, by the family's name."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def see(self, frames: Frames) -> None:
        """Show every window to all of them."""
        for part in self.parts.values():
            part.see(frames)

    def close(self) -> Summaries:
        """What is to be kept of them."""
        return Summaries({name: part.close() for name, part in self.parts.items()})

    def merge(self, following: Summaries) -> Summaries:
        """Take in the split that follows."""
        return Summaries({name: part.merge(following.parts[name]) for name, part in self.parts.items()})

    @property
    def rises(self) -> bool:
        """Whether merging gave the right thing."""
        return all(part.rises for part in self.parts.values())


def summaries_of(file: File, format: Format, store: Sequence[File], start: int, stop: int | None) -> Summaries | None:
    """What checks over several files need of this one: of its own family, and of others that look at it."""
    makers = {format.family: format.codec.summary} if format.can("summary") else {}
    for family in registry.families_near([file.system]):
        if family.name != format.family and family.files_for(None, [file]):
            makers[family.name] = family.store_class.summary
    parts = {name: make(file, store, start, stop) for name, make in makers.items()}
    parts = {name: part for name, part in parts.items() if part is not None}
    return Summaries(parts) if parts else None


def family_summaries(summaries: Mapping[str, Summaries], family: Family) -> dict[str, Any]:
    """Of what passes over files found, what one family asked for."""
    return {path: summary.parts[family.name] for path, summary in summaries.items() if family.name in summary.parts}


def family_store(files: Sequence[File], family: Family) -> Store:
    """The files of a store that a family looks at, with what it asked for of them; the same object for everybody."""
    return Store.of(files).share(_family_stores).setdefault(family.name, _make_family_store(Store.of(files), family))


def _family_stores(store: Store) -> dict[str, Store]:
    return {}


def _make_family_store(store: Store, family: Family) -> Store:
    files = family.files_for(None, store)
    part = (family.store_class if files else Store)(files, store.name)
    part.summaries = family_summaries(store.summaries, family)
    return part


def rules_of(file: File, chosen: RuleChoice) -> list[Rule[Inspection]]:
    """The rules for the frames of a file."""
    format = None if file.problem is not None or file.format is None else registry.formats()[file.format]
    if format is None or not format.can("scan"):
        return []
    return [rule for rule in (*framing_rules(format), *format.all_rules) if chosen.takes(rule.code)]


def check_file(
    file: File,
    chosen: RuleChoice,
    seen: Callable[[Frames], None] | None = None,
    *,
    store: Sequence[File] | None = None,
    start: int | None = None,
    stop: int | None = None,
    first: int = 0,
    measure: bool = False,
    profile: FileProfile | None = None,
) -> FileCheck:
    """Run the rules over a file, or over the bytes from `start` to `stop`: one pass, which also makes what checks of its `store` need, and
    measures it, or fills a `profile` of its records, if asked.
    """
    result = FileCheck(file, measure=Measure(file) if measure else None, profile=profile)
    if not start:
        for plain in FILE_RULES:
            if chosen.takes(plain.code):
                result.findings += plain.run(file, path=file.path, format=file.format)
    rules = rules_of(file, chosen)
    format = registry.formats().get(str(file.format))
    if file.problem is not None or format is None or not format.can("scan"):
        return result
    if store is not None and file.place.state is None:
        result.summary = summaries_of(file, format, store, start or 0, stop)
    result.memories = {rule.code: {} for rule in rules}
    end = file.size if stop is None else stop
    limits = chosen.max_decompressed, chosen.max_headers
    try:
        for frames in walk(file, format, start=start, stop=stop, first=first, errors="skip"):
            result.frames += len(frames)
            shared: dict[object, Any] = {}
            for rule in rules:
                view = Inspection(file, format, frames, result.memories[rule.code], *limits, shared, end)
                result.findings += rule.run(view, path=file.path, format=format.name)
            if result.summary is not None:
                result.summary.see(frames)
            if result.measure is not None:
                result.measure.see(frames)
            if profile is not None:
                profile.see(frames)
            if seen is not None:
                seen(frames)
            at_end = stop is None or stop >= file.size
            result.fits = at_end or (frames.status is Status.OK and frames.reached_in_file == stop)
    except DataError as error:
        result.findings.append(_header_finding(format, error, file))
    except AccessError as error:
        result.error = error
        why = str(error).removeprefix(f"{file.path}: ")
        result.findings.append(Finding(unreadable.code, Severity.ERROR, file.path, format.name, None, None, None, why))
    if result.summary is not None:
        result.summary = result.summary.close()
    if profile is not None:
        profile.close()
    return result


def _header_finding(format: Format, error: DataError, file: File) -> Finding:
    return Finding(
        f"{format.name}.header",
        Severity.ERROR,
        file.path,
        format.name,
        error.position or 0,
        None,
        None,
        error.message,
        None if error.expected is None else str(error.expected),
        None if error.found is None else str(error.found),
    )


@rule("rawlog.file.unreadable", Severity.ERROR)
def unreadable(file: File) -> Iterator[Mark]:
    """The file is there and cannot be read: permissions, a dangling link, a device.

    Nothing in it was looked at. Copy it with sufficient rights, or repair the link, and verify again.
    """
    if file.problem is not None:
        yield Mark(file.problem)


@rule(UNKNOWN, Severity.INFO)
def unknown_format(file: File) -> Iterator[Mark]:
    """No format recognises the file, by name, place or first bytes, so nothing in it was checked.

    If it should be one of the files rawlog reads, name its format with `--as`.
    """
    if file.problem is None and file.format is None:
        yield Mark("not a file of any known format", size=file.size)


FILE_RULES: tuple[Rule[File], ...] = (unreadable, unknown_format)


def framing_rules(format: Format) -> tuple[Rule[Inspection], ...]:
    """The rules that every format with frames has: its header, damage between frames, an unfinished last frame."""

    def header(seen: Inspection) -> Iterator[Mark]:
        """The file's own header is missing, cut, damaged or of a version that does not exist.

        What follows it is read where frames can be found without it. Restore the header from another copy of the file.
        """
        error = seen.frames.error
        if seen.frames.status is Status.BAD_HEADER and error is not None:
            yield Mark(error.message, error.position or 0, expected=error.expected, found=error.found)

    def framing(seen: Inspection) -> Iterator[Mark]:
        """A frame's own length or version cannot be right, so the frames after it had to be searched for.

        The finding covers the bytes up to the next credible frame, or to the end of the file. Their content is lost unless
        another copy has it; `rawlog repair` keeps all that follows.
        """
        frames, memory = seen.frames, seen.memory
        open_mark: Mark | None = memory.pop("mark", None)
        if open_mark is not None:
            assert open_mark.position is not None
            yield _with_size(open_mark, frames.base - open_mark.position)
        if not frames.status.is_damage or frames.status is Status.BAD_HEADER:
            return
        error = describe(format, frames, seen.file.path)
        mark = Mark(
            error.message,
            position=frames.reached_in_file,
            expected=error.expected,
            found=error.found,
        )
        if frames.last:
            yield _with_size(mark, (seen.file.size if seen.end is None else seen.end) - frames.reached_in_file)
        else:
            memory["mark"] = mark

    def unfinished(seen: Inspection) -> Iterator[Mark]:
        """The file ends inside its last frame. That is normal in a live log, and what a crash leaves.

        Everything before it is whole. A system that starts on the file cuts the rest off.
        """
        frames = seen.frames
        if frames.last and frames.status is Status.TRUNCATED:
            left = (seen.file.size if seen.end is None else seen.end) - frames.reached_in_file
            yield Mark(f"the last {left:,} bytes are an unfinished frame", frames.reached_in_file, left)

    return (
        rule(f"{format.name}.header", Severity.ERROR)(header),
        rule(f"{format.name}.framing", Severity.ERROR)(framing),
        rule(f"{format.name}.unfinished", Severity.INFO)(unfinished),
    )


def _with_size(mark: Mark, size: int) -> Mark:
    return Mark(mark.message, mark.position, size, mark.offset, mark.expected, mark.found)


def inspect_group(
    files: Sequence[File], chosen: RuleChoice | None = None, panels: list[Panel] | None = None
) -> Findings:
    """What the rules over one group of files find; the files alone are not looked at. `panels` gets what families show of the group."""
    chosen = chosen or RuleChoice()
    result = Findings()
    for family in registry.families_near(file.system for file in files):
        store = family_store(files, family)
        if not store:
            continue
        for store_rule in store.rules():
            if chosen.takes(store_rule.code):
                result.items += _run_guarded(store_rule, store)
        if panels is not None:
            with contextlib.suppress(RawlogError):  # what cannot be read is a finding already
                panels += store.overview()
        if chosen.complete:
            with contextlib.suppress(RawlogError):  # what cannot be read is a finding already
                result.accounts += store.accounts()
        with contextlib.suppress(RawlogError):  # what cannot be read is a finding already
            result.predictions += store.predictions()
    return result


def inspect_replicas(replicas: Replicas, rules: Sequence[Rule[Any]], chosen: RuleChoice | None = None) -> Findings:
    """What rules over two replicas find; neither is looked at alone."""
    chosen = chosen or RuleChoice()
    result = Findings()
    for replica_rule in rules:
        if chosen.takes(replica_rule.code):
            result.items += _run_guarded(replica_rule, (*replicas.a, *replicas.b), replicas)
    return result


def _run_guarded(rule: Rule[Any], files: Sequence[File], subject: Any = None) -> list[Finding]:
    """The findings of a rule over several files; a file that cannot be read any more is one of them."""
    try:
        return list(rule.run(files if subject is None else subject, path=None, format=None))
    except RawlogError as error:
        where = getattr(error, "path", None) or files[0].path
        return [Finding(unreadable.code, Severity.ERROR, where, None, None, None, None, str(error).splitlines()[0])]


def inspect_tree(tree: Tree, chosen: RuleChoice | None = None, summaries: Mapping[str, Any] | None = None) -> Findings:
    """What the rules over several files find in a tree; the files alone are not looked at. `summaries` are what passes over files found."""
    chosen = chosen or RuleChoice()
    result = Findings()
    for family in registry.families_near(file.system for file in tree):
        files = tree.store_for(family)
        if not files:
            continue
        files.summaries = family_summaries(summaries or {}, family)
        for tree_rule in family.store_class.tree_rules():
            if chosen.takes(tree_rule.code):
                result.items += _run_guarded(tree_rule, files)
        with contextlib.suppress(RawlogError):  # what cannot be read is a finding already
            if chosen.complete:
                result.accounts += family.store_class.absent(files)
            result.startups += family.store_class.startups(files)
    return result


def inspect_files(tree: Tree, chosen: RuleChoice | None = None) -> Findings:
    """Every finding on each file alone. The stores of the tree then have summaries, so that `inspect_group` need not read data again."""
    chosen = chosen or RuleChoice()
    result = Findings()
    for file in tree:
        store = tree.group_of(file)
        checked = check_file(file, chosen, store=store)
        result.add(checked.finish(chosen))
        if checked.summary is not None:
            store.summaries[file.path] = checked.summary
    return result


class Measure:
    """The row of `files` for a file, from windows of it that are being walked for another reason, damage skipped."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._total = _Total()
        self._ended = False

    def see(self, frames: Frames) -> None:
        """Take the next window; those after damage do not count."""
        if not self._ended:
            self._total.add(frames, self.file, registry.formats()[str(self.file.format)])
            self._ended = frames.last or frames.status.is_damage

    def merge(self, following: Measure) -> None:
        """Take in the split that follows; what comes after damage does not count."""
        if self._total.state == "ok":
            self._total.merge(following._total)
            self._ended = following._ended

    def values(self) -> dict[str, Any]:
        """The row. The file is read for it if the walk did not come to an end."""
        return file_values(self.file, self._total.row(self.file) if self._ended else None)


def file_rows(values: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of the table `files`, each as `file_values` gives it, as one batch: a batch for each would cost more than a small file."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(values, schema=FILES.schema)


def file_values(file: File, measured: dict[str, Any] | None = None) -> dict[str, Any]:
    """The row of the table `files` for a file: read once, checksums included, nothing decoded that need not be. Times are microseconds.

    `measured` is what is known of its frames already.
    """
    row: dict[str, Any] = {
        "path": valid_text(file.path),
        "system": file.system,
        "format": file.format,
        "size": file.size,
        "modified": None if file.modified is None else int(file.modified * 1_000_000),
        "topic": None if file.place.topic is None else valid_text(file.place.topic),
        "partition": file.place.partition,
        "start_offset": file.place.start_offset,
    }
    return row | (_measure(file) if measured is None else measured)


def records_below(file: File, floor: int) -> int:
    """How many records of a file are below an offset: in its bytes, but not for consumers."""
    format = registry.formats()[str(file.format)]
    want, number = Want(RECORDS.subset(("offset",)), file), 0
    with contextlib.suppress(DataError):
        for frames in walk(file, format, errors="stop"):
            starts = format.codec.spans(frames, file).start_offset
            if starts is None:
                break
            low = frames.slice(0, int(np.searchsorted(starts, floor)))
            for batch in format.codec.decode(low, want):
                number += int((batch.column("offset").to_numpy() < floor).sum())
            if len(low) < len(frames):
                break
    return number


def _measure(file: File) -> dict[str, Any]:
    if file.format is None:
        return {"state": "unknown"}
    format = registry.formats()[file.format]
    if file.problem is not None:
        return {"state": "damaged"}
    if not format.can("scan"):
        return {"state": "empty" if file.size == 0 else None}
    total = _Total()
    try:
        for frames in walk(file, format, errors="stop"):
            total.add(frames, file, format)
    except RawlogError:
        total.state = "damaged"
    return total.row(file)


@dataclass(slots=True)
class _Total:
    """The sums and bounds of a file's frames."""

    frames: int = 0
    records: int | None = 0
    valid_size: int = 0
    start: int | None = None
    stop: int | None = None
    low: int | None = None
    high: int | None = None
    state: str = "ok"

    def merge(self, following: _Total) -> None:
        self.frames += following.frames
        self.records = None if None in (self.records, following.records) else self.records + following.records  # type: ignore[operator]
        self.valid_size, self.state = following.valid_size, following.state
        for name, choose in (("start", min), ("stop", max), ("low", min), ("high", max)):
            values = [value for value in (getattr(self, name), getattr(following, name)) if value is not None]
            setattr(self, name, choose(values) if values else None)

    def add(self, frames: Frames, file: File, format: Format) -> None:
        self.valid_size = frames.reached_in_file
        if frames.status.is_damage:
            self.state = "damaged"
        elif frames.status is Status.TRUNCATED and frames.last:
            self.state = "truncated"
        self.frames += len(frames)
        if not len(frames) or not format.can("spans"):
            return
        try:
            self._cover(format.codec.spans(frames, file), frames, file, format)
        except DataError as error:
            self.state = "damaged"
            sound = int(np.searchsorted(frames.positions, error.position or 0, side="left"))
            with contextlib.suppress(DataError):
                if sound:
                    whole = frames.slice(0, sound)
                    self._cover(format.codec.spans(whole, file), whole, file, format)

    def _cover(self, spans: Spans, frames: Frames, file: File, format: Format) -> None:
        if spans.start_offset is not None and spans.stop_offset is not None:
            self.start = _least(self.start, int(spans.start_offset.min()))
            self.stop = _most(self.stop, int(spans.stop_offset.max()))
        for name, values in (("low", spans.min_time), ("high", spans.max_time)):
            if values is not None and (times := values[values != NO_TIME]).size:
                if name == "low":
                    self.low = _least(self.low, int(times.min()))
                else:
                    self.high = _most(self.high, int(times.max()))
        if RECORDS.name not in {table.name for table in format.tables}:
            return
        if spans.records is None or self.records is None:
            self.records = None
            return
        self.records += int(spans.records[spans.records > 0].sum())
        unknown = np.flatnonzero(spans.records < 0)
        for run in np.split(unknown, np.flatnonzero(np.diff(unknown) != 1) + 1) if unknown.size else ():
            self.records += _decoded_rows(frames.slice(int(run[0]), int(run[-1]) + 1), file, format)

    def row(self, file: File) -> dict[str, Any]:
        row: dict[str, Any] = {
            "end_offset": self.stop,
            "min_timestamp": self.low,
            "max_timestamp": self.high,
            "frames": self.frames,
            "records": self.records,
            "valid_size": self.valid_size,
            "state": "empty" if file.size == 0 else self.state,
        }
        if self.start is not None:
            row["start_offset"] = self.start
        return row


def _decoded_rows(frames: Frames, file: File, format: Format) -> int:
    """The rows of `records` that frames give, where only decoding tells: compressed sets, messages of messages."""
    want, rows = Want(RECORDS.subset(("offset",)), file), 0
    while len(frames):
        try:
            for batch in format.codec.decode(frames, want):
                rows += batch.num_rows
            break
        except DataError as error:
            if error.position is None:
                break
            frames = frames.slice(int(np.searchsorted(frames.positions, error.position, side="right")), len(frames))
    return rows


def _least(least: int | None, other: int) -> int:
    return other if least is None else min(least, other)


def _most(most: int | None, other: int) -> int:
    return other if most is None else max(most, other)


def near(file: File, store: Store, formats: Mapping[str, Format] | None = None) -> tuple[File, ...]:
    """The files of a store that the pass over one of them looks into. `formats` are those of the registry, if they are known."""
    format = (formats or registry.formats()).get(str(file.format))
    if format is None or not format.can("summary"):
        return ()
    start = file.place.start_offset
    others = (store.find(kind, start, file.place.state) for kind in format.near)
    return tuple(
        neighbour for neighbour in (*others, *(store.find(kind, None) for kind in format.near)) if neighbour is not None
    )
