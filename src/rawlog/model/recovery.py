"""What the job `rescue` and a family that rescues say to one another: what is asked for, the copies, what is decided, a unit to write.

A unit is what the system keeps copies of: a Kafka partition, a RocketMQ message log, an Ambry partition. The job runs three rounds on any
engine: every copy of every unit is surveyed (tasks), the driver decides from what the surveys returned, and every unit is written (tasks).
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rawlog.model.errors import OptionError, unknown

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.io.output import Folder
    from rawlog.model.format import File
    from rawlog.model.report import Report
    from rawlog.model.store import Store

    Keeps = Callable[[pa.Table, NDArray[np.int64]], NDArray[np.bool_]]


#: States of directories that a system does not load and that are rescued only on request.
INCLUDED = ("stray", "delete")


@dataclass(frozen=True, slots=True)
class RescueOptions:
    """What to rescue, and as what.

    `include` names states of directories that are used although the system would not load them; `exclude_deleted` leaves out what some
    disks have marked as deleted and others have not. `brokers` is the number of data
    directories to write. `node`, `cluster_id` and `level` describe the new cluster; `options` are for one family only.
    """

    topics: tuple[str, ...] = ()
    include: frozenset[str] = frozenset()
    exclude_deleted: bool = False
    brokers: int = 1
    node: int = 1
    cluster_id: str | None = None
    level: int | str | None = None
    keep_retention: bool = False
    overwrite: bool = False
    is_plan: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def wants(self, topic: str) -> bool:
        """Whether a topic is among those asked for."""
        return not self.topics or any(fnmatch.fnmatchcase(topic, glob) for glob in self.topics)

    def check_plain(self, family: str, options: Sequence[str]) -> None:
        """OptionError unless whole stores are asked for, with nothing but these options of a family."""
        is_set = {
            "topic": bool(self.topics),
            "include": bool(self.include),
            "exclude-deleted": self.exclude_deleted,
            "brokers": self.brokers != 1,
            "node-id": self.node != 1,
            "cluster-id": self.cluster_id is not None,
            "metadata-version": self.level is not None,
            "keep-retention": self.keep_retention,
        }
        for name in (name for name, is_given in is_set.items() if is_given):
            raise OptionError(f"--{name}: rescue of {family} rescues whole stores; it has no such option")
        for name in self.options:
            if name not in options:
                raise unknown(f"option of {family} for rescue", name, options)


# Rounds of the job ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SurveySplit:
    """One copy of one unit, or a part of it, to look at. `content` is the family's own and picklable."""

    unit: str
    size: int
    content: Any


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """A split that was looked at, and what was found: small and picklable."""

    split: SurveySplit
    found: Any


@dataclass(frozen=True, slots=True)
class RescueSplit:
    """One unit to write: the name of its directory in the result, the bytes to read, and what the family decided on it.

    `content` is picklable, and its `repr` names all that the result depends on: a run that is resumed uses a unit again that was written
    from the same content.
    """

    name: str
    size: int
    content: Any

    @property
    def key(self) -> str:
        """Names the result of this split, for a run that is resumed."""
        return hashlib.blake2b(repr((self.name, self.content)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class RescuedUnit:
    """A split that was written. `folder` has its directory under the split's name; `aside` has what was set aside, if it exists."""

    split: RescueSplit
    folder: str
    aside: str
    report: Report


class Rescuer(Protocol):
    """A family's half of `rescue`. It is made with (RescueOptions, path of the target), and raises OptionError for invalid options.

    `plan`, `decide` and `finish` run on the driver and may keep what they found; `survey` and `carry` run anywhere, on a copy without it.
    Nothing here writes to a source.
    """

    #: What was done so far. `decide` adds `facts["plan"]` (see `plan_facts`) and the entries of what is lost; `finish` completes it.
    report: Report

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """The copies to look at, from names, sizes and small text files. `roots` are the directories that were named, in that order;
        `files` are those of the family's own system. OptionError for roots that do not belong together, or that were named twice.
        """

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> Any:
        """Look at one copy. `advance` is called with the number of bytes that are done."""

    def decide(self, surveys: Sequence[SurveyResult]) -> list[RescueSplit]:
        """What is written of each unit, from which copies, and why. Reads no data."""

    def adjacent_files(self) -> Mapping[str, str | None]:
        """Files next to the target, after `decide`: the suffix of each name after the target's, and the text; None before `finish`."""

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write one unit into a new directory below `folder`, under the split's name; what must not be in the result but is to stay
        readable (divergent tails) below `aside`, in `LABEL/NAME`: a name for the disk, and the split's name. Nothing is made there if
        there is nothing for it.
        """

    def finish(self, done: Sequence[RescuedUnit], folder: Folder) -> None:
        """Put everything into the directory that becomes the target: the units (`folder.take`), and all that belongs next to them."""


# The plan: what a meeting looks at -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A range of offsets (half-open; `stop` is None where nothing tells the end) with a reason, and the times (ms) of its records."""

    start: int
    stop: int | None
    reason: str = ""
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A copy of a unit as it was found. `state` is empty for one that the system would load; `use` says what is made of it.

    `lineage` is the history that it belongs to in the words of its system (leader epochs with their first offsets).
    """

    disk: str
    path: str
    start: int
    end: int
    size: int = 0
    state: str = ""
    lineage: str = ""
    damage: tuple[Span, ...] = ()
    use: str = ""


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """A part of the result: offsets from `start` to `stop`, taken from the copy with this number."""

    copy: int
    start: int
    stop: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """What was decided on one unit: the copies found, the pieces taken, and why. `action` is `rescue`, `leave` or `lost`.

    `lost` are offsets that no copy has; `undecided` are kept, but nothing tells whether they were committed; `divergent` are kept next to
    the result, because they contradict it; `unknown` lists in words what cannot be known.
    """

    name: str
    action: str
    start: int
    end: int
    reason: str
    copies: tuple[CopyPlan, ...] = ()
    pieces: tuple[PiecePlan, ...] = ()
    lost: tuple[Span, ...] = ()
    undecided: tuple[Span, ...] = ()
    divergent: tuple[tuple[int, Span], ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the unit is lost."""
        return not self.lost and self.action != "lost"

    def as_json(self) -> dict[str, Any]:
        """Everything that is known, for machines."""
        fields = asdict(self)
        fields["divergent"] = [{"copy": copy, **asdict(span)} for copy, span in self.divergent]
        return {**fields, "is_whole": self.is_whole}


def plan_facts(units: Sequence[UnitPlan]) -> list[dict[str, Any]]:
    """What `Report.facts["plan"]` has: one object per unit."""
    return [unit.as_json() for unit in units]


# ----------------------------------------------------------------------------------------------------------------------
# What the job `restore` and a family that restores say to one another: what is asked for, what a source offers, one partition to write.


@dataclass(frozen=True, slots=True)
class RestoreOptions:
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
class TopicFacts:
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
    known: dict[str, TopicFacts] = field(default_factory=dict)
    state: Any = None
    notes: list[str] = field(default_factory=list)
    #: The offsets of partitions that are not here, start and stop, where other files tell them.
    absent: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

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
    """A family's half of `restore`. It is made with (RestoreOptions, path of the target), and raises OptionError for invalid options.

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
        """Write everything outside of partitions into the directory of the partitions."""
