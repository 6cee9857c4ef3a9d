"""Transactions that a system's files show: what a family finds, and how the verb `transactions` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rawlog.model.text import offset_range, plain_time
from rawlog.model.verb import (
    Item,
    Line,
    Section,
    Tone,
)

SHOWN = 50
OPEN_HEAD = ("topic", "partition", "from offset", "producer", "transactional id", "coordinator", "last write")
ID_HEAD = ("transactional id", "producer", "status", "partitions", "started", "last change")
ABORTED_HEAD = ("topic", "partition", "offsets", "producer")


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


def show(system: Transactions) -> Iterator[Item]:
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
    yield Item(text=Section("Transactional ids", [_id_cells(entry) for entry in system.ids], SHOWN, ID_HEAD))
    yield Item(
        text=Section("Aborted", [_aborted_cells(transaction) for transaction in system.aborted], SHOWN, ABORTED_HEAD)
    )
    yield from (Item(note=note) for note in system.notes)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: plain_time(row[name]) for name in row if name.endswith("_time") and row[name] is not None}
    return {**row, **times}


def _time(value: int | None) -> str:
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
            _time(transaction.last_time),
        )
        for transaction in rows
    ]


def _id_cells(entry: TransactionalId) -> tuple[str, ...]:
    producer = "" if entry.producer_id is None else f"{entry.producer_id} epoch {entry.producer_epoch}"
    times = _time(entry.start_time), _time(entry.update_time)
    return (entry.transactional_id, producer, entry.status or "", ", ".join(entry.partitions), *times)


def _aborted_cells(transaction: AbortedTransaction) -> tuple[str, ...]:
    return (
        transaction.topic,
        str(transaction.partition),
        offset_range(transaction.start, transaction.stop),
        str(transaction.producer_id),
    )
