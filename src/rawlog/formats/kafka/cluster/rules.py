"""What verification looks for in a metadata log and its snapshots, each alone and together."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from rawlog.formats.kafka.cluster.metadata import LEAST_LEVEL, METADATA_VERSION, NO_LEADER
from rawlog.formats.kafka.cluster.metadata_log import MetadataStore, Moment, stores
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.cluster.writer import LEAST_LEVEL as LEAST_BOOTSTRAP
from rawlog.formats.kafka.internal.codec import Message, uuid_text
from rawlog.formats.kafka.internal.messages import control_type, decode_record, frame_head, framed_types
from rawlog.formats.kafka.log import rules as kafka_checks
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, OUTLINE, Attributes, ControlType
from rawlog.formats.kafka.log.segment import decode_bounded, only
from rawlog.formats.kafka.paths import METADATA_TOPIC, QUORUM_FORMAT, is_bootstrap, snapshot_id
from rawlog.formats.kafka.texts import parse_quorum
from rawlog.io.storage import Source
from rawlog.model.errors import DataError, LimitError, RawlogError, UnsupportedError
from rawlog.model.finding import Account, Few, Mark, Rule, Severity, rule
from rawlog.model.format import File, Inspection
from rawlog.model.frames import Frames
from rawlog.model.outline import Intervals
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.text import missing_text

# ----------------------------------------------------------------------------------------------------------------------
# What verification looks for in snapshots, each file alone. Batches are checked by the rules of Kafka's logs.


#: The records that say what is there.
LIVE = tuple(
    f"{name}Record"
    for name in (
        "FeatureLevel", "ZkMigrationState", "RegisterBroker", "RegisterController", "Topic", "Partition", "Config", "ClientQuota",
        "ProducerIds", "AccessControlEntry", "UserScramCredential", "DelegationToken",
    )
)  # fmt: skip


class Records:
    """The records in a window's sound batches, decoded for everybody who asks, so that none are kept.

    Position and offset, whether it is a control record, key and value.
    """

    def __init__(self, seen: Inspection) -> None:
        self.seen = seen

    def __iter__(self) -> Iterator[tuple[int, int, bool, bytes | None, bytes | None]]:
        seen, head = self.seen, heads(self.seen.frames)
        sound, head = only(seen.frames, head.sound), head.only(head.sound)
        names = {"key", "value", "offset"}
        for index in range(len(sound)):
            position, control = int(sound.positions[index]), bool(head.has(Attributes.CONTROL)[index])
            batch, batch_head = sound.slice(index, index + 1), head.slice(index, index + 1)
            with contextlib.suppress(DataError):  # Kafka's own rules report it
                for _, _, columns in decode_bounded(batch, batch_head, names, seen.limit, seen.max_headers):
                    arrays = [columns.arrays[name].to_pylist() for name in ("offset", "key", "value")]
                    for offset, key, value in zip(*arrays, strict=True):
                        yield position, offset, control, key, value


def records_of(seen: Inspection) -> Records:
    """The records of a window, for `Inspection.share`."""
    return Records(seen)


@rule("kraft.checkpoint.incomplete", Severity.WARNING)
def incomplete(seen: Inspection) -> Iterator[Mark]:
    """A snapshot does not begin with its header or does not end with its footer, or batches between them are missing: it was not written
    to its end, or was cut. Or bytes follow the footer at which a broker ends (an error).

    A controller refuses to load it. Delete it if the log reaches back to an older snapshot or to offset 0; else take it from
    another controller.
    """
    memory = seen.memory
    for position, offset, control, key, _ in seen.share(records_of):
        kind = control_type(key) if control else None
        if "first" not in memory:
            memory["first"] = kind
            if kind != ControlType.SNAPSHOT_HEADER:
                yield Mark("no header at the beginning", position, offset=offset)
        elif memory.get("last") == ControlType.SNAPSHOT_FOOTER:
            yield Mark("records after the footer", position, offset=offset)
        memory["last"] = kind
    yield from _missing_batches(seen.frames)
    if seen.frames.last and memory.get("last") != ControlType.SNAPSHOT_FOOTER:
        yield Mark("no footer at the end", seen.frames.reached_in_file)
    elif seen.frames.last and seen.frames.status in (Status.PADDING, Status.TRUNCATED):
        yield from _tail(seen.frames)


def _tail(frames: Frames) -> Iterator[Mark]:
    """Bytes after the footer. A broker ends at zeros where it reads a size, and at an unknown magic; it takes others for a batch that was
    not written to its end, as in a log.
    """
    tail, magic_at = frames.data[frames.reached :], OUTLINE.at("magic")
    has_magic = frames.status is Status.TRUNCATED and tail.size > magic_at
    if (int(tail[magic_at]) > MAGIC_V2) if has_magic else tail.size >= OUTLINE.after("length") and not tail.any():
        message = f"{tail.size:,} bytes after the footer: no broker starts on it"
        yield Mark(message, frames.reached_in_file, int(tail.size), severity=Severity.ERROR)
    elif frames.status is Status.PADDING and tail.size:
        message = f"{tail.size:,} bytes of zeros after the footer"
        yield Mark(message, frames.reached_in_file, int(tail.size), severity=Severity.INFO)


def _missing_batches(frames: Frames) -> Iterator[Mark]:
    """Sound batches without bytes between them, but with a gap in their offsets: a snapshot is numbered without gaps."""
    head = heads(frames)
    for index in range(1, len(frames)):
        base, following = int(head["base_offset"][index]), int(head["last_offset"][index - 1]) + 1
        joins = frames.stops[index - 1] == frames.starts[index]
        if joins and head.sound[index - 1] and head.sound[index] and base > following:
            place = int(frames.positions[index])
            yield Mark("batches before this one are missing", place, offset=base, expected=following, found=base)


@rule("kraft.checkpoint.record", Severity.ERROR)
def record(seen: Inspection) -> Iterator[Mark]:
    """A record of a snapshot is not one that a controller takes: it has a key, no value, or bytes that are not a metadata record.

    Records of a type or version that rawlog does not know are only a warning: a newer Kafka wrote them. They are shown raw. rawlog does
    not read records larger than any that a controller writes; this is a warning, too.
    """
    for position, offset, control, key, value in seen.share(records_of):
        if control:
            continue
        if key is not None or not value:
            yield Mark("a metadata record must have a value and no key", position, offset=offset)
            continue
        try:
            decode_record(value)
        except (UnsupportedError, LimitError) as error:
            yield Mark(error.message, position, offset=offset, severity=Severity.WARNING)
        except DataError as error:
            yield Mark(error.message, position, offset=offset)


@rule("kraft.checkpoint.epoch", Severity.WARNING)
def snapshot_epoch(seen: Inspection) -> Iterator[Mark]:
    """The batches of a snapshot carry another epoch than its name. It was renamed, or put together by hand."""
    named = snapshot_id(seen.file.path)
    if named is None:
        return
    head, positions, stops = heads(seen.frames), seen.frames.positions, seen.frames.stops + seen.frames.base
    is_wrong = head.sound & (head["leader_epoch"] != named[1])
    edges = np.flatnonzero(np.diff(is_wrong, prepend=False, append=False))
    for start, stop in edges.reshape(-1, 2).tolist():
        epoch, place = int(head["leader_epoch"][start]), int(positions[start])
        yield Mark(f"epoch {epoch}", place, int(stops[stop - 1]) - place, expected=named[1], found=epoch)


@rule("kraft.checkpoint.content", Severity.WARNING)
def content(seen: Inspection) -> Iterator[Mark]:
    """A snapshot has a record of a change instead of a state: a removal, an update, or the begin or end of a transaction.

    Controllers write no such record: a tool wrote the file. It is loaded by the rules for the log.
    """
    for position, offset, control, _, value in seen.share(records_of):
        schema = None if control or not value else _schema(value)
        if schema is not None and schema not in LIVE:
            yield Mark(f"{schema} in a snapshot", position, offset=offset, found=schema)


@rule("kraft.checkpoint.level", Severity.WARNING)
def snapshot_level(seen: Inspection) -> Iterator[Mark]:
    """A record of a snapshot is of a version that the snapshot's own metadata.version does not allow; or a bootstrap file does not
    begin with a metadata.version that a controller can start with (an error: it refuses to).
    """
    memory = seen.memory
    for position, offset, control, _, value in seen.share(records_of):
        if control or not value:
            continue
        try:
            key, version, message = decode_record(value)
        except DataError:
            continue
        schema = framed_types()[key].name
        if schema == "FeatureLevelRecord" and message["name"] == METADATA_VERSION:
            memory["level"] = message["featureLevel"]
        if "level" not in memory:
            continue
        least = LEAST_LEVEL.get((schema, version), 0)
        if memory["level"] < least:
            what = f"{schema} version {version} under metadata.version {memory['level']}"
            yield Mark(what, position, offset=offset, expected=f"at least {least}", found=memory["level"])
    if seen.frames.last and is_bootstrap(seen.file.path) and memory.get("level", 0) < LEAST_BOOTSTRAP:
        level_text = f"metadata.version {memory['level']}" if "level" in memory else "no metadata.version"
        yield Mark(
            level_text, 0, expected=f"at least {LEAST_BOOTSTRAP}", found=memory.get("level"), severity=Severity.ERROR
        )


def _schema(value: bytes) -> str | None:
    try:
        return framed_types()[frame_head(value)[0]].name
    except (DataError, KeyError):
        return None


def _rename_rule(log_rule: Rule[Inspection]) -> Rule[Inspection]:
    return replace(log_rule, code=log_rule.code.replace("kafka.log.", "kraft.checkpoint."))


def checkpoint_rules() -> Sequence[Rule[Inspection]]:
    """Those of every log, under this format's name, and a snapshot's own."""
    kept = (
        log_rule for log_rule in kafka_checks.rules() if log_rule.code != "kafka.log.base"
    )  # offsets begin at 0 whatever the name says
    return (*(_rename_rule(log_rule) for log_rule in kept), incomplete, record, snapshot_epoch, content, snapshot_level)


# ----------------------------------------------------------------------------------------------------------------------
# Is anything missing in a metadata log? Every offset from the end of a snapshot to the end of the log: `rawlog verify --complete`.
# A controller deletes segments from the beginning of the log once a snapshot has their state, and a follower that fetched a snapshot
# deletes its log. So offsets before the log begins, or after its end, are expired if a whole snapshot was taken after them. Nothing
# deletes from inside the log: gaps there are unexplained. The finding says so, and whether a snapshot covers them.


def accounts(files: Sequence[File]) -> list[Account]:
    """The account of each metadata log among some files."""
    return [account for account, _, _ in Store.of(files).share(_directory_accounts)]


def _directory_accounts(files: Store) -> list[tuple[Account, Intervals, MetadataStore]]:
    readable = Store(file for file in files if file.problem is None)
    readable.summaries = files.summaries
    accounts = []
    for store in (directory.settled for directory in stores(readable)):
        if store.segments:
            # Damaged batches are missing too.
            inside = Intervals([(store.first, store.outline.end)]).subtract(store.present)
            missing = Intervals((*store.missing, *inside))
            accounts.append((_account(store, missing), missing, store))
    return accounts


def _account(store: MetadataStore, missing: Intervals) -> Account:
    start = min([store.first, *(first for first, _ in missing)])
    stop = max([store.outline.end, *store.covered, *(last for _, last in missing)])
    control = sum(store.contents(segment).controls for segment in store.segments)
    for batch, _ in store.log.aside if store.outline.aside else ():
        control -= batch.count if batch.is_control else 0
    return Account(
        system="kraft",
        topic=METADATA_TOPIC,
        partition=0,
        path=store.folder,
        start=start,
        stop=stop,
        present=store.present.total - control,
        control=control,
        expired=stop - store.present.total - missing.total,
        unexplained=missing.total,
    )


@rule("kraft.complete.unexplained", Severity.ERROR)
def unexplained(files: Sequence[File]) -> Iterator[Mark]:
    """Offsets of the metadata log are missing: inside the log, or before its beginning or after its end without a snapshot that has what
    they led to. (With `--complete` only.)

    A metadata log is never compacted, and its segments are deleted only from its beginning, when a snapshot has their state. So a gap
    inside the log is unexplained even if a snapshot covers it; the finding says whether one does. Take the missing segments, or a newer
    snapshot, from another controller: `rawlog rescue` takes all disks.
    """
    for account, missing, store in Store.of(files).share(_directory_accounts):
        few = Few()
        for first, last in missing:
            message = f"{missing_text(first, last - 1, counts=True)}: {_reason(store, first, last)}"
            few.append(Mark(message, offset=first, path=account.path))
        yield from few


def _reason(store: MetadataStore, first: int, last: int) -> str:
    """What is known of why offsets are missing."""
    if last <= store.first:
        return "the log begins after them, and no whole snapshot leads up to its beginning"
    if first >= store.outline.end:
        return "another file says that the log was longer"
    snapshot = next((end for end in store.covered if end >= last), None)
    if snapshot is None:
        return "no sound batch has them, and no whole snapshot covers them"
    return f"no sound batch has them; the snapshot at offset {snapshot:,} covers them"


# ----------------------------------------------------------------------------------------------------------------------
# What verification looks for in a metadata directory: its log replayed as a controller would, its snapshots compared with it.


Files = Sequence[File]
_BEGIN, _FEATURE = 23, 12


def _survey(files: Store) -> dict[str, Few]:
    """The findings on the metadata directories among some files, by the rule that reports them."""
    readable = Store(file for file in files if file.problem is None)
    readable.summaries = files.summaries
    marks: dict[str, Few] = defaultdict(Few)
    for store in stores(readable):
        if store.segments or store.snapshots:
            for path, reason in store.foreign.items():
                marks["refused"].append(Mark(f"a segment of another metadata log: {reason}", 0, path=path))
            store = store.settled
            _Survey(store, marks).run()
            for file in readable:
                if file.format == QUORUM_FORMAT:
                    _quorum(file, store, marks)
    return marks


def _marks_of(files: Files, code: str) -> Iterable[Mark]:
    return Store.of(files).share(_survey).get(code, ())


class _Survey:
    """A metadata log replayed from what passes over its files found, with the state as it grows."""

    def __init__(self, store: MetadataStore, marks: dict[str, Few]) -> None:
        self.store, self.marks = store, marks
        self.state = State()
        self.level: int | None = None
        self.early: Mark | None = None

    def run(self) -> None:
        self.marks["gap"].join(self.store.gaps)
        for segment in self.store.segments:
            self.marks["shape"].join(self.store.contents(segment).shapes)
        self.snapshots()
        for segment in self.store.segments:
            self.segment(segment)
        began = self.state.open_transaction
        if began is not None:
            mark = Mark(
                "a metadata transaction has not ended: its records do not count", offset=began, severity=Severity.INFO
            )
            self.marks["transaction"].append(mark)
        self.epochs()
        self.partitions()

    def epochs(self) -> None:
        """Report the epochs that the outline corrects."""
        for batch in self.store.log.batches if self.store.outline.corrections else ():
            if batch.stored_epoch != batch.epoch:
                message = f"epoch {batch.stored_epoch}, the batches around it have epoch {batch.epoch}"
                self.mark("epoch", message, batch.file, batch.start, batch.stored, batch.epoch, batch.stored_epoch)

    def snapshots(self) -> None:
        """Whether a controller could start, and from what; the replay begins from what it would load for the log's start."""
        store = self.store
        start, (last_epoch, end) = store.start, store.end
        whole = [snapshot for snapshot in store.newest_first if store.is_whole(snapshot)]
        ids = {snapshot.path: snapshot_id(snapshot.path) or (0, 0) for snapshot in whole}
        for snapshot in whole:
            if (reason := store.misnamed(snapshot)) is not None:
                self.marks["name"].append(Mark(reason, offset=ids[snapshot.path][0], path=snapshot.path))
        if store.first > 0 and not any(ids[path][0] >= store.first for path in store.leading):
            message = f"the log begins at offset {store.first}, and no whole snapshot leads up to it"
            self.marks["no-snapshot"].append(Mark(message, offset=store.first, path=store.segments[0].path))
        if whole and store.segments:
            offset, epoch = ids[whole[0].path]
            if epoch > last_epoch or (epoch == last_epoch and offset > end):
                message = f"ends at offset {offset} of epoch {epoch}, the log at {end} of {last_epoch}: the log would be emptied"
                self.marks["ahead"].append(
                    Mark(message, offset=end, expected=f"at most {end}", found=offset, path=whole[0].path)
                )
        first = min(
            (snapshot for snapshot in whole if ids[snapshot.path][0] >= start > 0),
            key=lambda snapshot: ids[snapshot.path],
            default=None,
        )
        if first is not None:
            store.load(self.state, first, "skip")
            self.state.end_offset = ids[first.path][0]
            self.level = self.state.features.get(METADATA_VERSION)
        self.state.problems.clear()
        self.compare(whole)

    def compare(self, whole: Sequence[File]) -> None:
        """Compare every snapshot with the state that the log and an older snapshot give at its offset."""
        store = self.store
        end = store.end[1]
        for snapshot in whole:
            offset, _ = snapshot_id(snapshot.path) or (0, 0)
            if not max(store.start, 1) <= offset <= end:
                continue
            older = [file for file in store.snapshots if (snapshot_id(file.path) or (0, 0))[0] < offset]
            if store.start > 0 and not any((snapshot_id(file.path) or (0, 0))[0] >= store.start for file in older):
                continue
            try:
                before = MetadataStore([*store.segments, *older], store.folder, store.summaries)
                log_state = before.fold(Moment(offset=offset - 1))
                snapshot_state = MetadataStore([snapshot], store.folder, store.summaries).fold()
            except RawlogError:
                continue  # reported elsewhere
            if log_state.open_transaction is not None or log_state.image_lines() == snapshot_state.image_lines():
                continue
            image, folded = set(snapshot_state.image_lines()), set(log_state.image_lines())
            message = f"{len(image - folded)} of its records are not what the log leads to, and {len(folded - image)} are missing"
            self.marks["differs"].append(Mark(message, offset=offset, path=snapshot.path))

    def segment(self, file: File) -> None:
        for rows in self.store.rows([file], "skip"):
            for index, offset in enumerate(rows.offsets):
                value = rows.values[index] or b""
                if rows.controls[index]:
                    self.state.add_control(offset, rows.kinds[index] or 0, value)
                elif offset >= self.state.end_offset:
                    self.replay(file, rows.positions[index], offset, value)

    def replay(self, file: File, position: int, offset: int, value: bytes) -> None:
        try:
            key, version, message = decode_record(value)
            self.version(file, position, offset, key, version, message)
        except DataError:
            pass  # the state reports it
        self.state.add(offset, value)
        for problem in self.state.problems:
            code = {"bracket": "transaction", "unknown": "unknown"}.get(problem.kind, "refused")
            self.mark(code, problem.message, file, position, problem.offset)
        self.state.problems.clear()

    def version(self, file: File, position: int, offset: int, key: int, version: int, message: Message) -> None:
        """Compare the version of a record with the metadata.version in force."""
        if key == _FEATURE and message["name"] == METADATA_VERSION:
            self.level = message["featureLevel"]
            if self.early is not None and self.level > 1:
                self.marks["level"].append(self.early)
            self.early = None
            return
        schema = framed_types()[key].name
        if self.level is None:
            if key != _BEGIN and self.early is None:
                message_text = f"{schema} before any metadata.version is set"
                self.early = Mark(message_text, position, offset=offset, path=file.path)
            return
        least = LEAST_LEVEL.get((schema, version), 0)
        if self.level < least:
            what = f"{schema} version {version} under metadata.version {self.level}"
            self.mark("level", what, file, position, offset, f"at least {least}", self.level)

    def partitions(self) -> None:
        """What holds of every partition at the end of the log."""
        for key, topic in self.state.topics.items():
            if not any(key):
                self.marks["partition"].append(Mark(f"topic {topic.name} has an id of zeros"))
            for number, partition in topic.partitions.items():
                for what in _oddities(partition):
                    path = self.store.segments[-1].path if self.store.segments else self.store.folder
                    text = f"{topic.name}-{number} ({uuid_text(key)}): {what}"
                    self.marks["partition"].append(Mark(text, offset=self.state.end_offset, path=path))

    def mark(
        self,
        code: str,
        message: str,
        file: File,
        position: int,
        offset: int,
        expected: object = None,
        value: object = None,
    ) -> None:
        self.marks[code].append(Mark(message, position, offset=offset, expected=expected, found=value, path=file.path))


