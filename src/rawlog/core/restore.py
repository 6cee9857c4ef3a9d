"""What the job `restore` and a family that restores say to one another: what is asked for, what a source offers, one partition to write."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.core.format import File
    from rawlog.core.report import Report
    from rawlog.io.output import Folder

    #: Rows of a source, and their offsets -> which of them are restored.
    Keeps = Callable[[pa.Table, NDArray[np.int64]], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to restore, and as what. `until` is in µs and not included; `rename` maps old names of topics to new ones.

    `brokers` (how many), `node` (the id of the first), `cluster_id` and `level` (a number, or the name of a release) describe the new
    cluster.
    """

    topics: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    until: int | None = None
    errors: str = "raise"
    partitions_only: bool = False
    keep_retention: bool = False
    offsets: bool = True
    brokers: int = 1
    node: int = 1
    cluster_id: str | None = None
    level: int | str | None = None
    overwrite: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether the cluster is restored as it is: then its own topics are copied as they are."""
        return not self.topics and not self.rename and self.until is None and not self.partitions_only

    def wants(self, topic: str) -> bool:
        """Whether a topic is among those asked for."""
        return not self.topics or any(fnmatch.fnmatchcase(topic, glob) for glob in self.topics)


class Content(Protocol):
    """Where the records of one partition are. Picklable."""

    @property
    def size(self) -> int:
        """How much is read, in the unit that its reader reports progress in."""


class RowContent(Content, Protocol):
    """A partition whose records are rows of a table. `marks` is what `Restorer.marks` found in them."""

    partition: int
    floor: int
    marks: tuple[Any, ...]

    def batches(self, keeps: Keeps, advance: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        """The chosen rows as batches of `records`, by rising offset, each offset once."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a cluster knows of a topic: the leader epochs of its partitions, and its settings."""

    epochs: Mapping[int, int]
    configs: Mapping[str, str]


@dataclass(slots=True)
class Offer:
    """What a source has: its partitions, the ids of its topics, what its cluster knows of them, and notes on the source.

    `state` is the family's own.
    """

    partitions: dict[tuple[str, int], Any]
    ids: dict[str, bytes] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    state: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted({topic for topic, _ in self.partitions} | set(self.known))


@dataclass(frozen=True, slots=True)
class RestoreSplit:
    """One partition to write: the name of its directory, its topic in the target, its content, and how the family writes it.

    With `is_scratch` it is only written to be read by `Restorer.finish`.
    """

    name: str
    topic: str
    partition: int
    content: Any
    how: Any
    is_scratch: bool = False


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A split that was written, and where."""

    split: RestoreSplit
    folder: str
    report: Report


class Restorer(Protocol):
    """A family's half of `restore`. It is made with (Asked, path of the target), and raises OptionError for invalid options.

    `plan` and `finish` run on the driver; `carry` runs anywhere, on a copy without what was planned.
    """

    #: What was done so far; `finish` completes it.
    report: Report
    #: The format that rows of other systems are written in before they are restored.
    written: str
    #: The table of a lake with every record, and the one that describes topics.
    records_table: str
    topics_table: str
    #: Columns of the first one that say which rows are restored, beyond those of `records`.
    row_columns: tuple[str, ...]
    #: Files of the target directory that `finish` writes again with what they have now, if only partitions are restored.
    merged: tuple[str, ...]

    def offer(self, files: Sequence[File], stores: Sequence[Sequence[File]]) -> Offer | None:
        """What files of the family's own system offer; None if there is no partition among them."""

    def marks(self, rows: pa.Table) -> Iterator[Any]:
        """What rows of one partition with `row_columns` say about others, such as where transactions end."""

    def add_topics(self, offer: Offer, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add to an offer what rows of `topics_table` say."""

    def plan(self, offer: Offer, wanted: Sequence[str]) -> list[RestoreSplit]:
        """The partitions to write, of these topics."""

    def wants(self, topic: str, offer: Offer) -> bool:
        """Whether a topic of the source is restored."""

    def carry(self, split: RestoreSplit, folder: Folder, advance: Callable[[int], None]) -> Report:
        """Write one partition into a new directory below `folder`, under the split's name."""

    def finish(self, done: Sequence[RestoredPartition], folder: Folder) -> None:
        """Write everything that is not in a partition into the directory that has all of them."""
