"""Consumer groups, the same for every system: what a family finds, and how the verb `groups` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rawlog.model.text import counted, plain_time
from rawlog.model.verb import (
    Item,
    Line,
    Section,
    Tone,
)

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


def show(group: Group) -> Iterator[Item]:
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
