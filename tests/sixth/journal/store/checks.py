"""What verification looks for in the files of a journal together. A rule takes the Store, which has the summaries of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File
from rawlog.model.store import Store
from tests.sixth.journal.layouts import FILE_HEADER
from tests.sixth.journal.store.state import IndexSummary, SegmentSummary, summary_of


def segments(store: Sequence[File]) -> list[File]:
    """The segments of a journal that can be read, in order."""
    found = [file for file in store if file.format == "journal.segment" and file.problem is None]
    return sorted(found, key=lambda file: file.place.start_offset or 0)


@rule("journal.store.chain", Severity.ERROR)
def broken_chain(store: Store) -> Iterator[Mark]:
    """The header of a segment does not fit its name or the segment before it: a segment or entries are missing, or the header is damaged.

    Look for the missing file in another copy. `rawlog repair` reports what is lost and rewrites the header.
    """
    before: SegmentSummary | None = None
    for file in segments(store):
        summary = summary_of(store, file)
        assert isinstance(summary, SegmentSummary)
        header, first = summary.header, file.place.start_offset
        if header is not None and header.first_number != first:
            at = FILE_HEADER.at("first_number")
            yield Mark(
                "first number is not that of the file's name", at, 8, None, first, header.first_number, file.path
            )
        if header is not None and before is not None:
            expected, found = before.stop_number, header.previous_stop
            if before.header is None and before.file.size:
                yield Mark("the segment before it cannot be read", path=file.path, severity=Severity.WARNING)
            elif found > expected:
                yield Mark(
                    "entries before this segment are missing",
                    offset=expected,
                    expected=expected,
                    found=found,
                    path=file.path,
                )
            elif found != expected or (first or 0) < expected:
                yield Mark(
                    "does not fit the end of the segment before it", expected=expected, found=found, path=file.path
                )
        before = summary


@rule("journal.store.index", Severity.WARNING)
def wrong_index(store: Store) -> Iterator[Mark]:
    """An index is missing, belongs to no segment, or does not have the entries that the segment gives.

    Nothing is lost: indexes are derived. `rawlog repair` rebuilds them.
    """
    for file in segments(store):
        index = store.find("journal.positions", file.place.start_offset)
        if index is None:
            yield Mark("the segment has no index", path=file.path)
            continue
        segment, found = summary_of(store, file), summary_of(store, index)
        assert isinstance(segment, SegmentSummary)
        assert isinstance(found, IndexSummary)
        if (segment.header is not None or not file.size) and found.index != segment.index:
            yield Mark("the index does not fit the segment", path=index.path)
    for file in store:
        if file.format == "journal.positions" and store.find("journal.segment", file.place.start_offset) is None:
            yield Mark("an index without a segment", path=file.path)


def group_rules() -> Sequence[Rule[Store]]:
    """The rules over the files of one journal."""
    return (broken_chain, wrong_index)
