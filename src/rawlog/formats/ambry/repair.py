"""Mending a store: what is whole is kept, in a copy that opens and verifies clean.

After damage the next sound message header is searched for. Index, bloom and other derived files are made anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.format import File, Origin
from rawlog.formats.ambry import LOG
from rawlog.formats.ambry.kernels.records import IN_PAYLOAD
from rawlog.formats.ambry.layouts import SEGMENT_HEADER
from rawlog.formats.ambry.paths import capacity, segment_of
from rawlog.formats.ambry.reader import Messages
from rawlog.formats.ambry.rebuild import Report, copy_file, copy_messages, number_option, one_store, write_indexes
from rawlog.formats.ambry.small import DESCRIPTOR
from rawlog.formats.ambry.state import Catalog, CatalogBuilder, fold, is_refused
from rawlog.formats.ambry.store import Store
from rawlog.formats.ambry.store_checks import VIOLATIONS
from rawlog.formats.ambry.store_writer import CAPACITY, descriptor
from rawlog.formats.ambry.writer import segment_header
from rawlog.output import child, new_directory
from rawlog.status import Status
from rawlog.storage import Source
from rawlog.walk import walk

NEW_IDENTITY = "StoreDescriptor: a new incarnation id"
DESCRIPTOR_NAME = "StoreDescriptor"


def repair_store(files: Sequence[File], target: str | None, options: Mapping[str, str] | None = None) -> Report:
    """Write a mended copy of a store to `target`.

    Options: `max_entries`, `probability` as for a rebuild, `capacity` of segments whose headers are all damaged. With `dry_run` (or
    without a target) nothing is written, and the report tells what would be.
    """
    options = options or {}
    store = one_store(files)
    dry = target is None or options.get("dry_run", "").lower() in ("true", "1", "yes")
    report = Report()
    look = _look(store)
    capacity_of_all = _capacity(store, options)
    report.dropped += [text for _, _, text in sorted(look.dropped)]
    kept = _moved(look, [len(_header(file, capacity_of_all)) for file in store.logs])
    logs = [replace(file, size=0) for file in store.logs]
    mended = Store(store.folder, logs, store.index_files, store.bloom_files)
    if dry:
        report.files = _finish(mended, store, kept, None, options, report, [_name(file) for file in store.logs])
        return report
    assert target is not None
    with new_directory(target) as work:
        for number, file in enumerate(store.logs):
            with child(work, _name(file)).open("xb") as out:
                out.write(_header(file, capacity_of_all))
                copy_messages(store, look.catalog, look.kept[look.catalog.segment[look.kept] == number], out)
        report.files = _finish(mended, store, kept, work, options, report, [_name(file) for file in store.logs])
    return report


def _finish(
    mended: Store,
    store: Store,
    kept: Catalog,
    work: Path | None,
    options: Mapping[str, str],
    report: Report,
    names: list[str],
) -> list[str]:
    """What stands beside the log: the identity of the store, index and bloom files. All names, in order."""
    told = [file for file in store.others if file.format == "ambry.descriptor" and _is_sound_descriptor(file)]
    if not told:
        report.notes.append(NEW_IDENTITY)
    if work is not None:
        if told:
            copy_file(told[0].path, work / DESCRIPTOR_NAME)
        else:
            (work / DESCRIPTOR_NAME).write_bytes(descriptor(str(uuid.uuid4())))
    return sorted([*names, DESCRIPTOR_NAME, *write_indexes(mended, kept, work, options, report)])


def _is_sound_descriptor(file: File) -> bool:
    if file.problem is not None or file.place.state is not None:
        return False
    with Source(file.path) as source:
        return len(DESCRIPTOR.scan(np.frombuffer(source.read(0, source.size), np.uint8), 0)) > 0


def _name(file: File) -> str:
    return file.path.rpartition("/")[2].removesuffix("_temp")


def _header(file: File, most: int) -> bytes:
    """The header of a segment; `log_current` has none."""
    return segment_header(most) if _is_numbered(file) else b""


def _is_numbered(file: File) -> bool:
    """Whether a log segment's name says that it has a header."""
    segment = segment_of(file.path)
    return segment is not None and segment.name != ""


