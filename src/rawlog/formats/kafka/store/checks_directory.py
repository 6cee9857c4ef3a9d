"""What verification looks for in a log directory: partitions against the files at its top."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rawlog.core.errors import RawlogError
from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.formats.kafka.checkpoints import parse
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source
from rawlog.io.walk import walk

Files = Sequence[File]
LARGEST = 64 << 20


def _text(file: File) -> bytes:
    with Source(file.path) as source:
        return source.read(0, min(source.size, LARGEST))


def _partitions(files: Files) -> dict[str, list[File]]:
    """The segments of every partition directory that a broker would load, by directory, in order."""
    found: dict[str, list[File]] = defaultdict(list)
    for file in files:
        if (
            file.format == "kafka.log"
            and file.place.state is None
            and file.place.topic is not None
            and file.problem is None
        ):
            found[str(file.place.group)].append(file)
    for segments in found.values():
        segments.sort(key=lambda one: one.place.start_offset or 0)
    return found


def end_offset(segments: Sequence[File], files: Files = ()) -> int:
    """The offset after a partition's last sound batch. Segments that a pass has seen already are not read again."""
    summaries = Store.of(files).summaries
    for segment in reversed(segments):
        seen = summaries.get(segment.path)
        end = _end_of(segment) if seen is None else seen.end_offset
        if end is not None:
            return int(end)
    return (segments[0].place.start_offset or 0) if segments else 0


def _end_of(segment: File) -> int | None:
    from rawlog.formats.kafka import LOG

    end: int | None = None
    for frames in walk(segment, LOG, errors="skip"):
        head = heads(frames)
        if head.sound.any():
            end = max(end or 0, int(head["last_offset"][head.sound].max()) + 1)
    return end


def _checkpoints(files: Files) -> Iterator[tuple[File, str, dict[tuple[str, int], int]]]:
    for file in files:
        if file.format == "kafka.checkpoint" and file.problem is None:
            try:
                yield file, split(file.path)[1], parse(_text(file))
            except RawlogError:
                continue


@rule("kafka.checkpoint.log-start", Severity.ERROR)
def log_start(files: Files) -> Iterator[Mark]:
    """The checkpointed log start lies behind the end of the log: at its next start a broker deletes every segment.

    Take the partition's line out of `log-start-offset-checkpoint` before starting a broker on this directory.
    """
    yield from _beyond(files, "log-start-offset-checkpoint", "a broker would delete the whole log")


@rule("kafka.checkpoint.beyond", Severity.WARNING)
def beyond(files: Files) -> Iterator[Mark]:
    """A recovery point, high watermark or cleaner offset lies behind the end of the log: records that were there are gone.

    A broker corrects the checkpoint without a word, so this may be the only trace of a loss.
    """
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"):
        yield from _beyond(files, name, "records up to there are missing")


def _beyond(files: Files, wanted: str, what: str) -> Iterator[Mark]:
    partitions = _partitions(files)
    for file, name, offsets in _checkpoints(files):
        if name != wanted:
            continue
        folder = split(file.path)[0]
        for (topic, partition), offset in sorted(offsets.items()):
            segments = partitions.get(f"{folder}/{topic}-{partition}")
            if not segments:
                continue
            base = segments[-1].place.start_offset or 0
            if offset <= base:
                continue
            end = end_offset(segments, files)
            if offset > end:
                message = f"{topic}-{partition} ends at offset {end}, the checkpoint says {offset}: {what}"
                yield Mark(message, offset=end, expected=f"at most {end}", found=offset, path=file.path)


@rule("kafka.partition.topic-id", Severity.ERROR)
def topic_ids(files: Files) -> Iterator[Mark]:
    """Partitions of one topic have different topic ids, or two topics share one.

    A broker serves only those whose id is the one in the cluster's metadata, and puts the others aside as strays.
    """
    by_topic: dict[tuple[str, str], dict[bytes, File]] = defaultdict(dict)
    by_id: dict[tuple[str, bytes], dict[str, File]] = defaultdict(dict)
    for file in files:
        if file.format != "kafka.partition" or file.place.state is not None or file.place.topic is None:
            continue
        try:
            found = topic_id(_text(file))
        except (ValueError, RawlogError):
            continue
        folder = split(str(file.place.group))[0]
        by_topic[(folder, file.place.topic)].setdefault(found, file)
        by_id[(folder, found)].setdefault(file.place.topic, file)
    for (_, topic), ids in by_topic.items():
        if len(ids) > 1:
            values = sorted(one.hex() for one in ids)
            yield Mark(f"topic {topic} has several ids", found=", ".join(values), path=list(ids.values())[-1].path)
    for (_, one), topics in by_id.items():
        if len(topics) > 1:
            names = ", ".join(sorted(topics))
            yield Mark(f"topics {names} share an id", found=one.hex(), path=list(topics.values())[-1].path)


@rule("kafka.partition.no-topic-id", Severity.WARNING)
def no_topic_id(files: Files) -> Iterator[Mark]:
    """A partition of a KRaft log directory has no readable `partition.metadata`.

    A broker takes it for a stray: it renames the directory and serves an empty partition in its place.
    """
    kraft = set()
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            try:
                if properties(_text(file)).get("version") == "1":
                    kraft.add(split(file.path)[0])
            except (ValueError, RawlogError):
                continue
    named = {str(file.place.group) for file in files if file.format == "kafka.partition" and file.size}
    for folder, segments in sorted(_partitions(files).items()):
        if split(folder)[0] in kraft and folder not in named and segments[0].place.topic != METADATA_TOPIC:
            yield Mark("no partition.metadata: a broker would put this partition aside", path=folder)


@rule("kafka.directory.duplicate-partition", Severity.ERROR)
def duplicate_partitions(files: Files) -> Iterator[Mark]:
    """Two log directories of one broker hold the same partition. The broker refuses to start on them.

    Keep the one that is further, and move the other out of the way.
    """
    owner: dict[str, str] = {}
    for file in files:
        if file.format == "kafka.meta" and file.problem is None:
            try:
                found = properties(_text(file))
            except (ValueError, RawlogError):
                continue
            number = found.get("node.id", found.get("broker.id"))
            if number is not None:
                owner[split(file.path)[0]] = f"{found.get('cluster.id')}/{number}"
    places: dict[tuple[str, str | None, int | None], list[str]] = defaultdict(list)
    for folder, segments in sorted(_partitions(files).items()):
        broker = owner.get(split(folder)[0])
        if broker is not None and segments[0].place.topic != METADATA_TOPIC:
            places[(broker, segments[0].place.topic, segments[0].place.partition)].append(folder)
    for (_, topic, partition), folders in places.items():
        if len(folders) > 1:
            yield Mark(f"{topic}-{partition} is also in {folders[0]}", path=folders[-1])


def rules() -> Sequence[Rule[Files]]:
    """The rules of this module, as its format names them."""
    return (log_start, beyond, topic_ids, no_topic_id, duplicate_partitions)
