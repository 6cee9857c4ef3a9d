"""The policy of `rescue`: one store for each partition, from all its replicas."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, keys
from rawlog.formats.ambry.index import read_index
from rawlog.formats.ambry.kernels.messages import find_message
from rawlog.formats.ambry.layouts import NONE, Kind
from rawlog.formats.ambry.log import Messages, scan
from rawlog.formats.ambry.store.diagnosis import Diagnosis, KeptMessages, Loss
from rawlog.formats.ambry.store.evidence import elect_partition, majority_partition
from rawlog.formats.ambry.store.policies import place_in_segments
from rawlog.formats.ambry.store.rewrite import (
    DESCRIPTOR_NAME,
    StorePlan,
    Style,
    carry_out,
    descriptor,
    file_name,
    number_option,
    probability_option,
)
from rawlog.formats.ambry.store.rules import VIOLATIONS
from rawlog.formats.ambry.store.state import (
    DELETE,
    ORPHANS,
    PUT,
    TTL_UPDATE,
    UNDELETE,
    Catalog,
    Fold,
    LogSummary,
    catalog_of_messages,
    fold,
    is_refused,
    summarise,
)
from rawlog.formats.ambry.store.store import BlobStore, blob_stores, lost_words
from rawlog.formats.ambry.writer import update_message
from rawlog.io.checksums import crc32_spans
from rawlog.io.output import Folder
from rawlog.io.storage import Places, Source, refuse_locked
from rawlog.kernels import byte_view
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.format import File
from rawlog.model.recovery import (
    CopyPlan,
    RescuedUnit,
    RescueOptions,
    RescueSplit,
    Span,
    SurveyResult,
    SurveySplit,
    UnitPlan,
    plan_facts,
)
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.text import counted

# ----------------------------------------------------------------------------------------------------------------------
# The union of several replicas of one partition: which messages of which replica make up each blob.
# Replicas have the same blobs in different order, and each compacts and deletes by itself. Each is first diagnosed as `repair` does it.
# Then Ambry's own rules decide on each blob: the highest life version counts, and at one life version a DELETE comes after everything
# else. A blob that was hard deleted in one replica is so in the result, unless it was undeleted.


RANK = {PUT: 0, UNDELETE: 0, TTL_UPDATE: 1, DELETE: 2}
"""The order of messages of one life version."""
MOST_NOTES = 100
RESTORED = -2
"""In place of a checksum: an update that was written again from an index entry, which has its time in seconds only."""
Identity = tuple[int, int, int]


# One replica -----------------------------------------------------------------------------------------------------------------


class ContentSummary(LogSummary):
    """A summary of a log segment with a checksum of what each PUT holds after its key, and whether its content is all zeros."""

    def __init__(self, *args: object, **options: bool) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.parts: list[NDArray[np.int64]] = [np.empty((3, 0), np.int64)]

    def see_contents(self, messages: Messages) -> None:
        rows = np.flatnonzero((messages["kind"] == PUT) & messages.is_whole)
        starts = messages["key_start"][rows] + messages["key_size"][rows]
        sums = crc32_spans(messages.data, starts, messages.frames.stops[rows])
        self.parts.append(np.stack((messages.frames.positions[rows], sums, messages["zeros"][rows].astype(np.int64))))

    def _check(self, messages: Messages) -> None:
        super()._check(messages)
        self.see_contents(messages)

    def contents(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The checksums of PUTs at these offsets (-1: unknown), and which are all zeros."""
        checksums = np.concatenate(self.parts, axis=1)
        if not checksums.shape[1] or not offsets.size:
            return np.full(offsets.size, NONE, np.int64), np.zeros(offsets.size, np.bool_)
        index = np.minimum(np.searchsorted(checksums[0], offsets), checksums.shape[1] - 1)
        same = checksums[0][index] == offsets
        return np.where(same, checksums[1][index], NONE), same & (checksums[2][index] == 1)


