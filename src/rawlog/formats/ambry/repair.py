"""Mending a store: what is whole is kept, in a copy that opens and verifies clean.

After damage the next sound message header is searched for. Index, bloom and other derived files are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rawlog.format import File
from rawlog.formats.ambry import LOG, keys
from rawlog.formats.ambry.kernels.records import IN_PAYLOAD
from rawlog.formats.ambry.layouts import SEGMENT_HEADER
from rawlog.formats.ambry.paths import capacity, segment_of
from rawlog.formats.ambry.reader import Messages
from rawlog.formats.ambry.rebuild import Report, copy_file, number_option, one_store, write_indexes
from rawlog.formats.ambry.small import DESCRIPTOR
from rawlog.formats.ambry.state import Ledger
from rawlog.formats.ambry.store import Store, operations
from rawlog.formats.ambry.store_checks import _violation as violation
from rawlog.formats.ambry.store_writer import CAPACITY, descriptor
from rawlog.formats.ambry.writer import segment_header
from rawlog.status import Status
from rawlog.storage import Source, new_directory
from rawlog.walk import walk


def repair_store(files: Sequence[File], target: str | None, options: Mapping[str, str] | None = None) -> Report:
    """Write a mended copy of a store to `target`; with None only tell what would be dropped.

    Options: `max_entries`, `probability` as for a rebuild, `capacity` of segments whose headers are all damaged.
    """
    options = options or {}
    store = one_store(files)
    report = Report()
    if target is None:
        _mend_logs(store, None, options, report)
        return report
    with new_directory(target) as work:
        mended = _mend_logs(store, work, options, report)
        for file in store.others:
            name = file.path.rpartition("/")[2]
            if file.format == "ambry.descriptor" and file.problem is None:
                with Source(file.path) as source:
                    data = np.frombuffer(source.read(0, source.size), np.uint8)
                if len(DESCRIPTOR.scan(data, 0)):
                    copy_file(file.path, work / name)
        if not (work / "StoreDescriptor").exists():
            import uuid

            (work / "StoreDescriptor").write_bytes(descriptor(str(uuid.uuid4())))
            report.notes.append("StoreDescriptor: a new incarnation id")
        write_indexes(mended, work, options, report)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def _mend_logs(store: Store, work: Path | None, options: Mapping[str, str], report: Report) -> Store:
    """Copy the sound messages of every log segment; the store of the copies, with the old index files."""
    most = _capacity(store, options)
    ledger = Ledger()
    logs = []
    for number, file in enumerate(store.logs):
        name = file.path.rpartition("/")[2].removesuffix("_temp")
        header = segment_header(most) if _is_numbered(file) else b""
        out = None if work is None else (work / name).open("xb")
        try:
            if out is not None:
                out.write(header)
            size = len(header) + _mend_log(file, number, out, ledger, report)
        finally:
            if out is not None:
                out.close()
        logs.append(replace(file, path=file.path if work is None else str(work / name), size=size))
    return Store(store.folder, logs, store.index_files, store.bloom_files)


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


def _mend_log(file: File, number: int, out: object, ledger: Ledger, report: Report) -> int:
    """Copy the sound messages of one segment; how many bytes they are."""
    name = file.path.rpartition("/")[2]
    written, reached = 0, None
    with Source(file.path) as source:
        has_header = capacity(source.read(0, 64)) is not None
        numbered = _is_numbered(file)
        first = SEGMENT_HEADER.size if has_header or numbered else 0
        if numbered and not has_header:
            report.dropped.append(f"{name}: byte 0: damaged segment header written anew")
        for frames in walk(file, LOG, start=min(first, source.size), errors="skip", source=_Headless(source)):
            if reached is not None and frames.base > reached:
                report.dropped.append(f"{name}: byte {reached:,}: {frames.base - reached:,} damaged bytes")
            written += _copy_sound(Messages(frames), name, number, out, ledger, report)
            reached = frames.reached_in_file
            if frames.last and reached < source.size:
                what = {Status.TRUNCATED: "of an unfinished message", Status.PADDING: "of zeros"}.get(
                    frames.status, "damaged"
                )
                report.dropped.append(f"{name}: byte {reached:,}: {source.size - reached:,} bytes {what}")
    return written


class _Headless(Source):
    """A source whose segment header is not looked at: where messages begin is known, and the header may be damaged."""

    def __init__(self, source: Source) -> None:
        self._inner = source
        self.path, self.size = source.path, source.size
        self._fd = self._file = None

    def read(self, position: int, size: int) -> bytes:
        return b"\0\1" if position == 0 else self._inner.read(position, size)

    def read_into(self, position: int, target: memoryview) -> int:
        return self._inner.read_into(position, target)


def _copy_sound(messages: Messages, name: str, number: int, out: object, ledger: Ledger, report: Report) -> int:
    good = messages.sound & (messages["mismatch"] == 0)
    frames = messages.frames
    written = 0
    found = {operation.offset: operation for operation in operations(messages, number)}
    for index, position in enumerate(frames.positions.tolist()):
        operation = found.get(position)
        why = None
        if not good[index] or operation is None:
            wrong = int(messages["mismatch"][index])
            why = (
                "payload size that lies"
                if wrong & IN_PAYLOAD
                else "offsets that disagree"
                if wrong
                else "damaged records"
            )
        else:
            identity = keys.order(operation.key)
            why = violation(operation, ledger.find(identity), ledger, identity)
        if why is not None:
            size = int(frames.sizes[index])
            report.dropped.append(f"{name}: byte {position:,}: message of {size:,} bytes: {why}")
            continue
        assert operation is not None
        ledger.apply(operation, identity)
        start, stop = int(frames.starts[index]), int(frames.stops[index])
        if out is not None:
            out.write(messages.data[start:stop].tobytes())  # type: ignore[attr-defined]
        written += stop - start
    return written