def _capacity(store: Store, options: Mapping[str, str]) -> int:
    """The capacity that most segment headers name."""
    found = []
    for file in store.logs:
        with Source(file.path) as source:
            found.append(capacity(source.read(0, 64)))
    known = [one for one in found if one is not None]
    largest = max((file.size for file in store.logs), default=0)
    default = max(set(known), key=known.count) if known else max(CAPACITY, largest)
    return number_option(options, "capacity", default) or default


@dataclass(slots=True)
class _Look:
    """What stands in the log: the readable messages, the rows of those that are kept, and what is dropped, with its place."""

    builder: CatalogBuilder = field(default_factory=CatalogBuilder)
    dropped: list[tuple[int, int, str]] = field(default_factory=list)
    catalog: Catalog = field(init=False)
    kept: NDArray[np.int64] = field(init=False)


def _look(store: Store) -> _Look:
    """Read every segment, and judge every message by itself and by those before it."""
    look = _Look()
    for number, file in enumerate(store.logs):
        _read(file, number, look)
    look.catalog = look.builder.done()
    wrong = fold(look.catalog, drop=True).wrong
    refused = is_refused(look.catalog, wrong)
    look.kept = np.flatnonzero(~refused)
    for row in np.flatnonzero(refused).tolist():
        number, position, size = (
            int(column[row]) for column in (look.catalog.segment, look.catalog.offset, look.catalog.size)
        )
        look.dropped.append((number, position, _told(store.logs[number], position, size, VIOLATIONS[int(wrong[row])])))
    return look


def _told(file: File, position: int, size: int, why: str) -> str:
    return f"{_name(file)}: byte {position:,}: message of {size:,} bytes: {why}"


def _read(file: File, number: int, look: _Look) -> None:
    """The sound messages of one segment, and what stands between them."""
    name, reached = _name(file), None
    with Source(file.path) as source:
        has_header = capacity(source.read(0, 64)) is not None
        numbered = _is_numbered(file)
        first = SEGMENT_HEADER.size if has_header or numbered else 0
        if numbered and not has_header:
            look.dropped.append((number, 0, f"{name}: byte 0: damaged segment header written anew"))
        for frames in walk(file, LOG, origin=Origin(min(first, source.size)), errors="skip", source=source):
            if reached is not None and frames.base > reached:
                lost = f"{name}: byte {reached:,}: {frames.base - reached:,} damaged bytes"
                look.dropped.append((number, reached, lost))
            messages = Messages(frames)
            good = messages.sound & (messages["mismatch"] == 0)
            look.builder.add(messages, number, good)
            for index in np.flatnonzero(~good).tolist():
                position, wrong = int(frames.positions[index]), int(messages["mismatch"][index])
                why = "payload size that lies" if wrong & IN_PAYLOAD else "offsets that disagree"
                why = why if wrong else "damaged records"
                look.dropped.append((number, position, _told(file, position, int(frames.sizes[index]), why)))
            reached = frames.reached_in_file
            if frames.last and reached < source.size:
                what = {Status.TRUNCATED: "of an unfinished message", Status.PADDING: "of zeros"}
                left = f"{source.size - reached:,} bytes {what.get(frames.status, 'damaged')}"
                look.dropped.append((number, reached, f"{name}: byte {reached:,}: {left}"))


def _moved(look: _Look, headers: list[int]) -> Catalog:
    """The kept messages at the places they have once they stand end to end."""
    catalog = look.catalog.take(look.kept)
    for number, size in enumerate(headers):
        rows = catalog.rows_in(number)
        sizes = catalog.size[rows]
        catalog.offset[rows] = np.cumsum(sizes) - sizes + size
    return catalog
