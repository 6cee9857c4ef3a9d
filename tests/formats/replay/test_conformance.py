"""Recordings show what every format must (`rawlog.testing`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from tests.golden_data import GOLDEN, golden_path, replay_cases
from tests.reference import replay, strategies

INT64 = 1 << 63


def rows_by_table(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """What the slow decoder reads, up to the first time that cannot be told."""
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


@st.composite
def storable(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rows that a recording of some version holds without loss."""
    version = draw(st.sampled_from([0, 1, 2]))
    seconds = st.integers(-62_135_596_800, 253_402_300_799)
    times = seconds.map(lambda s: s * 10**6) if version else st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6)
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
    golden = [case.path for case in replay_cases()]
    small = [
        golden_path("replay", "v2", "find.log").read_bytes(),
        golden_path("replay", "v2", "zero-time.log").read_bytes(),
        golden_path("replay", "v1", "basic-v1.1.0.log").read_bytes()[:185],
        golden_path("replay", "v0", "basic-v0.10.0.log").read_bytes()[:127],
    ]
    everything = GOLDEN

    def header(self, data: bytes) -> int:
        return 0 if replay.TIME_V0.match(data) else replay.HEADER_SIZE

    def least(self, data: bytes) -> int:
        return 27 if replay.TIME_V0.match(data) else replay.HEADER_SIZE

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        case = next(case for case in replay_cases() if case.path == path)
        printed = [{"value": line["data"]} for line in case.printed]
        return {"records": [{} for _ in printed]}  # what the entries hold: test_recordings.py

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