def _oddities(partition: Message) -> Iterator[str]:
    replicas, isr, elr = set(partition["replicas"]), set(partition["isr"]), set(partition["eligibleLeaderReplicas"])
    leader = partition["leader"]
    if not isr <= replicas:
        yield f"in sync {sorted(isr - replicas)}, which are not replicas"
    if not elr <= replicas:
        yield f"eligible to lead {sorted(elr - replicas)}, which are not replicas"
    if isr & elr:
        yield f"{sorted(isr & elr)} are both in sync and eligible to lead"
    if leader != NO_LEADER and leader not in replicas:
        yield f"leader {leader} is not a replica"
    elif leader != NO_LEADER and leader not in isr and partition["leaderRecoveryState"] == 0:
        yield f"leader {leader} is not in sync"
    if len(partition["directories"]) != len(partition["replicas"]):
        yield f"{len(partition['directories'])} directories for {len(partition['replicas'])} replicas"


def _quorum(file: File, store: MetadataStore, marks: dict[str, Few]) -> None:
    try:
        with Source(file.path) as source:
            epoch = parse_quorum(source.read(0, 1 << 20))["leaderEpoch"]
    except (ValueError, RawlogError):
        return
    if isinstance(epoch, int) and epoch < store.end[0]:
        message = f"epoch {epoch}, although the log reaches {store.end[0]}"
        marks["quorum"].append(Mark(message, expected=f"at least {store.end[0]}", found=epoch, path=file.path))


