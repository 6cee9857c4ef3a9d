"""Restore: a data directory that a broker starts on, from a broker's directories, a lake, Parquet files or any records.

Plan: which topics, under which names, and a split for each partition. Work: one partition directory. Commit: the cluster's metadata next
to them, and all of it under the target's name at once. What a partition and a cluster are, the family's `restorer` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rawlog import registry
from rawlog.core.errors import OptionError, UnknownFormatError
from rawlog.core.patterns import missing_topics
from rawlog.core.report import Report
from rawlog.core.restore import Asked, Offer, RestoredPartition, RestoreSplit
from rawlog.io.output import Folder, Output
from rawlog.io.storage import below, is_remote, local_path
from rawlog.jobs.job import Done, Job, Split, Stage, unreadable
from rawlog.jobs.lake import is_lake
from rawlog.jobs.restore.tables import offered_files, offered_lake, offered_rows, parquet_files
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from rawlog.core.restore import Restorer

SHOWN = 20

__all__ = ["Asked", "Restore", "RestoreSplit"]


@dataclass(frozen=True, slots=True)
class Carried(Done):
    """A partition that was written."""

    partition: RestoredPartition


class Restore(Job[Carried, Report]):
    """Restore to a directory. Use as a context manager: what is staged is removed at the end."""

    def __init__(self, target: str, asked: Asked, changed: Selection | None = None) -> None:
        """`changed` has transforms of the rows: then no batch is copied as it is. OptionError for options that are invalid."""
        if is_remote(target):
            raise OptionError(f"{target}: a broker's directory must be a local one")
        self.asked, self.changed = asked, changed
        self.target = Path(local_path(target)).absolute()
        self.output = Output(self.target, overwrite=asked.overwrite)
        make = next(family.restorer for family in registry.families() if family.restorer is not None)
        self.restorer: Restorer = make(asked, self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each partition. OptionError if the source has nothing that is asked for."""
        asked, restorer = self.asked, self.restorer
        self.output.refuse(tree.sources)
        self._check_target()
        self.stage = self.output.open()
        restorer.report.source = ", ".join(tree.roots)
        offer = self._offered(tree)
        restorer.report.notes += offer.notes
        present = offer.topics
        for problem in missing_topics(asked.topics, present) if present else ():
            if isinstance(problem, OptionError):
                raise problem
            restorer.report.notes.append(problem)
        wanted = [topic for topic in present if restorer.wants(topic, offer)]
        unknown = [old for old in asked.rename if old not in wanted]
        if unknown:
            raise OptionError(f"rename {', '.join(unknown)}: no such topic among those restored")
        if not wanted:
            raise OptionError(f"no topic here is asked for; there are: {', '.join(present[:SHOWN]) or 'none'}")
        here = [file for file in tree if not asked.topics or file.place.topic in (None, *wanted)]
        restorer.report.entries += unreadable(here)
        splits = restorer.plan(offer, wanted)
        if asked.partitions_only:
            for split in splits:
                self.output.refuse_existing(split.name)
        return [Split(number, split.content.size, split) for number, split in enumerate(splits)]

    def _check_target(self) -> None:
        if self.asked.partitions_only:
            return
        self.output.check_directory()

    def _offered(self, tree: Tree) -> Offer:
        """What the source has, whatever it is."""
        asked, restorer = self.asked, self.restorer
        lakes = [root for root in tree.roots if is_lake(root)]
        if self.changed is not None:
            return self._offered_changed(tree, has_lakes=bool(lakes))
        if lakes:
            if len(tree.roots) > 1:
                raise OptionError(f"{lakes[0]} is a lake: name no other source with it")
            return offered_lake(lakes[0], restorer, asked.topics)
        native = restorer.offer(tree.files, tree.groups)
        if native is not None:
            return native
        files = parquet_files(tree.roots)
        if files:
            return offered_files(files, restorer)
        if "records" not in tree.tables:
            raise UnknownFormatError(f"{', '.join(tree.roots)}: nothing here can be read as records")
        assert self.stage is not None
        chosen = Selection(topics=asked.topics, errors=asked.errors)
        return offered_rows(tree, restorer, below(self.stage, "rows"), chosen)

    def _offered_changed(self, tree: Tree, *, has_lakes: bool) -> Offer:
        """The rows of the source, changed and written again; only what was committed, as new batches are in no transaction."""
        assert self.stage is not None
        assert self.changed is not None
        if has_lakes or "records" not in tree.tables:
            raise OptionError(
                "--mask: a lake and tables are masked when they are made, or by `rawlog convert --to kafka`"
            )
        asked, chosen = self.asked, self.changed.begun()
        files = tuple(file for file in tree if not (file.place.topic or "").startswith("__"))
        chosen = chosen.replace(topics=asked.topics, errors=asked.errors, isolation="read_committed")
        offer = offered_rows(replace(tree, files=files), self.restorer, below(self.stage, "rows"), chosen)
        offer.notes += self.changed.judge([chosen.tallies])
        offer.notes.append(
            "masked: records are in new batches; aborted ones, all from the first of an open transaction on, committed offsets "
            "and settings of topics are left out"
        )
        return offer

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> Carried:
        """One partition directory."""
        one: RestoreSplit = split.content
        try:
            folder = Folder(stage.path, named=str(self.target)).folder(stage.name)
            report = self.restorer.carry(one, folder, stage.advance)
        except OSError as error:
            raise self.output.unwritable(error) from None
        return Carried(split.number, RestoredPartition(one, str(folder.path / one.name), report))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[Carried]) -> Report:
        """Put the partitions and what belongs next to them into one directory, and give it the target's name."""
        partitions = [one.partition for one in done]
        try:
            folder = Folder(self.output.new(), named=str(self.target))
            for one in partitions:
                if not one.split.is_scratch:
                    folder.take(one.folder, one.split.name)
            self.restorer.finish(partitions, folder)
            if self.asked.partitions_only:
                self.output.add(folder.path, merged=self.restorer.merged)
            else:
                self.output.put(folder.path)
        except OSError as error:
            raise self.output.unwritable(error) from None
        return self.restorer.report
