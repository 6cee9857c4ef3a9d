"""Consumer groups and transactions of every system: what a family finds, and how the verbs of these names show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rawlog.model.text import counted, plain_time
from rawlog.model.verb import Item, Line, Section, Tone

SHOWN = 50
HEADINGS = ("topic", "partition", "committed", "end", "lag", "last commit", "member")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a group is in one partition. `commit_time` is in µs; None: the files do not show it.

    `unread` is given where the lag is not `end_offset - committed_offset`.
    """

    topic: str
    partition: int
    committed_offset: int | None
    start_offset: int | None = None
    end_offset: int | None = None
    commit_time: int | None = None
    leader_epoch: int | None = None
    metadata: str | None = None
    member: str | None = None
    unread: int | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets the group still has to read; None if one of both ends is unknown."""
        if self.unread is not None:
            return self.unread
        if self.committed_offset is None or self.committed_offset < 0 or self.end_offset is None:
            return None
        return self.end_offset - self.committed_offset


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group, and the partitions it was assigned, as `topic-partition`."""

    member: str
    client_id: str | None = None
    host: str | None = None
    assigned: tuple[str, ...] = ()


@dataclass(slots=True)
class Group:
    """A consumer group. `protocol` says how its members agree on partitions: classic, consumer, share, streams.

    `members` is None in systems that do not store them.
    """

    system: str
    name: str
    protocol: str | None = None
    state: str | None = None
    members: list[Member] | None = None
    positions: list[Position] = field(default_factory=list)

    @property
    def lag(self) -> int | None:
        """The sum over all partitions; None if it is unknown for one of them."""
        lags = [position.lag for position in self.positions]
        return None if not lags or None in lags else sum(lag or 0 for lag in lags)

    @property
    def last_commit(self) -> int | None:
        """The time of the newest commit, in µs."""
        return max(
            (position.commit_time for position in self.positions if position.commit_time is not None), default=None
        )


def show_group(group: Group) -> Iterator[Item]:
    """A group as rows for machines (tables `groups`, `members`, `offsets`) and as text for people."""
    group.positions.sort(key=lambda position: (position.topic, position.partition))
    yield from (Item(row) for row in _rows(group))
    yield from (Item(text=text) for text in _text(group))


def _rows(group: Group) -> Iterator[dict[str, Any]]:
    whose = {"system": group.system, "group": group.name}
    about = {
        "protocol": group.protocol,
        "state": group.state,
        "members": None if group.members is None else len(group.members),
    }
    yield {"table": "groups", **whose, **about, "lag": group.lag, "last_commit": _time(group.last_commit)}
    for member in group.members or ():
        yield {"table": "members", **whose, **asdict(member), "assigned": list(member.assigned)}
    for position in group.positions:
        row = {name: value for name, value in asdict(position).items() if name not in ("unread", "commit_time")}
        yield {"table": "offsets", **whose, **row, "lag": position.lag, "commit_time": _time(position.commit_time)}


def _time(value: int | None) -> str | None:
    return None if value is None else plain_time(value)


def _text(group: Group) -> Iterator[Line | Section]:
    what = [group.system, *(word for word in (group.protocol, group.state) if word)]
    if group.members is not None:
        what.append(counted(len(group.members), "member"))
    what.append(_lag_text(group))
    if group.last_commit is not None:
        what.append(f"last commit {plain_time(group.last_commit)}")
    yield Line(f"{group.name}: {', '.join(what)}", Tone.TITLE)
    yield Section("Offsets", [_cells(position) for position in group.positions], SHOWN, HEADINGS)
    yield Section("Members", [_member_cells(member) for member in group.members or ()], SHOWN)
    yield Line()


def _lag_text(group: Group) -> str:
    if not group.positions:
        return "no offsets"
    return "lag unknown" if group.lag is None else f"lag {group.lag:,}"


def _cells(position: Position) -> Sequence[str | Line]:
    numbers = (position.committed_offset, position.end_offset, position.lag)
    return (
        position.topic,
        str(position.partition),
        *("?" if value is None else f"{value:,}" for value in numbers),
        "" if position.commit_time is None else plain_time(position.commit_time),
        position.member or "",
    )