@rule("kraft.metadata.gap", Severity.ERROR)
def gap(files: Files) -> Iterator[Mark]:
    """Offsets are missing, or are there twice, between two batches of the metadata log, which is never compacted.

    The state after the gap is not what the cluster had. Take the missing segment from another controller.
    """
    yield from _marks_of(files, "gap")


@rule("kraft.metadata.epoch", Severity.WARNING)
def epoch(files: Files) -> Iterator[Mark]:
    """A batch of the metadata log has another epoch than the batches around it, without a change of leader between them.

    No checksum covers the epoch of a batch. `rawlog repair` sets it to the epoch of the batches around it.
    """
    yield from _marks_of(files, "epoch")


@rule("kraft.metadata.shape", Severity.ERROR)
def shape(files: Files) -> Iterator[Mark]:
    """A record has a key, headers, no value, or another time than its batch. Controllers write none of these, and refuse them."""
    yield from _marks_of(files, "shape")


@rule("kraft.metadata.unknown", Severity.WARNING)
def unknown(files: Files) -> Iterator[Mark]:
    """A record has an unknown type or version, or its bytes do not fit its type. It is shown raw and is not part of
    the state.

    A newer Kafka wrote it: an older controller would stop here, too. Or it is damaged, although its checksum is right.
    """
    yield from _marks_of(files, "unknown")


