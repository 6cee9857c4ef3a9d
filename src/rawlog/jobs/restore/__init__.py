"""Restore: a data directory that a single-node broker starts on, from a broker's directories, a lake, Parquet or any records.

Plan: which topics there will be, under which names, and a split for each partition. Work: one partition directory. Commit: the cluster's
metadata beside them, the committed offsets, and all of it in place at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from rawlog.core.errors import AccessError, OptionError, UnknownFormatError
from rawlog.formats.kafka.checkpoints import LOG_START, offsets_in
from rawlog.formats.kafka.messages import CONSUMER_OFFSETS, TRANSACTION_STATE
from rawlog.formats.kafka.showing import uuid_bytes, uuid_text
from rawlog.formats.kafka.store.partition_writer import PartitionWriter, refuse_existing, topic_id_in
from rawlog.formats.kafka.store.sink import is_topic
from rawlog.formats.kraft.store import committed
from rawlog.formats.kraft.store.blueprint import (
    INTERNAL_CONFIGS,
    PRODUCER_BLOCK,
    Blueprint,
    Topic,
    new_id,
    safe_configs,
)
from rawlog.formats.kraft.store.carrying import Wish
from rawlog.io.output import Output, child
from rawlog.io.storage import is_remote, local_path
from rawlog.jobs.job import Job, Split, Stage
from rawlog.jobs.lake import is_lake
from rawlog.jobs.restore.directories import Directory, Known, Offer, offered
from rawlog.jobs.restore.tables import offered_files, offered_lake, offered_rows, parquet_files
from rawlog.jobs.restore.values import NEVER, Asked, Part, Restored, Restoring, Result
from rawlog.reading.names import missing_topics
from rawlog.reading.tree import Tree, open_tree

#: So many partitions of a topic may be missing; a higher number is a name that only looks like a partition's.
MOST_MISSING = 10_000

__all__ = ["Asked", "Restore", "Restored", "Restoring"]


class Restore(Job[Part, Result]):
    """Restore to a directory. Use as a context manager: what is on its way is removed at the end."""

    def __init__(self, target: str, asked: Asked) -> None:
        """OptionError for what cannot be."""
        if is_remote(target):
            raise OptionError(f"{target}: a broker's directory is a local one")
        self.target = Path(local_path(target)).absolute()
        self.asked = asked.check()
        self.now = int(time.time() * 1000)
        self.topics: list[Topic] = []
        self.account = Restored(target=str(self.target))
        self._offer: Offer | None = None
        self._carries_batches = False
        self.output = Output(self.target, overwrite=asked.overwrite)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_offer": None, "account": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each partition. OptionError if nothing is there that is asked for."""
        self.output.refuse(tree.sources)
        self._check_target()
        self.stage = self.output.open()
        offer = self._offer = self._offered(tree)
        self._carries_batches = any(isinstance(one, Directory) for one in offer.partitions.values())
        self.account.notes += offer.notes
        asked = self.asked
        present = sorted({topic for topic, _ in offer.partitions} | set(offer.known))
        for problem in missing_topics(asked.topics, present) if present else ():
            if isinstance(problem, OptionError):
                raise problem
            self.account.notes.append(problem)
        wanted = [topic for topic in present if self._wants(topic)]
        unknown = [old for old in asked.rename if old not in wanted]
        if unknown:
            raise OptionError(f"rename {', '.join(unknown)}: no such topic among those restored")
        if not wanted:
            raise OptionError(f"no topic here is asked for; there are: {', '.join(present[:20]) or 'none'}")
        self.topics = [self._topic(topic, offer) for topic in wanted]
        names = [topic.name for topic in self.topics]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise OptionError(f"two topics would be named {', '.join(sorted(twice))}")
        tasks = [task for topic in self.topics for task in self._tasks(topic, offer)]
        tasks += self._offset_tasks(offer)
        return [Split(number, task.content.size, task) for number, task in enumerate(tasks)]

    def _check_target(self) -> None:
        target, asked = self.target, self.asked
        if asked.partitions_only:
            return
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
        if taken and not (asked.overwrite and target.is_dir()):
            raise AccessError(f"{target}: exists already and is not empty; choose another name, or --force")
        self.output.check()

    def _offered(self, tree: Tree) -> Offer:
        asked = self.asked
        lakes = [root for root in tree.roots if is_lake(root)]
        if lakes:
            if len(tree.roots) > 1:
                raise OptionError(f"{lakes[0]} is a lake: name it alone")
            return offered_lake(lakes[0], asked.topics)
        if any(file.format == "kafka.log" and file.place.topic is not None for file in tree):
            return offered(tree, asked.until, asked.errors, asked.topics)
        files = parquet_files(tree.roots)
        if files:
            return offered_files(files)
        if "records" not in tree.tables:
            raise UnknownFormatError(f"{', '.join(tree.roots)}: nothing here can be read as records")
        assert self.stage is not None
        return offered_rows(tree, f"{self.stage}/rows", asked.topics, asked.errors)

    def _wants(self, topic: str) -> bool:
        if topic in NEVER:
            return False
        if topic in INTERNAL_CONFIGS:
            left = topic == CONSUMER_OFFSETS and not self.asked.offsets
            return self.asked.is_everything and self._carries_batches and not left
        return self.asked.wants(topic)

    def _topic(self, source: str, offer: Offer) -> Topic:
        """A topic as it will be: how many partitions, which settings."""
        asked = self.asked
        name = asked.rename.get(source, source)
        if not is_topic(name):
            raise OptionError(
                f"topic {name!r}: Kafka takes no such name; choose another with --rename, or leave it out with --topic"
            )
        known = offer.known.get(source, Known({}, {}))
        found = {number for topic, number in offer.partitions if topic == source} | set(known.epochs)
        count = max(found, default=-1) + 1
        if count > len(found) + MOST_MISSING:
            raise OptionError(f"topic {source}: partition {count - 1:,}, although only {len(found):,} are there")
        configs = {**INTERNAL_CONFIGS.get(source, {}), **known.configs}
        configs, notes = safe_configs(name, configs, keep_retention=asked.keep_retention)
        self.account.notes += notes
        own = offer.ids.get(source) or new_id()
        there = topic_id_in(self.target, name) if asked.partitions_only else None
        return Topic(
            name,
            source,
            own if there is None else uuid_bytes(there),
            count,
            configs,
            dict(known.epochs),
        )

    def _tasks(self, topic: Topic, offer: Offer) -> Iterator[Restoring]:
        asked = self.asked
        carries_state = asked.is_everything and any(name == TRANSACTION_STATE for name, _ in offer.partitions)
        interval = topic.configs.get("index.interval.bytes", "")
        wish = Wish(
            uuid_text(topic.id),
            None if asked.until is None else -(-asked.until // 1000),
            not carries_state,
            asked.errors,
            int(interval) if interval.isdecimal() else 4096,
        )
        kind = "refresh" if topic.source == CONSUMER_OFFSETS else "data"
        for number in range(topic.partitions):
            content = offer.partitions.get((topic.source, number))
            if content is None:
                if self._carries_batches:  # rows do not tell of a partition that has none
                    self.account.missing.append(f"{topic.name}-{number}")
                continue
            if asked.partitions_only:
                refuse_existing(self.target / f"{topic.name}-{number}", asked.overwrite)
            yield Restoring(topic.name, number, content, wish, kind)

    def _offset_tasks(self, offer: Offer) -> Iterator[Restoring]:
        """Partitions of committed offsets that are only looked into: what is wanted of them is written anew."""
        asked = self.asked
        if not asked.offsets or asked.partitions_only or any(topic.source == CONSUMER_OFFSETS for topic in self.topics):
            return
        wish = Wish(uuid_text(new_id()), None if asked.until is None else -(-asked.until // 1000), True, asked.errors)
        for (topic, number), content in offer.partitions.items():
            if topic == CONSUMER_OFFSETS:
                yield Restoring(topic, number, content, wish, "scratch")

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> Part:
        """One partition directory."""
        task: Restoring = split.task
        folder = child(Path(stage.path) / stage.name, f"{task.name}-{task.partition}")
        extra: Callable[[PartitionWriter], object] | None = None
        anew: list[committed.Current] = []
        if task.kind == "refresh" and isinstance(task.content, Directory):
            segments = [one for one in task.content.files if one.format == "kafka.log" and one.place.state is None]
            found = committed.current(segments, task.wish.errors)
            anew = list(committed.committed_anew(found, self.now, lambda topic: topic))
            extra = lambda writer: committed.append(writer, anew, self.now)  # noqa: E731
        with _told(self.target):
            folder.mkdir(parents=True)
            account = task.content.carry(folder, task.wish, stage.advance, extra)
        account.committed = sum(one.topic is not None for one in anew)
        return Part(split.number, task, str(folder), account)

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[Part]) -> Result:
        """Put the partitions together with the metadata of their cluster, and give the whole its name."""
        account, asked = self.account, self.asked
        parts = [one for one in done if one.task.kind != "scratch"]
        for part in parts:
            account.partitions[f"{part.task.name}-{part.task.partition}"] = part.account
        account.offsets_committed += sum(part.account.committed for part in parts)
        with _told(self.target):
            written = self._offsets([one for one in done if one.task.kind == "scratch"], parts)
            if asked.partitions_only:
                folder = self.output.new()
                _move(parts, folder)
                self.output.add(folder)
                self._log_starts(self.target, parts, offsets_in(str(self.target), LOG_START))
            else:
                folder = self.output.new()
                _move(parts, folder)
                for path in written:
                    path.rename(folder / path.name)
                self._log_starts(folder, parts, {})
                self._cluster(parts).write(str(folder), self.now)
                self.output.put(folder)
        kept = [part.account for part in parts]
        account.topics = len(self.topics)
        for name in ("records", "bytes", "records_cut", "transactions_aborted"):
            setattr(account, name, sum(getattr(one, name) for one in kept))
        return Result(account)

    def _cluster(self, parts: Sequence[Part]) -> Blueprint:
        assert self._offer is not None
        old = self._offer.state
        by_name = {topic.name: topic for topic in self.topics}
        for part in parts:
            epochs = by_name[part.task.name].epochs
            epochs[part.task.partition] = max(epochs.get(part.task.partition, 0), part.account.largest_epoch)
        largest = max(
            [0 if old is None else (old.next_producer_id or 0) - 1, *(one.account.largest_producer for one in parts)]
        )
        made = Blueprint(
            self.asked.node,
            self.asked.cluster_id or uuid_text(new_id()),
            self.topics,
            old,
            next_producer_id=(largest // PRODUCER_BLOCK + 1) * PRODUCER_BLOCK if largest >= 0 else 0,
            whole=not self.asked.topics,
        )
        if old is not None and old.kraft_version:
            self.account.notes.append(
                "the quorum of the source was a dynamic one; the new one is static: with controller.quorum.bootstrap.servers in place of "
                "controller.quorum.voters the broker would wait for ever"
            )
        if self.asked.level is not None or old is not None:
            made.level = self.asked.level or max(old.level if old is not None else 0, 4)
        self.account.cluster_id, self.account.node_id, self.account.metadata_version = (
            made.cluster_id,
            made.node,
            made.level,
        )
        return made

    def _offsets(self, scratch: Sequence[Part], parts: Sequence[Part]) -> list[Path]:
        """Partitions of `__consumer_offsets` with what is wanted of the old ones; the topic is one of the new cluster's."""
        if not scratch:
            return []
        names = {topic.source: topic.name for topic in self.topics}
        files = [file for part in scratch for file in open_tree(part.folder) if file.format == "kafka.log"]
        ends = {(part.task.name, part.task.partition): part.account.end_offset for part in parts}
        current = committed.current(files)
        anew = [one for one in committed.committed_anew(current, self.now, names.get, ends) if one.topic is not None]
        count = max([part.task.partition + 1 for part in scratch])
        known = self._offer.known.get(CONSUMER_OFFSETS) if self._offer is not None else None
        count = max(count, len(known.epochs) if known is not None else 0)
        topic = Topic(CONSUMER_OFFSETS, CONSUMER_OFFSETS, new_id(), count, dict(INTERNAL_CONFIGS[CONSUMER_OFFSETS]))
        self.topics.append(topic)
        self.account.offsets_committed += len(anew)
        made = []
        for number in range(count):
            assert self.stage is not None
            folder = Path(self.stage) / "offsets" / f"{CONSUMER_OFFSETS}-{number}"
            folder.mkdir(parents=True)
            writer = PartitionWriter(folder, None, topic_id=uuid_text(topic.id))
            try:
                committed.append(
                    writer, (one for one in anew if committed.partition_of(one.group, count) == number), self.now
                )
                writer.close()
            finally:
                writer.abandon()
            made.append(folder)
        return made

    def _log_starts(self, folder: Path, parts: Sequence[Part], there: dict[tuple[str, int], int]) -> None:
        """The first offsets that consumers get; a line of another log under the same name would delete the new one."""
        lines = dict(there)
        for part in parts:
            key = (part.task.name, part.task.partition)
            lines.pop(key, None)
            if part.account.log_start is not None:
                lines[key] = part.account.log_start
        if lines != there or lines:
            text = "".join(f"{topic} {number} {offset}\n" for (topic, number), offset in sorted(lines.items()))
            temporary = folder / f".{LOG_START}.tmp"
            temporary.write_text(f"0\n{len(lines)}\n{text}")
            temporary.replace(folder / LOG_START)


def _move(parts: Sequence[Part], folder: Path) -> None:
    for part in parts:
        Path(part.folder).rename(child(folder, f"{part.task.name}-{part.task.partition}"))


@contextlib.contextmanager
def _told(target: Path) -> Iterator[None]:
    """What the system says of the target, as an error of ours."""
    try:
        yield
    except AccessError:
        raise
    except OSError as error:
        raise AccessError(f"{target}: {error.strerror or error}") from None
