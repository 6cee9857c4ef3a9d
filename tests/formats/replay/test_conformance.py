"""Recordings show what every format must (`rawlog.testing`)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from tests.data.golden import GOLDEN, ReplayCase, golden_path, replay_cases
from tests.reference import replay, strategies

INT64 = 1 << 63


def rows_by_table(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """What the slow decoder reads, up to the first invalid time."""
    entries = replay.decode(data)[0]
    version = replay.version_of(data)
    records, own = [], []
    for entry in entries:
        micros = entry.time_us(version or 0)
        if micros is None or not -INT64 < micros < INT64:
            break
        common = {"key": entry.key, "value": entry.value, "timestamp": micros}
        records.append(
            {**common, "topic": None, "partition": None, "offset": entry.number, "timestampType": 0, "headers": []}
        )
        place = {"position": entry.position, "size": entry.size, "number": entry.number}
        own.append({**common, **place, "version": version})
    return {"records": records, "replay.entries": own}


def expected_rows(case: ReplayCase) -> list[dict[str, Any]]:
    """What a recording must hold, by the topic it was made from; where that does not tell, by what `cat` printed.

    The exceptions are those of golden/replay/ORIGIN.md.
    """
    if case.topic is None or case.name in ("v2/group.log", "v2/txn.log"):
        return [{"offset": number} for number in range(case.count)]  # test_recordings.py
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(case.topic):
        row = {"offset": number, "value": record.value or b"", "key": record.key or None if case.version == 2 else None}
        if case.version == 0:
            stored = datetime.strptime(case.printed[number]["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
            row["timestamp"] = round(stored.timestamp() * 1_000_000)
        elif case.name != "v2/append.log":
            milliseconds = record.timestamp or 0
            row["timestamp"] = (milliseconds // 1000 if milliseconds > 0 else replay.NO_TIME) * 1_000_000
        rows.append(row)
    return rows


@st.composite
def storable(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rows that a recording of some version holds without loss."""
    version = draw(st.sampled_from([0, 1, 2]))
    seconds = st.integers(-62_135_596_800, 253_402_300_799)
    times = (
        seconds.map(lambda s: s * 10**6) if version else st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6)
    )
    keys = st.one_of(st.none(), st.binary(min_size=1, max_size=30)) if version == 2 else st.none()
    drawn = draw(st.lists(st.tuples(keys, strategies.contents(3000), times), max_size=8))
    rows = [
        {"key": key, "value": value, "topic": None, "partition": None, "offset": number, "timestamp": time,
         "timestampType": 0, "headers": []}
        for number, (key, value, time) in enumerate(drawn)
    ]  # fmt: skip
    # A file of version 0 has no header: without entries it is empty, and says nothing of its version.
    return {"version": str(version)}, rows


class TestRecording(FormatTests):
    format = "replay.recording"
    golden = tuple(case.path for case in replay_cases())
    small = (
        golden_path("replay", "v2", "find.log").read_bytes(),
        golden_path("replay", "v2", "zero-time.log").read_bytes(),
        golden_path("replay", "v1", "basic-v1.1.0.log").read_bytes()[:185],
        golden_path("replay", "v0", "basic-v0.10.0.log").read_bytes()[:127],
    )
    everything = GOLDEN

    def header(self, data: bytes) -> int:
        return 0 if replay.TIME_V0.match(data) else replay.HEADER_SIZE

    def least(self, data: bytes) -> int:
        return 27 if replay.TIME_V0.match(data) else replay.HEADER_SIZE

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        return {"records": expected_rows(next(case for case in replay_cases() if case.path == path))}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        return rows_by_table(data)

    def samples(self) -> st.SearchStrategy[bytes]:
        return strategies.recordings().map(lambda recording: recording.data)

    def owns(self, path: Path) -> bool | None:
        if GOLDEN / "replay" / "damaged" in path.parents:
            return None  # test_damaged.py
        return path in self.golden

    def options(self, data: bytes) -> dict[str, str]:
        return {"version": str(replay.version_of(data))}

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], list[dict[str, Any]]]]:
        return storable()