@rule("kraft.metadata.refused", Severity.ERROR)
def refused(files: Files) -> Iterator[Mark]:
    """A record does not fit the state that the records before it lead to: it changes or removes what is not there.

    A controller that replays the log stops here. Records before it are missing, or logs of two clusters were put together.
    """
    yield from _marks_of(files, "refused")


@rule("kraft.metadata.transaction", Severity.ERROR)
def transaction(files: Files) -> Iterator[Mark]:
    """Metadata transactions must begin before they end, one at a time. A transaction that is still open at the end of
    the log is normal (information only): its records do not count yet.
    """
    yield from _marks_of(files, "transaction")


@rule("kraft.metadata.level", Severity.WARNING)
def level(files: Files) -> Iterator[Mark]:
    """A record has a version that the current metadata.version does not allow, or comes before metadata.version is set.

    Controllers of that level could not read it; a tool wrote it, or a downgrade went wrong.
    """
    yield from _marks_of(files, "level")


@rule("kraft.metadata.partition", Severity.ERROR)
def partition(files: Files) -> Iterator[Mark]:
    """At the end of the log a partition is in an invalid state: its leader or in-sync replicas are not among its replicas, or there are
    not as many directories as replicas.
    """
    yield from _marks_of(files, "partition")


@rule("kraft.checkpoint.missing", Severity.ERROR)
def missing(files: Files) -> Iterator[Mark]:
    """The log does not begin at offset 0, and no whole snapshot covers what is gone. A controller refuses to start on it.

    Take a snapshot from another controller; `repair` makes one of what can still be read.
    """
    yield from _marks_of(files, "no-snapshot")


