"""The settings of a repaired store: readable files copied, entries that a broker refuses left out, lost files rebuilt from the rest of the
store.

Topics follow from queues and messages, delay offsets from the copies that were delivered, groups from the names that offsets and topics
have. What nothing else shows (consumer offsets, filters) is reported as lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rawlog.formats.rocketmq import below_root, config
from rawlog.formats.rocketmq.config import LoadedConfig
from rawlog.formats.rocketmq.layouts import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.dispatch import DerivedEntries
from rawlog.formats.rocketmq.store.rewrite import copy, drop, topic_config
from rawlog.formats.rocketmq.store.settings import is_batch
from rawlog.formats.rocketmq.store.state import entries_in
from rawlog.io.output import Folder
from rawlog.model.errors import DataError
from rawlog.model.format import File
from rawlog.model.report import Action, Report
from rawlog.model.text import counted

MOST_NOTES = 20
BROKERS_OWN = ("TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", SCHEDULE_TOPIC)
"""Topics that a broker makes itself when it starts, with those that begin as below."""
BROKERS_PREFIXES = ("rmq_sys_", "RMQ_SYS_", LMQ_PREFIX)
WITHOUT = {
    "topics.json": "topics",
    "subscriptionGroup.json": "the settings of consumer groups; a broker makes groups again with defaults",
    "consumerOffset.json": "how far consumers had read; a broker lets them begin as if they were new",
    "lmqConsumerOffset.json": "how far consumers had read; a broker lets them begin as if they were new",
    "delayOffset.json": "which delayed messages were delivered; a broker delivers them again",
    "consumerFilter.json": "the filters of consumers; a broker learns them again when they connect",
    "consumerOrderInfo.json": "which messages of ordered queues are being consumed",
    "topicQueueMapping.json": "the queues of static topics",
    "messageRequestMode.json": "whether groups pull or pop",
    "tieredStoreMetadata.json": "what is in tiered storage",
    "timermetrics": "counts of timer messages by topic",
    "transactionMetrics": "counts of transactions by topic",
}
"""What is lost with each file that nothing can rebuild."""
OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")
"""How far consumers had read."""


class Configs:
    """The settings of a store on their way into its repaired copy."""

    def __init__(
        self,
        files: Sequence[File],
        folder: Folder,
        report: Report,
        others: Sequence[File] = (),
        *,
        cuts_offsets: bool = False,
    ) -> None:
        """`others` are consumer offsets of other replicas, for what the files lack. `cuts_offsets` sets offsets beyond the end of a queue
        to its end: messages that consumers had read are lost.
        """
        self.files, self.folder, self.report, self.others = files, folder, report, others
        self.cuts_offsets = cuts_offsets
        self.sources: dict[str, dict[bool, File]] = {}
        for file in files:
            if file.format == "rocketmq.config" and file.problem is None:
                self.sources.setdefault(config.name_of(file), {})[file.place.state is None] = file
        self.is_database = any(file.format == "rocketmq.configdatabase" for file in files)
        #: What a broker will read in the copy: all of it, and what has to be written for that.
        self.tables: dict[str, dict[str, Any]] = {}
        self.changed: dict[str, dict[str, Any]] = {}
        self.copies: dict[str, File] = {}

    def write(self, derived: DerivedEntries, batch_topics: frozenset[str]) -> None:
        """Write every settings file of the source, and those that have to be rebuilt."""
        for name in sorted(self.sources):
            self._take(name)
        for file in self.others:
            self._add_offsets(file)
        if self.cuts_offsets:
            self._cut_offsets(derived)
        self._topics(derived, batch_topics)
        self._groups(derived)
        self._delays(derived)
        for name in sorted(set(self.sources) - set(self.tables)):
            self._lose(next(iter(self.sources[name].values())), f"lost: {WITHOUT.get(name, 'its settings')}")
        for path, file in self.copies.items():
            if path.removeprefix("config/") not in self.changed:
                copy(self.folder, file, self.report)
        for name, value in self.changed.items():
            self.folder.write(f"config/{name}", json.dumps(_finite(value), indent="\t"))
            self.report.count("files")

    def _lose(self, file: File, reason: str) -> None:
        self.report.add(Action.LOST, reason, file.path)

    def _take(self, name: str) -> None:
        """The file and its copy as far as a broker can read them."""
        current, backup = (self._read(self.sources[name].get(is_current)) for is_current in (True, False))
        if backup is not None and not backup.is_refused:
            self._copy(backup.file)
        elif backup is not None:
            self._leave_out(backup.file, backup.problems[0])
        if current is None and backup is not None and not backup.is_refused:
            self.tables[name] = backup.value
            return
        loaded = current or backup
        if loaded is None:
            return
        if loaded is current and not loaded.problems and not loaded.repeated:
            self.tables[name] = loaded.value
            self._copy(loaded.file)
            return
        if backup is not None and loaded is current:
            self._recover(name, loaded, backup)
        for problem in loaded.problems[:MOST_NOTES]:
            self._lose(loaded.file, f"{problem}: left out")
        for problem in loaded.repeated[:MOST_NOTES]:
            self.report.add(Action.CHANGED, problem, loaded.file.path, is_expected=True)
        self.report.count("settings_lost", len(loaded.problems))
        main = next(iter(config.SHAPES.get(name, {})), None)
        if loaded.problems and main is not None and not loaded.value.get(main):
            return  # nothing of it can be read: as good as missing, so that it is made again if it can be
        self._put(name, loaded.value)

    def _read(self, file: File | None) -> LoadedConfig | None:
        """A file of settings; None if it is not JSON, which is reported. A copy of nothing is normal."""
        if file is None:
            return None
        try:
            return config.read(file)
        except DataError as error:
            if file.size or file.place.state is None:
                self._leave_out(file, error.message)
            else:
                self._copy(file)
        return None

    def _leave_out(self, file: File, why: str) -> None:
        others = self.sources[config.name_of(file)]
        backup = others.get(False) if file.place.state is None else None
        then = "; a broker takes the .bak, which is one version older" if backup and _is_taken(backup) else ""
        current = others.get(True) if file.place.state is not None else None
        if current is not None and _is_taken(current):  # a broker writes the .bak again with the next change
            self.report.add(Action.DROPPED, f"{why}: left out", file.path, start=0, stop=file.size, is_expected=True)
        else:
            drop(self.report, f"{why}: left out{then}", file.path, 0, file.size)

    def _recover(self, name: str, current: LoadedConfig, backup: LoadedConfig) -> None:
        """Take entries that a broker refuses in the file from the `.bak`, which is one version older."""
        raw = config.raw_tables(current.file)
        for table in config.SHAPES.get(name, {}):
            backup_entries = backup.value.get(table)
            if table not in raw or not isinstance(backup_entries, dict):
                continue
            kept = current.value.setdefault(table, {})
            names = set(raw[table]) if isinstance(raw[table], dict) else set(backup_entries)
            for entry in sorted(names & set(backup_entries) - set(kept)):
                kept[entry] = backup_entries[entry]
                reason = f"{table}.{entry}: taken from the .bak, one version older"
                self.report.add(Action.CHANGED, reason, current.file.path, is_expected=True)

    def _add_offsets(self, file: File) -> None:
        """Add missing consumer offsets from another replica. If neither file has a data version, the larger offset counts."""
        try:
            other = config.read(file).value
        except DataError:
            return
        name = config.name_of(file)
        current = self.tables.get(name, {})
        is_older = "dataVersion" in current or "dataVersion" in other
        table = {key: dict(offsets) for key, offsets in (current.get("offsetTable") or {}).items()}
        added = 0
        for key, offsets in (other.get("offsetTable") or {}).items():
            for queue_id, offset in offsets.items():
                previous = table.setdefault(key, {}).get(queue_id)
                if previous is None or (offset > previous and not is_older):
                    table[key][queue_id] = offset
                    added += 1
        if added:
            self._put(name, current | {"offsetTable": table})
            self.report.notes.append(f"config/{name}: {counted(added, 'consumer offset')} from {file.path}")

    def _cut_offsets(self, derived: DerivedEntries) -> None:
        """Set consumer offsets beyond the end of their queue to the end, else consumers would skip later messages."""
        lost: dict[dispatch.Queue, tuple[int, int]] = {}
        for name in OFFSETS:
            table = {
                key: dict(offsets) for key, offsets in (self.tables.get(name, {}).get("offsetTable") or {}).items()
            }
            is_cut = False
            for key, offsets in table.items():
                for queue_id, offset in offsets.items():
                    queue = (key.partition("@")[0], int(queue_id))
                    units = derived.queue(queue)
                    if not units.shape[1]:
                        continue
                    end = int(units[dispatch.U_OFFSET][-1] + units[dispatch.U_BATCH][-1])
                    if offset > end:
                        offsets[queue_id], is_cut = end, True
                        lost[queue] = (end, max(offset, lost.get(queue, (0, 0))[1]))
            if is_cut:
                self._put(name, self.tables[name] | {"offsetTable": table})
        for (topic, queue_id), (end, offset) in sorted(lost.items()):
            reason = (
                f"{topic} queue {queue_id}: lost; consumers had read them, their offset is now the end of the queue"
            )
            self.report.count("messages_lost", offset - end)
            self.report.add(Action.LOST, reason, first_offset=end, stop_offset=offset)

    def _copy(self, file: File) -> None:
        self.copies[below_root(file)] = file

    def _put(self, name: str, value: dict[str, Any]) -> None:
        """A file of settings with this value, in place of any other."""
        self.tables[name] = self.changed[name] = value

    def _rebuild(self, name: str, reason: str) -> None:
        """Report a file that is made from other parts of the store."""
        files = self.sources.get(name, {})
        file = files.get(True) or files.get(False)
        self.report.add(Action.REBUILT, reason, f"config/{name}" if file is None else file.path)

    # Rebuilt

    def _topics(self, derived: DerivedEntries, batch_topics: frozenset[str]) -> None:
        """Rebuild lost topics, and give topics the type of their queues: 5.x does not start if they differ."""
        counts = self._queue_counts(derived)
        batch = {topic for topic, _ in derived.units if topic in batch_topics}
        if "topics.json" not in self.tables:
            if self.is_database or not counts:
                return
            table = {name: self._topic(name, count, name in batch) for name, count in sorted(counts.items())}
            what = "made again" if "topics.json" in self.sources else "missing; made"
            self._rebuild(
                "topics.json",
                f"{what} from queues and messages, with {counted(len(table), 'topic')}; permissions, other attributes "
                "and queues that nothing was sent to are not known",
            )
        else:
            table = self.tables["topics.json"].get("topicConfigTable") or {}
            wrong = [name for name in sorted(batch) if not is_batch(table.get(name) or {})]
            if not wrong:
                return
            for name in wrong:
                defaults = self._topic(name, counts.get(name, 1), True)
                table[name] = defaults | (table.get(name) or {}) | {"attributes": defaults["attributes"]}
                self._rebuild("topics.json", f"topic {name} has queues of batches; its attribute now says so")
        self._put("topics.json", self.tables.get("topics.json", {}) | {"topicConfigTable": table})

    def _topic(self, name: str, count: int, is_batch: bool) -> dict[str, Any]:
        attributes = {"queue.type": "BatchCQ"} if is_batch else {}
        if any(file.format == "rocketmq.compactionlog" and file.place.topic == name for file in self.files):
            attributes["cleanup.policy"] = "COMPACTION"
        return topic_config(name, count, attributes)

    def _queue_counts(self, derived: DerivedEntries) -> dict[str, int]:
        """How many queues each topic has, by what was sent to it, its directories and consumer offsets."""
        queues = {(topic, queue_id) for topic, queue_id in derived.units if queue_id >= 0}
        for file in self.files:
            if file.place.topic is not None and file.place.partition is not None:
                queues.add((file.place.topic, file.place.partition))
        topics = {topic for topic, _ in queues}
        for key, offsets in self._offsets():
            topic = key.partition("@")[0]
            queues |= {(topic, int(queue_id)) for queue_id in offsets if topic in topics and int(queue_id) < 1 << 16}
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in BROKERS_OWN and not topic.startswith(BROKERS_PREFIXES):
                counts[topic] = max(counts.get(topic, 1), queue_id + 1)
        return counts

    def _offsets(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        for name in OFFSETS:
            yield from (self.tables.get(name, {}).get("offsetTable") or {}).items()

    def _groups(self, derived: DerivedEntries) -> None:
        """Groups by their names, where their settings are lost; each has a broker's defaults."""
        if "subscriptionGroup.json" not in self.sources or "subscriptionGroup.json" in self.tables:
            return
        topics = {topic for topic, _ in derived.units}
        names = {key.partition("@")[2] for key, _ in self._offsets()}
        for topic in topics:
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                name = topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
                popped = [suffix for suffix in topics for mark in "_+" if name.endswith(mark + suffix)]
                names.add(name[: -len(max(popped, key=len)) - 1] if popped else name)
        names = {name for name in names if name and not name.startswith("CID_RMQ_SYS_")}
        value = {"subscriptionGroupTable": {name: {"groupName": name} for name in sorted(names)}}
        self._rebuild(
            "subscriptionGroup.json",
            f"made again with the {len(names):,} groups that offsets and topics name, with defaults: their settings are lost",
        )
        self._put("subscriptionGroup.json", value)

    def _delays(self, derived: DerivedEntries) -> None:
        """How far each delay level was delivered, by the copies in the real topics. Without it a broker delivers all again."""
        if "delayOffset.json" in self.tables or not any(topic == SCHEDULE_TOPIC for topic, _ in derived.units):
            return
        offsets = delivered_offsets(self.files)
        if not offsets:
            return
        value = {"offsetTable": {str(level): offset for level, offset in sorted(offsets.items())}}
        what = "made again" if "delayOffset.json" in self.sources else "missing; made"
        self._rebuild(
            "delayOffset.json", f"{what} from the delayed messages that were delivered, for {len(offsets):,} levels"
        )
        self._put("delayOffset.json", value)


