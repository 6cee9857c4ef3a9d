"""Golden partitions with deleted, swapped, renamed and truncated segments, and damaged bytes: repair keeps all it can, and reports
the rest. The truth comes from the golden bytes and the slow decoder alone.
"""

from __future__ import annotations

import atexit
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import rawlog
from rawlog.model.finding import Severity
from rawlog.model.report import Action, Entry, Report
from rawlog.testing.damage import WOUNDS, wounded
from tests.data.golden import KafkaCase, kafka_cases
from tests.data.kafka_rewriting import rewritten
from tests.data.random_repair import MEMORY, Damage, RandomRepair, Repair
from tests.reference import kafka

LARGEST = 90_000
CHECKPOINT = "cleaner-offset-checkpoint"
TAIL = 1 << 62

#: Those of one segment are cut into several: the batches are as a broker wrote them.
GOLDEN = [
    case
    for case in kafka_cases()
    if not case.partition.startswith("__") and 0 < sum(one.stat().st_size for one in case.segments) < LARGEST
]


@dataclass(frozen=True)
class Batch:
    """A batch of a golden partition, by its bytes and all the offsets that it covers."""

    data: bytes
    first: int
    last: int
    header: kafka.Batch = field(repr=False)

    @property
    def covered(self) -> bytes:
        """What its checksum protects, and the checksum."""
        return _covered(self.data, self.header.magic)


def _covered(batch: bytes, magic: int) -> bytes:
    return batch[17:] if magic == 2 else batch[12:]


@dataclass
class Golden:
    """A golden partition in several segments."""

    case: KafkaCase
    folder: Path
    segments: dict[int, list[Batch]]

    @property
    def batches(self) -> list[Batch]:
        return [batch for segment in self.segments.values() for batch in segment]

    @property
    def is_compacted(self) -> bool:
        """Whether a gap says nothing."""
        return (
            self.case.partition.startswith("compacted")
            or "compacted" in self.case.partition
            or "4298" in self.case.broker
        )


@cache
def _batches(case: KafkaCase) -> list[list[Batch]]:
    found = []
    for path in case.segments:
        data = path.read_bytes()
        segment = []
        for one in kafka.decode(data, check_crc=False):
            offsets = [record.offset for record in one.records]
            first = min([one.last_offset if one.base_offset is None else one.base_offset, *offsets])
            if one.magic != 2 and one.codec:
                first = min(offsets)
            segment.append(Batch(data[one.position : one.position + one.size], first, one.last_offset, one))
        found.append(segment)
    return found


@cache
def golden(number: int) -> Golden:
    """A golden partition in at least four segments where it has as many batches, with everything derived."""
    place = tempfile.mkdtemp(prefix="rawlog-golden-", dir=MEMORY)
    atexit.register(shutil.rmtree, place)
    return goldens(Path(place))(number)