@rule("kraft.checkpoint.ahead", Severity.WARNING)
def ahead(files: Files) -> Iterator[Mark]:
    """The newest snapshot is ahead of the log. A controller throws the log away and goes on from the snapshot.

    That is normal just after a follower fetched a snapshot; else the end of the log is lost.
    """
    yield from _marks_of(files, "ahead")


@rule("kraft.checkpoint.differs", Severity.WARNING)
def differs(files: Files) -> Iterator[Mark]:
    """A snapshot and the log disagree on the state at the snapshot's offset. One of them was changed, or belongs to another cluster."""
    yield from _marks_of(files, "differs")


@rule("kraft.checkpoint.name", Severity.WARNING)
def name(files: Files) -> Iterator[Mark]:
    """A snapshot and the log disagree on the time of the record at the snapshot's offset, or the log has a batch that goes on there: the
    snapshot was renamed, or belongs to another cluster.

    A controller loads it, and then applies records of the log twice or leaves some out. `rawlog repair` gives it the name that its time
    leads to, or leaves it out.
    """
    yield from _marks_of(files, "name")


@rule("kraft.quorum.epoch", Severity.WARNING)
def quorum_epoch(files: Files) -> Iterator[Mark]:
    """The election state has an older epoch than the log: somebody copied it here. A controller uses the epoch of the log."""
    yield from _marks_of(files, "quorum")


def rules() -> Sequence[Rule[Files]]:
    """All of them."""
    return (
        gap,
        epoch,
        shape,
        unknown,
        refused,
        transaction,
        level,
        partition,
        missing,
        ahead,
        differs,
        name,
        quorum_epoch,
        unexplained,
    )