def _is_taken(backup: File) -> bool:
    try:
        return not config.read(backup).is_refused
    except DataError:
        return False


def _finite(value: Any) -> Any:
    """A value without the numbers that JSON cannot express."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def delivered_offsets(files: Iterable[File]) -> dict[int, int]:
    """The next queue offset to deliver of each delay level from which anything was delivered, as the sound messages of a log show.

    A message was delivered if one with its unique key follows it in its real topic. Those of a level are delivered in order.
    """
    waiting: list[tuple[int, int, int, tuple[str, str]]] = []
    copies: dict[tuple[str, str], int] = {}
    for file in dispatch.commit_logs(files):
        for rows in dispatch.messages_of(file, errors="skip"):
            for entry in entries_in(rows.where(rows.crc_ok)):
                if not entry.unique_key:
                    continue
                if entry.topic == SCHEDULE_TOPIC:
                    key = (entry.real[0] or "", entry.unique_key)
                    waiting.append((entry.queue_id + 1, entry.queue_offset, entry.physical, key))
                else:
                    copies[entry.topic, entry.unique_key] = entry.physical
    offsets: dict[int, int] = {}
    for level, offset, address, key in waiting:
        if copies.get(key, -1) > address:
            offsets[level] = max(offsets.get(level, 0), offset + 1)
    return offsets
