"""What verification looks for between the files of a store: index against log, bloom against index, message against message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rawlog.findings import Mark, Rule, Severity, rule
from rawlog.format import File
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import INDEXES, NONE, Flag, Kind
from rawlog.formats.ambry.state import Ledger, Operation, expiry_seconds, seconds
from rawlog.formats.ambry.store import entry_of
from rawlog.formats.ambry.survey import Survey, surveys

Files = Sequence[File]


def _entry_position(survey: Survey, index: Any, number: int) -> int:
    return int(index.header.size + number * index.header.entry_size)


@rule("ambry.store.segments", Severity.ERROR)
def segments(files: Files) -> Iterator[Mark]:
    """The log segments of a store do not belong together: `log_current` beside numbered ones, a position twice, or several capacities.

    Ambry refuses to start on a mixture, and reads messages twice where a compaction left both its source and its target. Which of
    them counts is told by the compaction log, if there is one.
    """
    for survey in surveys(files):
        named = survey.store.segments()
        positions: dict[int, str] = {}
        for file, segment, most in zip(survey.store.logs, named, survey.capacities, strict=True):
            if segment.position in positions:
                yield Mark(
                    f"position {segment.position} twice: also {positions[segment.position]}",
                    path=file.path,
                    found=segment.name,
                )
            positions[segment.position] = file.path
            if (segment.position < 0) != (named[0].position < 0):
                yield Mark("log_current beside numbered segments", path=file.path)
            if most != survey.capacities[0]:
                yield Mark(
                    "another capacity than the first segment's",
                    path=file.path,
                    expected=survey.capacities[0],
                    found=most,
                )


@rule("ambry.store.compaction", Severity.INFO)
def unsettled(files: Files) -> Iterator[Mark]:
    """A file that the store does not read now: a target that a compaction has not committed, a segment that it has replaced, or index and
    bloom files without their log segment.

    Ambry finishes or forgets the compaction when it starts next.
    """
    for file in files:
        if file.place.state is not None:
            words = {
                "temp": "a compaction's target, not committed",
                "compacted": "replaced by a compaction",
                "orphan": "its log segment is not there",
            }
            yield Mark(words.get(file.place.state, file.place.state), path=file.path, size=file.size)


@rule("ambry.index.end", Severity.ERROR)
def index_end(files: Files) -> Iterator[Mark]:
    """An index file covers more than its log segment holds.

    The log lost its end, and the store does not start. Messages behind the end of the log are gone; `rawlog rebuild` makes an index of
    those that are there.
    """
    for survey in surveys(files):
        for index in survey.indexes:
            size = survey.store.logs[survey.number(index)].size
            if index.end > size:
                yield Mark(
                    "the log segment ends before its index",
                    path=index.path,
                    position=INDEXES[index.header.version].at("log_end_offset"),
                    expected=f"at most {size}",
                    found=index.end,
                )


@rule("ambry.index.gap", Severity.ERROR)
def index_gap(files: Files) -> Iterator[Mark]:
    """Index files leave messages between them without an entry, or cover some twice.

    Ambry does not notice a missing index file: the blobs whose messages it covered silently vanish.
    """
    for survey in surveys(files):
        ends: dict[int, int] = {}
        for index in survey.indexes:
            number = survey.number(index)
            expected = ends.get(number, next(iter(survey.places[number]), index.start))
            if index.start != expected:
                yield Mark(
                    "an index file is missing or overlaps", path=index.path, expected=expected, found=index.start
                )
            ends[number] = index.end
        last = max(ends, default=-1)
        for number in range(last):
            size = survey.store.logs[number].size
            behind = survey.between(number, ends.get(number, 0), size)
            if behind:
                yield Mark(
                    f"{len(behind):,} messages behind the last index file of their segment",
                    path=survey.store.logs[number].path,
                    position=min(behind),
                    size=size - min(behind),
                )


@rule("ambry.index.unindexed", Severity.INFO)
def unindexed(files: Files) -> Iterator[Mark]:
    """Messages behind the end of the index: the store was not closed, and adds them when it starts next.

    Blobs that were undeleted in that part lose their expiry when Ambry recovers it (its own behaviour).
    """
    for survey in surveys(files):
        ends: dict[int, int] = {}
        for index in survey.indexes:
            ends[survey.number(index)] = index.end
        last = max(ends, default=-1)
        for number in range(max(last, 0), len(survey.store.logs)):
            behind = survey.between(number, ends.get(number, 0), survey.store.logs[number].size)
            if behind and ends:
                yield Mark(
                    f"{len(behind):,} messages not in the index yet",
                    path=survey.store.logs[number].path,
                    position=min(behind),
                )


@rule("ambry.index.message", Severity.ERROR)
def entry_without_message(files: Files) -> Iterator[Mark]:
    """An index entry points to where no message begins.

    The blob cannot be read through the index; the log is the truth. `rawlog rebuild` makes a right one.
    """
    for survey in surveys(files):
        for index in survey.indexes:
            number = survey.number(index)
            for at in range(len(index.entries)):
                offset = int(index.entries.offset[at])
                if (number, offset) not in survey.messages and offset < index.end:
                    yield Mark(
                        "an entry that points to no message",
                        path=index.path,
                        position=_entry_position(survey, index, at),
                        found=offset,
                    )


@rule("ambry.index.missing", Severity.ERROR)
def message_without_entry(files: Files) -> Iterator[Mark]:
    """A message in the range of an index file has no entry in it: what it did to its blob is forgotten."""
    for survey in surveys(files):
        for index in survey.indexes:
            number = survey.number(index)
            known = set(index.entries.offset.tolist())
            for place in survey.between(number, index.start, index.end):
                if place not in known:
                    yield Mark(
                        "a message without an index entry",
                        path=survey.store.logs[number].path,
                        position=place,
                        expected=index.path,
                    )


@rule("ambry.index.mismatch", Severity.ERROR)
def entry_mismatch(files: Files) -> Iterator[Mark]:
    """An index entry disagrees with the message it points to: blob, kind, size, life version, time, account, container or expiry.

    The store answers by the index. Facts that an update inherits from a PUT since compacted away are not compared.
    """
    for survey in surveys(files):
        for index in survey.indexes:
            number = survey.number(index)
            for at in range(len(index.entries)):
                entry = entry_of(index, at, number)
                message = survey.messages.get(entry.place)
                if message is None:
                    continue
                for what, expected, found in _differences(message, entry, index.header.version):
                    yield Mark(
                        f"{what} differs from the message's",
                        path=index.path,
                        position=_entry_position(survey, index, at),
                        size=index.header.entry_size,
                        expected=expected,
                        found=found,
                    )


def _differences(message: Operation, entry: Any, version: int) -> Iterator[tuple[str, object, object]]:
    if keys.order(message.key) != keys.order(entry.key):
        yield "blob id", keys.text_of(message.key), keys.text_of(entry.key)
        return
    pairs: list[tuple[str, object, object]] = [
        ("kind", message.kind.name, entry.kind.name),
        ("size", message.size, entry.size),
    ]
    if version >= 3:
        pairs.append(("life version", message.life_version, entry.life_version))
    if version >= 1:
        pairs.append(("operation time", seconds(message.time), entry.time))
    if message.kind is Kind.PUT:
        pairs.append(("expiry", expiry_seconds(message.expires), entry.expires))
        if version >= 1:
            pairs += [
                ("account", message.account_id, entry.account_id),
                ("container", message.container_id, entry.container_id),
            ]
    if message.kind is Kind.TTL_UPDATE:
        pairs.append(("expiry", NONE, entry.expires))
    for what, expected, found in pairs:
        if expected != found:
            yield what, expected, found


@rule("ambry.index.reset-key", Severity.WARNING)
def reset_key(files: Files) -> Iterator[Mark]:
    """The reset key in an index file's header is not that of the first message it covers.

    Replication uses it to find its way after the index was rebuilt; reading blobs does not.
    """
    for survey in surveys(files):
        for index in survey.indexes:
            first = survey.messages.get((survey.number(index), index.start))
            header = index.header
            if first is None or header.reset_key is None:
                continue
            if keys.order(first.key) != keys.order(header.reset_key) or header.reset_kind != first.kind:
                yield Mark(
                    "a reset key that is not the first entry's",
                    path=index.path,
                    expected=f"{keys.text_of(first.key)} {first.kind.name}",
                    found=f"{keys.text_of(header.reset_key)} {header.reset_kind}",
                )


@rule("ambry.bloom.key", Severity.ERROR)
def bloom_key(files: Files) -> Iterator[Mark]:
    """A bloom filter denies a key that its index segment has: the store does not find the blob there.

    Remove the bloom file (Ambry makes it anew), or rebuild it.
    """
    for survey in surveys(files):
        for index in survey.indexes:
            found = survey.blooms.get((survey.number(index), index.start))
            if found is None:
                continue
            path, bloom = found
            missing = [key for key in dict.fromkeys(index.entries.keys) if not bloom.has_key(key)]
            if missing:
                yield Mark(
                    f"{len(missing):,} keys of {index.path.rpartition('/')[2]} are denied, the first {keys.text_of(missing[0])}",
                    path=path,
                )


@rule("ambry.store.history", Severity.ERROR)
def history(files: Files) -> Iterator[Mark]:
    """A message that cannot follow what came before it: a PUT of a blob that was there, a DELETE of a deleted one, a second TTL update,
    a life version lower than before.

    Ambry refuses to start when its recovery meets such a message.
    """
    for survey in surveys(files):
        ledger = Ledger()
        for place in sorted(survey.messages):
            message = survey.messages[place]
            identity = keys.order(message.key)
            before = ledger.find(identity)
            wrong = _violation(message, before, ledger, identity)
            if wrong is not None:
                yield Mark(
                    wrong,
                    path=survey.store.logs[message.segment].path,
                    position=message.offset,
                    size=message.size,
                    found=f"{message.kind.name}, life version {message.life_version}",
                    expected=None
                    if before is None
                    else f"after {before.kind.name}, life version {before.life_version}",
                )
            ledger.apply(message, identity)


def _violation(message: Operation, before: Any, ledger: Ledger, identity: bytes) -> str | None:
    if before is None:
        return None
    if message.kind is Kind.PUT:
        return "a PUT of a blob that the store already knows"
    if message.life_version < before.life_version:
        return "a life version lower than before"
    if message.kind is Kind.DELETE and before.kind is Kind.DELETE and before.life_version >= message.life_version:
        return "a DELETE of a deleted blob"
    if message.kind is Kind.TTL_UPDATE:
        if before.kind is Kind.DELETE:
            return "a TTL update of a deleted blob"
        if before.flags & Flag.TTL_UPDATE:
            return "a second TTL update"
    return None


@rule("ambry.store.orphan-update", Severity.INFO)
def orphan_update(files: Files) -> Iterator[Mark]:
    """A TTL update or undelete of a blob of which the log has nothing before it: compaction took the rest.

    The index still knows the blob. Without index files Ambry refuses to start on this log, unless a DELETE follows.
    """
    for survey in surveys(files):
        seen: dict[bytes, Operation | None] = {}
        for place in sorted(survey.messages):
            message = survey.messages[place]
            identity = keys.order(message.key)
            if identity not in seen and message.kind in (Kind.TTL_UPDATE, Kind.UNDELETE):
                seen[identity] = message
            elif message.kind is Kind.DELETE or identity not in seen:
                seen[identity] = None
        for orphan in seen.values():
            if orphan is not None:
                yield Mark(
                    f"{orphan.kind.name} of a blob that the log does not have",
                    path=survey.store.logs[orphan.segment].path,
                    position=orphan.offset,
                    size=orphan.size,
                )


def group_rules() -> Sequence[Rule[Any]]:
    """The rules over the files of one store."""
    return (
        segments, unsettled, index_end, index_gap, unindexed, entry_without_message, message_without_entry, entry_mismatch, reset_key,
        bloom_key, history, orphan_update,
    )  # fmt: skip