class Replica(Diagnosis):
    """One replica as `repair` diagnoses it: `kept` are its messages."""

    def __init__(self, store: BlobStore, options: Mapping[str, str]) -> None:
        super().__init__(store, options)
        self.decide()
        self.messages: KeptMessages = self.kept()

    def read_logs(self) -> Sequence[LogSummary]:
        self.contents = [summarise(file, ContentSummary(file, check=True)) for file in self.store.logs]
        return self.contents

    @cached_property
    def sums(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of each message the checksum of its content (-1: not known), and whether that is all zeros."""
        merged, count = self.messages.merged, len(self.messages.merged)
        sums, zeros = np.full(count, NONE, np.int64), np.zeros(count, np.bool_)
        sums[(self.messages.number >= 0) & (merged.kind != PUT)] = RESTORED
        for number, summary in enumerate(self.contents):
            rows = np.flatnonzero((merged.segment == number) & (self.messages.number < 0) & (merged.kind == PUT))
            sums[rows], zeros[rows] = summary.contents(merged.offset[rows])
        return sums, zeros

    def content(self, row: int) -> tuple[int, int]:
        """The checksum of what a PUT holds, and its size."""
        return int(self.sums[0][row]), int(self.messages.merged.size[row])

    @cached_property
    def indexed_blobs(self) -> frozenset[Identity]:
        """The blobs that its sound index files know."""
        return frozenset(self.evidence.entries.identities.take(self.trusted_entries).tuples)

    def has_indexed(self, loss: Loss) -> bool:
        """Whether a sound index file has the message that a loss is about."""
        return (keys.identity_of(loss.key), loss.life_version) in self._indexed_undeletes

    @cached_property
    def _indexed_undeletes(self) -> frozenset[tuple[Identity, int]]:
        entries = self.evidence.entries
        rows = self.trusted_entries[entries.kind[self.trusted_entries] == UNDELETE]
        return frozenset(zip(entries.identities.take(rows).tuples, entries.life_version[rows].tolist(), strict=True))

    @property
    def is_sound(self) -> bool:
        """Whether nothing of it is damaged or lost."""
        is_whole = all(entry.is_expected for entry in self.report.entries if entry.action is Action.DROPPED)
        return is_whole and not self.losses and not self.gaps and not self.forgotten


# One blob --------------------------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message of a replica, by the numbers of both."""

    kind: int
    life: int
    replica: int
    row: int
    sum: int = NONE
    is_zeroed: bool = False


@dataclass(slots=True)
class BlobChoice:
    """The messages of a blob, in order. `renewed` is the new life version of its TTL update, if it needs one."""

    messages: list[Message]
    renewed: int | None = None
    undecided: str = ""


def choose(messages: Sequence[Message]) -> BlobChoice:
    """What a blob is in the result, from its messages in all replicas, which are in the order of preference."""
    puts = [message for message in messages if message.kind == PUT]
    updates: dict[tuple[int, int], Message] = {}
    for message in sorted(messages, key=lambda message: message.sum == RESTORED):
        if message.kind != PUT:
            updates.setdefault((message.kind, message.life), message)
    undeletes = [life for kind, life in updates if kind == UNDELETE]
    newest = max(message.life for message in messages)
    put, undecided = _choose_put(puts, max(undeletes, default=-1), (DELETE, newest) in updates)
    base = NONE if put is None else put.life
    selection = [] if put is None else [put]
    selection += [message for (kind, life), message in updates.items() if kind == DELETE and life >= base]
    selection += [message for (kind, life), message in updates.items() if kind == UNDELETE and life > base]
    ttl = sorted(
        (message for (kind, _), message in updates.items() if kind == TTL_UPDATE), key=lambda message: message.life
    )
    fitting = [message for message in ttl if message.life >= base]
    renewed = None
    if ttl:
        selection.append(fitting[0] if fitting else ttl[0])
        renewed = None if fitting else base
    if (
        not undecided
        and put is not None
        and newest > max(message.life for message in selection if message.kind != TTL_UPDATE)
    ):
        undecided = f"a TTL update has life version {newest}, nothing else has: it may have been undeleted"
    lives = {message: max(message.life, base) for message in selection}
    selection.sort(key=lambda message: (lives[message], message.kind != PUT, RANK[message.kind]))
    return BlobChoice(selection, renewed, undecided)


def _choose_put(puts: Sequence[Message], undeleted: int, is_deleted: bool) -> tuple[Message | None, str]:
    """Choose the PUT of a blob. Replication after an undelete writes a PUT with the new life version, perhaps the only sign of the
    undelete.
    """
    if not puts:
        return None, ""
    highest = max(put.life for put in puts)
    life = highest if highest > undeleted else min(put.life for put in puts)
    same = [put for put in puts if put.life == life]
    zeroed = [put for put in same if put.is_zeroed]
    if is_deleted and zeroed:
        return zeroed[0], ""
    whole = [put for put in same if not put.is_zeroed] or same
    sums = [put.sum for put in whole if put.sum != NONE]
    if len(set(sums)) <= 1:
        return whole[0], ""
    best = max(whole, key=lambda put: (sums.count(put.sum), -put.replica))
    if sums.count(best.sum) * 2 > len(sums):
        return best, ""
    return whole[0], "replicas have different content, each with right checksums; that of the first is taken"


class Item(NamedTuple):
    """A message of the result: the message it comes before (replica and row), its number in its blob, and its row."""

    anchor: tuple[int, int]
    number: int
    source: int
    raw: bytes | None = None


class Blobs:
    """The messages of all replicas by blob, then by replica, in the order of their logs."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        catalogs = [replica.messages.merged for replica in replicas]
        self.count = len(catalogs)
        names = ("group", "high", "low")
        identity = [np.concatenate([getattr(catalog.identity, name) for catalog in catalogs]) for name in names]
        replica_numbers = np.repeat(np.arange(self.count), [len(catalog) for catalog in catalogs])
        rows = np.concatenate([np.arange(len(catalog)) for catalog in catalogs])
        kind, life = (
            np.concatenate([getattr(catalog, name) for catalog in catalogs]) for name in ("kind", "life_version")
        )
        sums, zeros = (np.concatenate([replica.sums[index] for replica in replicas]) for index in (0, 1))
        order = np.lexsort((rows, replica_numbers, *reversed(identity)))
        self.identity = [part[order].astype(np.int64) for part in identity]
        self.columns = [part[order].astype(np.int64) for part in (kind, life, replica_numbers, rows, sums, zeros)]
        self.kind, _, self.replica, self.row, self.sum, _ = self.columns
        new = np.zeros(order.size, np.bool_)
        new[:1] = True
        for part in self.identity:
            new[1:] |= np.diff(part) != 0
        self.starts = np.flatnonzero(new)
        self.stops = np.append(self.starts[1:], order.size)
        self.blob = np.cumsum(new) - 1
        #: Which replicas have each blob.
        self.has = np.zeros((self.starts.size, self.count), np.bool_)
        self.has[self.blob, self.replica] = True
        self._at: dict[int, NDArray[np.int64]] = {}

    def are_simple(self) -> NDArray[np.bool_]:
        """Which blobs the first replica has, and all others that have them have in the same way."""
        if not self.starts.size:
            return np.zeros(0, np.bool_)
        begins = np.zeros(self.blob.size, np.bool_)
        begins[self.starts] = True
        begins[1:] |= np.diff(self.replica) != 0
        firsts = np.flatnonzero(begins)
        group = np.cumsum(begins) - 1
        facts = [self.columns[index] for index in (0, 1, 4, 5)]
        sums = np.add.reduceat(_mix([np.arange(self.blob.size) - firsts[group], *facts]), firsts)
        of_first = sums[group[self.starts]]
        differs = np.zeros(self.starts.size, np.bool_)
        differs[self.blob[firsts][sums != of_first[self.blob[firsts]]]] = True
        result: NDArray[np.bool_] = self.has[:, 0] & ~differs
        return result

    def are_among(self, identities: set[Identity]) -> NDArray[np.bool_]:
        """Which blobs are among some."""
        if not identities:
            return np.zeros(self.starts.size, np.bool_)
        hashes = _mix([part[self.starts] for part in self.identity])
        wanted_hashes = _mix([np.array(part, np.int64) for part in zip(*identities, strict=True)])
        return np.isin(hashes, wanted_hashes)

    def messages(self, blobs: NDArray[np.int64]) -> Iterator[tuple[Identity, list[Message]]]:
        """The messages of some blobs, in order of preference."""
        for blob in blobs.tolist():
            part = slice(int(self.starts[blob]), int(self.stops[blob]))
            group, high, low = (int(column[part.start]) for column in self.identity)
            rows = zip(*(column[part].tolist() for column in self.columns), strict=True)
            yield (
                (group, high, low),
                [
                    Message(kind, life, replica, row, content, bool(zeroed))
                    for kind, life, replica, row, content, zeroed in rows
                ],
            )

    def rows_of_first(self, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The rows of some blobs in the first replica, in order."""
        return np.sort(self.row[which[self.blob] & (self.replica == 0)]) if which.size else np.empty(0, np.int64)

    def puts_only_in(self, number: int) -> list[int]:
        """The rows of PUTs of blobs that only this replica has, if there are several replicas."""
        if self.count == 1:
            return []
        only_here = self.has[:, number] & (self.has.sum(axis=1) == 1)
        rows: list[int] = self.row[only_here[self.blob] & (self.sum >= 0)].tolist()
        return rows

    def contents_without(self, number: int) -> dict[tuple[int, int], tuple[int, int]]:
        """The blobs that a replica lacks, by content, each with a replica and row that has it."""
        rows = np.flatnonzero(~self.has[self.blob, number] & (self.sum >= 0))
        places = list(zip(self.replica[rows].tolist(), self.row[rows].tolist(), strict=True))
        return {self.replicas[index].content(row): (index, row) for index, row in places}

    def _blob_of(self, number: int, row: int) -> int:
        if number not in self._at:
            rows = np.flatnonzero(self.replica == number)
            self._at[number] = np.empty(rows.size, np.int64)
            self._at[number][self.row[rows]] = self.blob[rows]
        return int(self._at[number][row])

    def holders(self, number: int, row: int) -> int:
        """How many replicas have the blob of a message."""
        return int(self.has[self._blob_of(number, row)].sum())

    def blobs_of(self, messages: Collection[tuple[int, int]]) -> list[int]:
        """The numbers of the blobs of some messages."""
        return [self._blob_of(number, row) for number, row in messages]


def _mix(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.uint64]:
    """A hash of each row: equal for equal columns, and almost never for others."""
    value = np.zeros(columns[0].size, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            value = (value ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            value ^= value >> np.uint64(31)
    return value


# All blobs -------------------------------------------------------------------------------------------------------------------


class Union:
    """A partition from its replicas, in order of preference: `plan` is written, `report` lists losses and undecided blobs."""

    plan: StorePlan

    def __init__(self, replicas: Sequence[Replica], options: Mapping[str, str]) -> None:
        self.replicas, self.options, self.report = replicas, options, Report()
        #: What is lost, and what cannot be known, in words.
        self.lost: list[Loss] = []
        self.undecided: list[str] = []
        #: Where the messages of each replica begin among all of them, and the log segments of all replicas.
        self._offsets: list[int] = []
        self._logs: list[File | None] = []
        self._missing: dict[int, set[int]] = {}
        #: The messages that the log of each replica has, by blob, kind and life version.
        self._stored: dict[int, set[tuple[Identity, int, int]]] = {}

    def decide(self) -> Union:
        """Choose the messages of every blob, and report what is lost."""
        joined, blobs = self._join(), Blobs(self.replicas)
        survivors: dict[Identity, set[tuple[int, int, int]]] = {}
        lost_blobs = {keys.identity_of(loss.key) for replica in self.replicas for loss in replica.losses}
        ghosts = self._ghosts(blobs)
        is_simple = blobs.are_simple() & ~blobs.are_among(lost_blobs)
        is_simple[blobs.blobs_of(ghosts)] = False
        # Of most blobs all replicas have the same: those of the first one are taken, where they are.
        simple_rows = blobs.rows_of_first(is_simple)
        items: list[Item] = []
        for identity, stored in blobs.messages(np.flatnonzero(~is_simple)):
            messages = [message for message in stored if (message.replica, message.row) not in ghosts]
            if not messages:
                continue
            choice = choose(messages)
            if identity in lost_blobs:
                survivors[identity] = {(message.kind, message.life, message.replica) for message in messages}
            items += self._places(choice)
            if choice.undecided:
                self._note_undecided(f"blob {self._text(messages[0])}: {choice.undecided}")
        self._judge_losses(survivors)
        first = self.replicas[0]
        is_first = all(item.anchor == (0, item.source) and item.raw is None for item in items)
        if is_first and len(items) + simple_rows.size == len(first.messages.merged) and not self._others_know(first):
            self.plan = first.plan_of(first.messages)
        else:
            self.plan = self._plan(joined, simple_rows, items)
        self._report_damage()
        return self

    def _others_know(self, replica: Replica) -> bool:
        """Whether the index of another replica has what that of this one has forgotten."""
        return any(other.has_indexed(loss) for other in self.replicas for loss in replica.forgotten)

    def _join(self) -> Catalog:
        """The messages of all replicas, one after the other."""
        joined: Catalog | None = None
        count = 0
        for replica in self.replicas:
            merged = replica.messages.merged
            shifted = replace(merged, segment=(merged.segment + len(self._logs)).astype(np.int32))
            joined = shifted if joined is None else joined.join(shifted)
            self._offsets.append(count)
            count += len(merged)
            # Messages of lost segments are written again, from no file.
            self._logs += [*replica.store.logs, *[None] * (len(replica.names) - len(replica.store.logs))]
        assert joined is not None
        return joined

    def _places(self, choice: BlobChoice) -> Iterator[Item]:
        """Where the messages of a blob go: before the next message of the blob, else where their replica has them."""
        items: list[Item] = []
        anchor: tuple[int, int] | None = None
        for number in range(len(choice.messages) - 1, -1, -1):
            message = choice.messages[number]
            place = (message.replica, message.row)
            anchor = place if anchor is None else min(place, anchor)
            raw = None
            if message.kind == TTL_UPDATE and choice.renewed is not None:
                raw = self._renew(message, choice.renewed)
            items.append(Item(anchor, number, self._offsets[message.replica] + message.row, raw))
        yield from reversed(items)

    def _renew(self, message: Message, life: int) -> bytes:
        """A TTL update with another life version."""
        catalog = self.replicas[message.replica].messages.merged
        time = int(catalog.time[message.row])
        return update_message(
            Kind.TTL_UPDATE,
            catalog.key(message.row),
            time=time * 1000 if time >= 0 else NONE,
            account_id=int(catalog.account_id[message.row]),
            container_id=int(catalog.container_id[message.row]),
            life_version=life,
        )

    def _text(self, message: Message) -> str:
        return keys.text_of(self.replicas[message.replica].messages.merged.key(message.row))

    def _ghosts(self, blobs: Blobs) -> set[tuple[int, int]]:
        """Find PUTs with a damaged blob id, which no checksum covers: another replica has the content under an id that a third replica or
        an index confirms.
        """
        ghosts: set[tuple[int, int]] = set()
        for number, replica in enumerate(self.replicas):
            unique_rows = blobs.puts_only_in(number)
            missing = blobs.contents_without(number) if unique_rows else {}
            for row in unique_rows:
                key = replica.messages.merged.key(row)
                holder, holder_row = missing.get(replica.content(row), (NONE, NONE))
                if holder < 0 or keys.identity_of(key) in replica.indexed_blobs:
                    continue
                right = self.replicas[holder].messages.merged.key(holder_row)
                if not _is_near(key, right):
                    continue
                text = f"{keys.text_of(key)} is {keys.text_of(right)} in another replica"
                if (
                    blobs.holders(holder, holder_row) > 1
                    or keys.identity_of(right) in self.replicas[holder].indexed_blobs
                ):
                    ghosts.add((number, row))
                    self._report_at(Action.DROPPED, f"its blob id is damaged: {text}", number, row)
                else:
                    self._note_undecided(f"blob {text}, with the same content: one of the ids is damaged")
        return ghosts

    def _report_at(self, action: Action, reason: str, number: int, row: int) -> None:
        """Report something expected about a message of a replica."""
        merged, replica = self.replicas[number].messages.merged, self.replicas[number]
        segment, start = int(merged.segment[row]), int(merged.offset[row])
        path = replica.store.logs[segment].path if segment < len(replica.store.logs) else replica.store.folder
        self.report.add(action, reason, path, start=start, stop=start + int(merged.size[row]), is_expected=True)

    # Losses

    def _note_undecided(self, text: str) -> None:
        self.undecided.append(text)
        self.report.count("blobs_undecided")
        if len(self.undecided) <= MOST_NOTES:
            self.report.add(Action.UNDECIDED, text)

    def _judge_losses(self, survivors: Mapping[Identity, set[tuple[int, int, int]]]) -> None:
        """Which messages that a replica has lost no other replica has."""
        judged: set[tuple[Identity, int | None, int | None]] = set()
        for number, replica in enumerate(self.replicas):
            for loss in replica.losses:
                identity = keys.identity_of(loss.key)
                messages = survivors.get(identity, set())
                mark = (identity, loss.kind, loss.life_version)
                if mark in judged or self._is_covered(loss, number, messages):
                    continue
                if loss.kind is None and not messages and loss.stop - loss.start in self._missing_sizes(number):
                    continue  # a message of another blob, whose id is damaged
                judged.add(mark)
                if loss.kind is None and any(kind == PUT for kind, _, _ in messages):
                    self._note_undecided(
                        f"blob {keys.text_of(loss.key)}: a damaged message of {loss.path} names it, and no other replica has a message "
                        "that this may have been: what it said is not known"
                    )
                    continue
                self._lose(loss)
        for loss in (loss for replica in self.replicas for loss in replica.forgotten):
            mark = (keys.identity_of(loss.key), None, loss.life_version)
            if mark not in judged and not any(replica.has_indexed(loss) for replica in self.replicas):
                judged.add(mark)
                self._lose(loss)
        self.report.count("messages_lost", len(self.lost))

    def _lose(self, loss: Loss) -> None:
        self.lost.append(loss)
        self.report.add(Action.LOST, loss.reason, loss.path, start=loss.start, stop=loss.stop)

    def _missing_sizes(self, number: int) -> set[int]:
        """The sizes of messages that other replicas have and this one lacks."""
        if number not in self._missing:
            present = {fact for fact, _ in self._facts(number)}
            others = [index for index in range(len(self.replicas)) if index != number]
            self._missing[number] = {
                size for index in others for fact, size in self._facts(index) if fact not in present
            }
        return self._missing[number]

    def _is_held(self, loss: Loss, number: int) -> bool:
        """Whether another replica has a message of which this one has only the index entry."""
        fact = (keys.identity_of(loss.key), loss.kind, loss.life_version)
        for index in range(len(self.replicas)):
            if index not in self._stored:
                is_stored = (self.replicas[index].sums[0] != RESTORED).tolist()
                facts = zip(self._facts(index), is_stored, strict=True)
                self._stored[index] = {stored_fact for (stored_fact, _), stored in facts if stored}
        return any(index != number and fact in self._stored[index] for index in range(len(self.replicas)))

    def _facts(self, number: int) -> Iterator[tuple[tuple[Identity, int, int], int]]:
        """Blob, kind and life version of each message of a replica, and its size."""
        merged = self.replicas[number].messages.merged
        columns = (merged.identity.tuples, merged.kind.tolist(), merged.life_version.tolist(), merged.size.tolist())
        for identity, kind, life, size in zip(*columns, strict=True):
            yield (identity, kind, life), size

    @staticmethod
    def _is_covered(loss: Loss, number: int, messages: set[tuple[int, int, int]]) -> bool:
        """Whether another replica has the lost message, or a later one that replaces it."""
        if loss.kind is None:
            in_replica = {(kind, life) for kind, life, replica in messages if replica == number}
            return any((kind, life) not in in_replica for kind, life, _ in messages)
        if loss.kind in (PUT, TTL_UPDATE):
            return any(kind == loss.kind for kind, _, _ in messages)
        newest = max((life for _, life, _ in messages), default=-1)
        is_there = any((kind, life) == (loss.kind, loss.life_version) for kind, life, _ in messages)
        return is_there or newest > (loss.life_version or 0)

    def _report_damage(self) -> None:
        """Report the damage of each replica; it is expected if another replica has the message."""
        is_whole = any(replica.is_sound for replica in self.replicas)
        for replica in self.replicas if not any(not replica.gaps for replica in self.replicas) else ():
            for position in replica.gaps:
                self.report.add(
                    Action.LOST, lost_words(position), f"{replica.store.folder}/{Segment(position, 0).log_name()}"
                )
        lost = {(loss.path, loss.start) for loss in self.lost}
        for number, replica in enumerate(self.replicas):
            recovered = {(loss.path, loss.start) for loss in replica.losses} - lost
            held = {entry for entry, loss in replica.restored.items() if self._is_held(loss, number)}
            recovered |= {(replica.restored[entry].path, replica.restored[entry].start) for entry in held}
            aside = {(replica.store.logs[number].path, damage.start) for number, damage in replica.aside}
            for index, entry in enumerate(replica.report.entries):
                if entry.action is Action.LOST:
                    continue
                place, size = (entry.path or "", entry.start or 0), (entry.stop or 0) - (entry.start or 0)
                is_made_good = is_whole or place in recovered or size in self._missing_sizes(number)
                is_damage = entry.action is Action.DROPPED and not is_made_good and place not in lost
                is_damage |= place in aside or (index in replica.restored and index not in held)
                is_expected = entry.is_expected or (len(self.replicas) > 1 and not is_damage)
                self.report.entries.append(replace(entry, is_expected=is_expected))

    # The result

    def _plan(self, joined: Catalog, simple_rows: NDArray[np.int64], items: Sequence[Item]) -> StorePlan:
        """All messages in new segments, with their index; `simple_rows` of the first replica stay in order."""
        first = self.replicas[0]
        raws = {}
        for replica, offset in zip(self.replicas, self._offsets, strict=True):
            for row in np.flatnonzero(replica.messages.number >= 0).tolist():
                raws[offset + row] = replica.extras[int(replica.messages.number[row])].raw
        renewed = [item.raw for item in items if item.raw is not None]
        sources, count = [], len(joined)
        for item in items:
            sources.append(item.source if item.raw is None else count)
            if item.raw is not None:
                raws[count] = item.raw
                count += 1
        if renewed:
            joined = joined.join(catalog_of_messages([(raw, 0, 0) for raw in renewed]))
        zeros = np.zeros(simple_rows.size, np.int64)
        places = np.array([(*item.anchor, item.number) for item in items], np.int64).reshape(-1, 3)
        sort_keys = np.concatenate((np.stack((zeros, simple_rows, zeros), axis=1), places))
        source_rows = np.concatenate((simple_rows, np.array(sources, np.int64)))[np.lexsort(sort_keys.T[::-1])]
        final = joined.take(source_rows)
        capacity = None if first.store.segments == [Segment()] else max(replica.capacity for replica in self.replicas)
        folded, kept = self._settle(final, capacity)
        catalog = joined.take(source_rows[kept])
        # A generation above 0 says that a compaction took what updates without a PUT are about.
        generation = int(any(replica.store.is_compacted for replica in self.replicas))
        numbers = range(_count(folded.catalog))
        segments = [Segment()] if capacity is None else [Segment(number, generation) for number in numbers]
        rewritten = {
            row: raws[int(source)] for row, source in enumerate(source_rows[kept].tolist()) if int(source) in raws
        }
        store = BlobStore(first.store.folder, first.store.files)
        nowhere = next(file for file in self._logs if file is not None)
        store.logs = [file or nowhere for file in self._logs]
        self.report.count("messages", len(catalog))
        return StorePlan(
            store,
            segments,
            [capacity] * len(segments),
            catalog,
            folded.catalog.segment,
            rewritten,
            folded.entries,
            folded.catalog.segment,
            self._style(),
            files={DESCRIPTOR_NAME: descriptor(str(uuid.uuid4()))},
        )

    def _settle(self, final: Catalog, capacity: int | None) -> tuple[Fold, NDArray[np.int64]]:
        """Place the messages, drop those that Ambry refuses; the fold of the rest, and their rows."""
        kept = np.arange(len(final))
        for is_last in (False, True):
            _place(final, capacity)
            remembered = []
            for replica in self.replicas:
                entries = replica.evidence.entries.take(replica.trusted_entries)
                entries = replace(entries, original_offset=np.full(len(entries), NONE, np.int64))
                remembered.append((final.rows_of(entries), entries))
            folded = fold(final, use=ORPHANS, drop=not is_last, remembered=remembered)
            refused = is_refused(final, folded.wrong) if not is_last else np.zeros(len(final), np.bool_)
            for row in np.flatnonzero(refused).tolist():
                blob = keys.text_of(final.key(row))
                self._note_undecided(
                    f"blob {blob}: {Kind(int(final.kind[row])).name} left out: {VIOLATIONS[int(folded.wrong[row])]}"
                )
            kept, final = kept[~refused], final.take(np.flatnonzero(~refused))
        return folded, kept

    def _style(self) -> Style:
        first = self.replicas[0]
        indexes = [(0, index) for index in first.evidence.files if index.crc_ok]
        style = Style.of(first.store, indexes, frozenset(), self.options)
        return replace(style, last_modified=None)


def _count(catalog: Catalog) -> int:
    return int(catalog.segment[-1]) + 1 if len(catalog) else 1


def _place(final: Catalog, capacity: int | None) -> None:
    """Put messages one after the other into segments."""
    if capacity is None:
        final.segment[:] = 0
        final.offset[:] = np.cumsum(final.size) - final.size
        return
    segment, offset = place_in_segments(final.size, capacity)
    final.segment[:], final.offset[:] = segment, offset


def _is_near(key: bytes, other: bytes) -> bool:
    """Whether two keys may be one key with some damaged bytes."""
    return len(key) == len(other) and sum(a != b for a, b in zip(key, other, strict=True)) <= len(key) // 2


OPTIONS = ("max_entries", "probability", "capacity")
HEAD = 64 << 10
"""Bytes of a log segment that are searched for a blob id, which names the partition."""
MOST_SPANS = 10_000


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """A replica: the directory that was named, its own, and its files."""

    disk: str
    folder: str
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """The replicas of one partition, and options."""

    number: int
    replicas: tuple[ReplicaFiles, ...]
    options: tuple[tuple[str, str], ...] = ()


class Rescue:
    """Ambry's half of `rescue`."""

    def __init__(self, options: RescueOptions, target: Path) -> None:
        options.check_plain("ambry", OPTIONS)
        probability_option(options.options)
        for name in ("max_entries", "capacity"):
            number_option(options.options, name, None)
        self.options = options
        self.report = Report(verb="rescue", target=str(target))

    # Which replicas there are

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """A split for each partition: its replicas are compared with one another."""
        replicas_of: dict[int, list[ReplicaFiles]] = {}
        places = Places(self.report.notes)
        for store in blob_stores([file for file in files if file.place.state != "copying"]):
            if not store.logs and not store.lost_segments():
                continue
            refuse_locked(store.folder, ".lock", "server")
            if not places.is_new(store.folder):
                continue
            number = partition_of(store)
            if number is None:
                self.report.notes.append(
                    f"{store.folder}: left out: neither its name nor a blob id tells its partition"
                )
                continue
            disk = max((root for root in roots if store.folder.startswith(root.rstrip("/"))), key=len, default=roots[0])
            replicas_of.setdefault(number, []).append(ReplicaFiles(disk, store.folder, store.files))
        if not replicas_of:
            raise OptionError(f"{', '.join(roots)}: no Ambry store is here")
        used = [replica.disk for replicas in replicas_of.values() for replica in replicas]
        empty = [root for root in dict.fromkeys(roots) if root not in used]
        self.report.notes += [f"{root}: not used" for root in empty]
        options = tuple(sorted(self.options.options.items()))
        partitions = [Partition(number, tuple(replicas), options) for number, replicas in sorted(replicas_of.items())]
        return [SurveySplit(str(partition.number), _size(partition), partition) for partition in partitions]

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> Any:
        """What a partition will be; the replicas in order of preference."""
        replicas, union = unite(split.content)
        advance(split.size)
        return _order_replicas(split.content, replicas), _unit_plan(split.content, replicas, union)

    # What is decided

    def decide(self, results: Sequence[SurveyResult]) -> list[RescueSplit]:
        """One store for each partition."""
        plans = [result.found[1] for result in results]
        self.report.facts["plan"] = plan_facts(plans)
        if self.options.is_plan:
            for plan in plans:
                for span in plan.lost:
                    self.report.add(Action.LOST, f"partition {plan.name}: {span.reason}")
                for text in plan.unknown:
                    self.report.add(Action.UNDECIDED, f"partition {plan.name}: {text}")
        return [RescueSplit(result.split.unit, result.split.size, result.found[0]) for result in results]

    # What is written

    def adjacent_files(self) -> Mapping[str, str | None]:
        """No file next to the target is needed."""
        return {}

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write one partition."""
        replicas, union = unite(split.content)
        report = carry_out(union.plan, folder.folder(split.name), union.report)
        for replica in replicas:
            report.notes.append(f"{counted(len(replica.messages.merged), 'sound message')} in {replica.store.folder}")
        for number, replica in enumerate(replicas):
            for segment in sorted({segment for segment, _ in replica.aside}):
                file = replica.store.logs[segment]
                aside.folder(f"{split.name}/copy-{number}").copy(file.path, file_name(file))
        advance(split.size)
        return report

    def finish(self, done: Sequence[RescuedUnit], folder: Folder) -> None:
        """Put the partitions next to one another, each in the directory of its number."""
        for unit in done:
            self.report.parts[unit.split.name] = unit.report
            folder.take(Path(unit.folder) / unit.split.name, unit.split.name)


def unite(partition: Partition) -> tuple[list[Replica], Union]:
    """Diagnose the replicas of a partition and decide what it becomes. The replica with the most sound messages comes first."""
    options = dict(partition.options)
    replicas = [Replica(BlobStore(replica.folder, replica.files), options) for replica in partition.replicas]
    replicas.sort(key=lambda replica: (-len(replica.messages.merged), len(replica.damages)))
    return replicas, Union(replicas, options).decide()


def _order_replicas(partition: Partition, replicas: Sequence[Replica]) -> Partition:
    order = {replica.store.folder: number for number, replica in enumerate(replicas)}
    ordered = tuple(sorted(partition.replicas, key=lambda replica: order[replica.folder]))
    return Partition(partition.number, ordered, partition.options)


def _size(partition: Partition) -> int:
    return sum(file.size for replica in partition.replicas for file in replica.files)


def _unit_plan(partition: Partition, replicas: Sequence[Replica], union: Union) -> UnitPlan:
    disks = {replica.folder: replica.disk for replica in partition.replicas}
    replica_plans = []
    for replica in replicas:
        starts = np.cumsum([0, *(file.size for file in replica.store.logs)]).tolist()
        damage = [
            Span(starts[number] + damage.start, starts[number] + damage.stop, damage.reason)
            for number, damage in replica.damages[:MOST_SPANS]
        ]
        use = f"{counted(len(replica.messages.merged), 'sound message')}, {len(replica.losses):,} known to be lost"
        folder = replica.store.folder
        replica_plans.append(CopyPlan(disks[folder], folder, 0, starts[-1], starts[-1], damage=tuple(damage), use=use))
    lost = tuple(Span(loss.start, loss.stop, f"{loss.reason} ({loss.path})") for loss in union.lost[:MOST_SPANS])
    size = int(union.plan.catalog.size.sum())
    reason = f"union of {counted(len(replicas), 'replica')}, {counted(len(union.plan.catalog), 'message')}"
    return UnitPlan(
        str(partition.number),
        "rescue" if len(union.plan.catalog) else "lost",
        0,
        size,
        reason,
        tuple(replica_plans),
        lost=lost,
        unknown=tuple(union.undecided[:MOST_SPANS]),
    )


# Whose replica a store is ------------------------------------------------------------------------------------------------------


def partition_of(store: BlobStore) -> int | None:
    """The partition that the directory of a store and the first blob ids of its index and log files name."""
    directory = next((file.place.partition for file in store.files if file.place.partition is not None), None)
    return elect_partition(directory, _named_partitions(store))


def _named_partitions(store: BlobStore) -> Iterator[int | None]:
    """What each file names."""
    orphans = [file for files in store.lost_segments().values() for file in files]
    for file in [*store.index_files, *orphans][:8]:
        try:
            index = read_index(file.path)
        except RawlogError:
            continue
        if index.crc_ok and len(index.entries):
            yield keys.parse(index.entries.key(0), 0).partition
    for file in store.logs[:8]:
        try:
            with Source(file.path) as source:
                data = byte_view(source.read(0, HEAD))
        except RawlogError:
            continue
        at = int(find_message(data, 0, data.size))
        messages = Messages(scan(data[at:], 0)) if at != NONE else None
        if messages is not None:
            rows = [row for row in range(min(8, len(messages))) if messages.sound[row]]
            yield majority_partition(np.array([keys.parse(messages.key(row), 0).partition for row in rows], np.int64))