def _member_cells(member: Member) -> Sequence[str | Line]:
    return (member.member, member.client_id or "", member.host or "", ", ".join(member.assigned))


# Transactions ----------------------------------------------------------------------------------------------------------------


OPEN_HEAD = ("topic", "partition", "from offset", "producer", "transactional id", "coordinator", "last write")
ID_HEAD = ("transactional id", "producer", "status", "partitions", "started", "last change")
ABORTED_HEAD = ("topic", "partition", "first offset", "last offset", "producer")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of one partition that no marker ends: read_committed consumers stop at `first_offset`.

    `status` is what its coordinator last wrote about it. It `is_hanging` if the coordinator does not know of it: then nobody will end it.
    Times are in µs.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    last_time: int | None = None
    coordinator_epoch: int | None = None
    transactional_id: str | None = None
    status: str | None = None
    timeout_ms: int | None = None
    is_hanging: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """A transactional id as its coordinator last wrote it. Times are in µs."""

    transactional_id: str
    producer_id: int | None
    producer_epoch: int | None
    status: str | None
    timeout_ms: int | None = None
    partitions: tuple[str, ...] = ()
    start_time: int | None = None
    update_time: int | None = None


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction of one partition that was aborted: its first offset, and the one after its marker."""

    topic: str
    partition: int
    producer_id: int
    start: int
    stop: int


@dataclass(slots=True)
class Transactions:
    """The transactions in the files of one system. `notes` say what could not be known."""

    system: str
    open: list[OpenTransaction] = field(default_factory=list)
    ids: list[TransactionalId] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.open or self.ids or self.aborted)


def show_transactions(system: Transactions) -> Iterator[Item]:
    """Transactions as rows for machines (tables `open`, `ids`, `aborted`) and as text for people. One that hangs is a finding."""
    for table, rows in (("open", system.open), ("ids", system.ids), ("aborted", system.aborted)):
        for entry in rows:
            row = {"table": table, "system": system.system, **_plain(asdict(entry))}
            yield Item(row, is_finding=bool(row.get("is_hanging")))
    hanging = [transaction for transaction in system.open if transaction.is_hanging]
    others = [transaction for transaction in system.open if not transaction.is_hanging]
    yield Item(text=Section("Hanging: the coordinator does not know them", _open_rows(hanging), None, OPEN_HEAD))
    yield Item(text=Section("Open", _open_rows(others), SHOWN, OPEN_HEAD))
    for advice in dict.fromkeys(transaction.advice for transaction in (*hanging, *others) if transaction.advice):
        yield Item(text=Line(f"  {advice}", Tone.BAD if hanging else None))
    ids = sorted(system.ids, key=lambda entry: entry.transactional_id)
    yield Item(text=Section("Transactional ids", [_id_cells(entry) for entry in ids], SHOWN, ID_HEAD))
    yield Item(
        text=Section("Aborted", [_aborted_cells(transaction) for transaction in system.aborted], SHOWN, ABORTED_HEAD)
    )
    yield from (Item(note=note) for note in system.notes)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: plain_time(row[name]) for name in row if name.endswith("_time_text") and row[name] is not None}
    return {**row, **times}


def _time_text(value: int | None) -> str:
    return "" if value is None else plain_time(value)


def _open_rows(rows: Sequence[OpenTransaction]) -> list[tuple[str, ...]]:
    return [
        (
            transaction.topic,
            str(transaction.partition),
            f"{transaction.first_offset:,}",
            f"{transaction.producer_id} epoch {transaction.producer_epoch}",
            transaction.transactional_id or "unknown",
            transaction.status or "unknown",
            _time_text(transaction.last_time),
        )
        for transaction in rows
    ]


def _id_cells(entry: TransactionalId) -> tuple[str, ...]:
    producer = "" if entry.producer_id is None else f"{entry.producer_id} epoch {entry.producer_epoch}"
    times = _time_text(entry.start_time), _time_text(entry.update_time)
    return (entry.transactional_id, producer, entry.status or "", ", ".join(entry.partitions), *times)


def _aborted_cells(transaction: AbortedTransaction) -> tuple[str, ...]:
    return (
        transaction.topic,
        str(transaction.partition),
        f"{transaction.start:,}",
        f"{transaction.stop - 1:,}",
        str(transaction.producer_id),
    )
