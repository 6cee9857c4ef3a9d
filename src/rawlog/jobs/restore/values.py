"""What a restore is asked for, what its splits are, and what came of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rawlog.core.errors import OptionError
from rawlog.core.report import Account
from rawlog.core.text import counted
from rawlog.formats.kafka.store.sink import is_topic
from rawlog.formats.kraft.names import METADATA_VERSION
from rawlog.formats.kraft.store.blueprint import INTERNAL_CONFIGS, is_id
from rawlog.formats.kraft.store.carrying import Carried, Wish
from rawlog.formats.kraft.store.fold import level_text
from rawlog.jobs.job import Done, Outcome
from rawlog.jobs.restore.directories import Content

NEVER = ("__cluster_metadata", "__remote_log_metadata")
"""Topics that a new cluster has its own of, or none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be restored, and as what. `until` is in µs and left out itself; `rename` maps old names of topics to new ones."""

    topics: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    until: int | None = None
    errors: str = "raise"
    partitions_only: bool = False
    keep_retention: bool = False
    offsets: bool = True
    node: int = 1
    cluster_id: str | None = None
    level: int | None = None
    overwrite: bool = False

    def check(self) -> Asked:
        """OptionError for what cannot be."""
        for old, new in self.rename.items():
            if not is_topic(new) or new in INTERNAL_CONFIGS or new in NEVER:
                raise OptionError(f"rename {old}={new}: no name for a topic")
        if len(set(self.rename.values())) < len(self.rename):
            raise OptionError("rename: two topics under one name")
        if self.cluster_id is not None and not is_id(self.cluster_id):
            raise OptionError(f"cluster id {self.cluster_id!r}: 22 characters of URL-safe base64 expected")
        return self

    @property
    def is_everything(self) -> bool:
        """Whether the cluster is restored as it is: then its own topics are carried as they are."""
        return not self.topics and not self.rename and self.until is None and not self.partitions_only

    def wants(self, topic: str) -> bool:
        """Whether a topic is among those asked for."""
        return not self.topics or any(fnmatch.fnmatchcase(topic, glob) for glob in self.topics)


@dataclass(frozen=True, slots=True)
class Restoring:
    """One partition to be carried. `kind` is `data`, or for committed offsets `refresh` (carried, and committed anew) or `scratch`."""

    name: str
    partition: int
    content: Content
    wish: Wish
    kind: str = "data"


@dataclass(frozen=True, slots=True)
class Part(Done):
    """A partition that was carried, and where it is."""

    task: Restoring
    folder: str
    account: Carried


@dataclass(slots=True)
class Restored(Account):
    """What came of it: counts, each partition's own account, and what the source did not have."""

    target: str = ""
    cluster_id: str | None = None
    node_id: int | None = None
    metadata_version: int | None = None
    topics: int = 0
    records: int = 0
    bytes: int = 0
    records_cut: int = 0
    transactions_aborted: int = 0
    offsets_committed: int = 0
    partitions: dict[str, Carried] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is there."""
        return not self.missing and all(one.is_whole for one in self.partitions.values())

    def as_json(self) -> dict[str, Any]:
        """Everything, each partition by its name."""
        told = {name: one.as_json() for name, one in self.partitions.items()}
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "partitions"}
        return {**own, "partitions": told, "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """The notes, what is lost, and the sums."""
        made = list(self.notes)
        for name, one in self.partitions.items():
            made += [f"{name}: {note}" for note in one.notes]
        made += [f"{name}: not in the source; it will be empty" for name in self.missing]
        made.append(
            f"{counted(self.topics, 'topic')}, {counted(len(self.partitions), 'partition')}, "
            f"{counted(self.records, 'record')}, {counted(self.bytes, 'byte')}"
        )
        if self.records_cut or self.transactions_aborted:
            made.append(
                f"{self.records_cut:,} later records left out, {self.transactions_aborted:,} open transactions aborted"
            )
        if self.offsets_committed:
            made.append(f"{self.offsets_committed:,} committed offsets of consumer groups")
        if self.cluster_id is not None and self.metadata_version is not None:
            release = level_text(METADATA_VERSION, self.metadata_version)
            made.append(
                f"cluster {self.cluster_id}, node.id {self.node_id}, metadata.version {self.metadata_version} ({release})"
            )
        return made


@dataclass(frozen=True, slots=True)
class Result(Outcome):
    """The account, as an engine hands it back."""

    account: Restored