def goldens(scratch: Path) -> Callable[[int], Golden]:
    """Makes them, each when it is asked for."""
    made: dict[int, Golden] = {}

    def get(number: int) -> Golden:
        number %= len(GOLDEN)
        if number in made:
            return made[number]
        case = GOLDEN[number]
        segments = [one for one in _batches(case) if one]
        bases = [int(path.stem) for path, one in zip(case.segments, _batches(case), strict=True) if one]
        if len(segments) < 4:
            flat = [batch for one in segments for batch in one]
            size = max(1, -(-len(flat) // 5))
            segments = [flat[at : at + size] for at in range(0, len(flat), size)]
            bases = [bases[0], *(one[0].first for one in segments[1:])]
        raw = scratch / f"raw-{number}" / case.partition
        raw.mkdir(parents=True)
        for base, segment in zip(bases, segments, strict=True):
            (raw / f"{base:020d}.log").write_bytes(b"".join(batch.data for batch in segment))
        folder = scratch / f"{number}" / case.partition
        rewritten("rebuild", raw, folder)
        if (case.path.parent / CHECKPOINT).exists():
            shutil.copy(case.path.parent / CHECKPOINT, folder.parent / CHECKPOINT)
        made[number] = Golden(case, folder, dict(zip(bases, segments, strict=True)))
        return made[number]

    return get


@dataclass
class Damaged:
    """A damaged copy, and what was done to it."""

    golden: Golden
    path: Path
    log: dict[str, bytes]
    done: list[str]


def damage(golden: Golden, folder: Path, number: int) -> Damaged:
    """One to three things happen to whole segments, up to three to bytes."""
    draw = random.Random(number)
    files = {base: b"".join(batch.data for batch in segment) for base, segment in golden.segments.items()}
    done = []
    for kind in draw.choices(
        ("deleted", "swapped", "renamed", "truncated", "zero tail", "nothing"), k=draw.choice((1, 1, 2, 3))
    ):
        names = sorted(files)
        if len(names) < 2 or kind == "nothing":
            continue
        one = draw.choice(names)
        if kind == "deleted":
            del files[one]
            done.append(f"deleted {one}")
        elif kind == "swapped":
            other = draw.choice([name for name in names if name != one])
            files[one], files[other] = files[other], files[one]
            done.append(f"swapped {one} and {other}")
        elif kind == "renamed":
            new = one + draw.choice((-9, -2, -1, 1, 1, 2, 3, 7, 7, 40, 300))
            if new >= 0 and new not in files:
                files[new] = files.pop(one)
                done.append(f"renamed {one} to {new}")
        else:
            at = draw.randrange(len(files[one]) + 1)
            files[one] = files[one][:at] + (bytes(draw.choice((1, 30, 700))) if kind == "zero tail" else b"")
            done.append(f"{kind} {one} at {at}")
    for kind in draw.choices(list(WOUNDS), k=draw.choice((0, 1, 1, 2, 3))):
        one = draw.choice(sorted(files))
        files[one] = wounded(draw, files[one], kind)
        done.append(f"{kind} bytes in {one}")
    target = folder / f"{number}" / golden.case.partition
    target.mkdir(parents=True)
    for path in golden.folder.iterdir():
        if path.suffix != ".log":
            shutil.copyfile(path, target / path.name)
    log = {f"{base:020d}.log": data for base, data in sorted(files.items())}
    for name, data in log.items():
        (target / name).write_bytes(data)
    _with_checkpoint(golden, target)
    return Damaged(golden, target, log, done)


def _with_checkpoint(golden: Golden, target: Path) -> None:
    if (golden.folder.parent / CHECKPOINT).exists():
        shutil.copyfile(golden.folder.parent / CHECKPOINT, target.parent / CHECKPOINT)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}


@dataclass
class Truth:
    """What is known of a damaged copy without looking at what repair made of it."""

    #: Batches that are still there, byte for byte.
    whole: list[Batch]
    #: Offsets that must be reported as lost, if the repaired log does not have them after all.
    lost: set[int]
    #: Those that verify must report as a gap between segments.
    gaps: set[int]


def truth_of(damaged: Damaged) -> Truth:
    golden = damaged.golden
    data = list(damaged.log.values())
    whole = [batch for batch in golden.batches if any(batch.data in one for one in data)]
    present = {offset for batch in whole for offset in range(batch.first, batch.last + 1)}
    if not whole:
        return Truth(whole, set(), set())
    there = {offset for batch in golden.batches for offset in range(batch.first, batch.last + 1)}
    # Nothing says what was before the first batch; the snapshots of the producers say where the log ended.
    hull = set(range(whole[0].first, golden.batches[-1].last + 1))
    missing = (there & hull) - present
    for name, one in damaged.log.items():
        # A name that is lower than the first batch of its segment is all that a repaired segment, or a compacted one, shows too.
        first = min(((one.index(batch.data), batch.first) for batch in whole if batch.data in one), default=None)
        if first is not None and first[0] == 0:
            missing -= set(range(int(name[:20]), first[1]))
    if golden.is_compacted:
        return Truth(whole, _inside(damaged, whole) & missing, set())
    gaps = set()
    held = [(min(int(name[:20]), *span), max(span)) for name, one in damaged.log.items() if (span := _span(one, whole))]
    tail = whole[-1].last
    ends = any(one.endswith(whole[-1].data) for one in data)
    ends &= not data[-1] or any(data[-1].endswith(batch.data) for batch in whole)
    for offset in missing:
        if offset > tail and not ends:
            continue  # damage at the end of the log says that something is missing there
        # Between segments: no segment that is left has batches before and after it.
        if not any(low <= offset < high for low, high in held):
            gaps.add(offset)
    return Truth(whole, missing, gaps)


def _inside(damaged: Damaged, whole: list[Batch]) -> set[int]:
    """The offsets of batches that are gone from between two that are still in one file."""
    gone: set[int] = set()
    kept = set(map(id, whole))
    for segment in damaged.golden.segments.values():
        for data in damaged.log.values():
            there = [number for number, batch in enumerate(segment) if id(batch) in kept and batch.data in data]
            for batch in segment[there[0] : there[-1]] if there else ():
                if id(batch) not in kept:
                    gone |= set(range(batch.first, batch.last + 1))
    return gone


def _span(data: bytes, whole: list[Batch]) -> list[int]:
    return [offset for batch in whole if batch.data in data for offset in (batch.first, batch.last)]


def covered(lost: list[tuple[int, int | None]], offset: int) -> bool:
    return any(first <= offset and (last is None or offset <= last) for first, last in lost)


def check_diagnosis(report: Report, findings: rawlog.Findings) -> None:
    """Repair acts on what verify finds: nothing is lost of a log in which verify finds nothing, and whatever repair drops, moves or changes
    is at a place with a finding.
    """
    losses = [one for one in report.entries if one.is_alteration]
    if findings.verdict == "clean":
        unfinished = {one.position for one in findings}
        assert all(one.start in unfinished for one in losses if one.path is not None), f"nothing was found: {losses}"
        assert all(one.stop_offset is None for one in losses if one.path is None), f"nothing was found: {losses}"
    for one in losses:
        if one.path is not None and not one.stop and _is_after_loss(one, report):
            continue  # renamed because of a loss, which is looked at itself
        if one.action is Action.ADDED:
            continue  # in place of what is lost
        assert any(_is_at(one, finding) for finding in findings), f"verify does not find what repair reports: {one}"


def _is_after_loss(entry: Entry, report: Report) -> bool:
    first, stop = entry.first_offset or 0, entry.stop_offset or TAIL
    return any(low < stop and (high is None or high >= first) for low, high in report.lost)


def _is_at(entry: Entry, finding: rawlog.Finding) -> bool:
    """Whether a finding is about the bytes or the offsets of an entry."""
    if entry.path is not None and entry.stop:
        if finding.path != entry.path or finding.position is None or entry.start is None:
            return False
        return finding.position < entry.stop and entry.start < finding.position + max(finding.size or 0, 1)
    if entry.path is not None and finding.path == entry.path and finding.position == 0:
        return True  # about the file as a whole
    if entry.first_offset is None:
        return True  # of a transaction: its marker is among the lost offsets
    stop = TAIL if entry.stop_offset is None else entry.stop_offset
    if finding.code == "kafka.partition.gap":
        low, high = _stated(finding.message)
        return low <= stop and entry.first_offset <= high + 1
    if finding.offset is not None:
        return entry.first_offset - 1 <= finding.offset <= stop
    return entry.path is None


def check_visibility(damaged: Damaged, truth: Truth, target: Path, report: Report) -> None:
    """What was aborted stays so, and what was committed can be read, or the report says that nothing knows it."""
    fates = _fates(damaged)
    if not any(fates.values()):
        return
    visible = set(rawlog.read(target, isolation="read_committed", columns=["offset"])["offset"].to_pylist())
    stable = min((first for first, fate in fates.items() if fate is not None and fate.marker == TAIL), default=TAIL)
    unknown = [one for one in report.facts["transactions"] if one["outcome"] == "unknown"]
    blocked = min((one["first_offset"] for one in unknown if "stays open" in one["evidence"]), default=TAIL)
    for batch in truth.whole:
        if batch.header.is_control or batch.first >= stable:
            continue
        fate = fates[batch.first]
        is_reported = any(
            one["producer_id"] == batch.header.producer_id and one["first_offset"] <= batch.first <= one["last_offset"]
            for one in unknown
        )
        for record in batch.header.records:
            if fate is not None and not fate.commits:  # the transaction index has it, whether the marker is left or not
                assert record.offset not in visible, f"offset {record.offset} was aborted, and can be read"
            elif not is_reported and record.offset < blocked:
                assert record.offset in visible, f"offset {record.offset} was committed, and cannot be read"


@dataclass(frozen=True)
class Fate:
    """How the transaction of a batch ended: the offset of its marker, and what it says. An open one has no marker."""

    marker: int
    commits: bool


def _fates(damaged: Damaged) -> dict[int, Fate | None]:
    """The end of every batch's transaction in the golden log, by the batch's first offset; None for a batch of no transaction."""
    fates: dict[int, Fate | None] = {}
    waiting: dict[int, list[int]] = {}
    for batch in damaged.golden.batches:
        header = batch.header
        if header.is_control:
            for first in waiting.pop(header.producer_id, []):
                fates[first] = Fate(batch.first, header.records[0].control_type == 1)
        elif header.is_transactional:
            waiting.setdefault(header.producer_id, []).append(batch.first)
        else:
            fates[batch.first] = None
    for open_ones in waiting.values():
        fates |= {first: Fate(TAIL, False) for first in open_ones}
    return fates


#: Findings that may stay after a repair that reports losses: a hole that nothing explains stays known (issue 24, row 7).
STAYS = {"kafka.partition.gap"}


def _names(message: str, offset: int) -> bool:
    low, high = _stated(message)
    return low <= offset <= high


def _stated(message: str) -> tuple[int, int]:
    """The first and last of the offsets that a message begins with: `offset 5 is …`, `offsets 1,005 to 1,007 are …`."""
    numbers = re.match(r"offsets? ([\d,]+)(?: to ([\d,]+))? (?:is|are) ", message)
    assert numbers is not None, message
    low, high = numbers[1], numbers[2] or numbers[1]
    return int(low.replace(",", "")), int(high.replace(",", ""))


class TestPartitions(RandomRepair):
    def damage(self, number: int, folder: Path) -> Damage:
        damaged = damage(golden(number % len(GOLDEN)), folder, number)
        return Damage(damaged.path, f"{damaged.golden.case}: {'; '.join(damaged.done)}", damaged)

    def repair(self, source: Path, target: Path) -> Report:
        report = super().repair(source, target)
        checkpoint = source.parent / CHECKPOINT
        if checkpoint.exists():
            shutil.copyfile(checkpoint, target.parent / CHECKPOINT)
            # It explains holes that the repair of a directory without it could only name.
            report.remaining = [one for one in rawlog.verify(target) if one.severity is not Severity.INFO]
        return report

    def compared(self, folder: Path) -> dict[str, bytes]:
        return logs(folder)

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        return True  # `check_diagnosis` asserts it

    def is_settled(self, second: Report, first: Report) -> bool:
        """A hole that nothing explains stays known: it was a loss of the first repair."""
        ends = [end for low, high in second.lost for end in (low, low if high is None else high)]
        is_known = all(covered(first.lost, offset) for offset in ends)
        return is_known and not any(one.is_alteration for one in second.entries if one.action is not Action.LOST)

    def judge(self, damage: Damage, repair: Repair) -> None:
        damaged: Damaged = damage.truth
        report, truth = repair.report, truth_of(damaged)
        repaired = {
            data[at : at + 8] + _covered(data[at : at + size], magic)
            for data in logs(repair.target).values()
            for at, size, magic in kafka.frames(data)[0]
        }
        for batch in truth.whole:  # a leader epoch may be another: no checksum covers it, and those around it decide
            assert batch.data[:8] + batch.covered in repaired, (
                f"lost a sound batch of offsets {batch.first} to {batch.last}"
            )
        by_content = {batch.covered: batch for batch in damaged.golden.batches}
        restored = {one["marker_offset"] for one in report.facts["transactions"]} - {None}
        present: set[int] = set()
        end = -1
        for name, data in logs(repair.target).items():
            found, reached, status = kafka.frames(data)
            assert (reached, status) == (len(data), "ok") or not data, (name, status)
            for at, size, magic in found:
                batch = data[at : at + size]
                covered_bytes = _covered(batch, magic)
                if covered_bytes not in by_content:
                    assert magic == 2, "made of nothing"
                    offset = int.from_bytes(batch[:8], "big")
                    if offset in restored:
                        present.add(offset)
                        end = offset
                        continue
                    assert batch[57:61] == bytes(4), "made of nothing"
                    continue
                own = by_content[covered_bytes]
                last = int.from_bytes(batch[:8], "big") + (own.last - own.first if magic == 2 else 0)
                first = last - (own.last - own.first)
                assert first > end, f"offset {first} after {end}"
                assert first >= int(name[:20]), f"offset {first} in {name}"
                end = last
                present |= set(range(first, last + 1))
        for offset in truth.lost - present:
            assert covered(report.lost, offset), f"offset {offset} is lost, and not reported: {report.lost}"
        for offset in present:
            assert not covered([one for one in report.lost if one[1] is not None], offset), (
                f"offset {offset} is reported lost, and there"
            )
        stated = [one for one in repair.findings if one.code == "kafka.partition.gap"]
        for offset in truth.gaps - present:
            assert any(_names(one.message, offset) for one in stated), (
                f"verify does not report offset {offset} as missing"
            )
        for one in stated:
            low, high = _stated(one.message)
            ends = (covered(report.lost, offset) or offset in restored for offset in (low, high))
            assert all(ends), f"repair does not report {one.message}"
        check_diagnosis(report, repair.findings)
        cut = rewritten("repair", damaged.path, repair.target, policy="broker", dry_run=True, overwrite=True)
        if any(one.is_loss for one in cut.entries):
            assert len(repair.findings), "the policy of brokers drops what verify does not find"
        result = rawlog.verify(repair.target)
        assert not result.errors, [str(one) for one in result if str(one.severity) == "error"][:3]
        if result.warnings:
            assert not report.is_whole
            warnings = {one.code for one in result if str(one.severity) == "warning"}
            assert warnings <= STAYS, [str(one) for one in result][:3]
        for one in result:
            if one.code == "kafka.partition.gap" and str(one.severity) == "warning":
                assert all(covered(report.lost, offset) for offset in _stated(one.message)), f"new in the result: {one}"
        check_visibility(damaged, truth, repair.target, report)

    @pytest.mark.parametrize("number", [145, 292, 426, 552, 1125, 1574, 1657, 2785, 3083])
    def test_cases_that_failed_once(self, number: int, scratch: Path) -> None:
        """Transaction markers were put back twice, at an impossible offset, from a copy of another marker; or not, because the transaction
        index was of a segment that had been renamed, or the last segment was gone. The policy of brokers reported zeros of preallocation at
        the end of the log as lost offsets. A message set inside a damaged compressed one looked like a batch of its own, and its impossible
        offset kept a sound batch of the same, renamed file out.
        """
        self.check(number, scratch / str(number))
