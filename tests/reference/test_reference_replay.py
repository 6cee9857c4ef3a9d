"""The judge of recordings judged: against everything that the real kafka-replay wrote and did."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.golden import DamagedReplay, GoldenRecord, ReplayCase, damaged_replays, replay_cases
from tests.reference import replay, strategies

SLOW = settings(suppress_health_check=list(HealthCheck), deadline=None)


@pytest.mark.parametrize("case", replay_cases(), ids=str)
def test_recordings_are_what_the_real_tool_wrote(case: ReplayCase) -> None:
    data = case.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == case.sha256
    entries, reached, verdict = replay.decode(data)
    assert (len(entries), reached, verdict.kind) == (case.count, len(data), "clean")
    assert replay.version_of(data) == case.version
    assert [replay.as_go_prints(entry.value) for entry in entries] == [line["data"] for line in case.printed]
    if case.version == 2:
        keys = [replay.as_go_prints(entry.key or b"") for entry in entries]
        assert keys == [line["key"] for line in case.printed]
    else:
        assert {entry.key for entry in entries} == {None}
    if case.version == 0:
        stored = [datetime.strptime(line["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ") for line in case.printed]
        assert [entry.time for entry in entries] == [
            round(time.replace(tzinfo=UTC).timestamp() * 1_000_000) for time in stored
        ]
    assert replay.encode(case.version, [(entry.time or 0, entry.key, entry.value) for entry in entries]) == data


@pytest.mark.parametrize("case", [case for case in replay_cases() if case.topic is not None], ids=str)
def test_recordings_hold_the_topic_they_were_made_from(case: ReplayCase) -> None:
    assert case.topic is not None
    entries = replay.decode(case.path.read_bytes())[0]
    if case.name == "v2/txn.log":  # the recorder takes the markers for messages
        markers = [e for e in entries if e.key in (b"\0\0\0\0", b"\0\0\0\1") and len(e.value) == 6]
        assert len(markers) == 4
        entries = [entry for entry in entries if entry not in markers]

    def seconds(record: GoldenRecord) -> int:
        ms = record.timestamp
        return replay.NO_TIME if ms is None or ms <= 0 else ms // 1000

    with_key, with_time = case.version == 2, case.version > 0 and case.name != "v2/append.log"
    found = [(e.time if with_time else 0, e.key if with_key else None, e.value) for e in entries]
    sent = [(seconds(r) if with_time else 0, (r.key or None) if with_key else None, r.value or b"") for r in case.topic]
    if case.name == "v2/group.log":  # three partitions interleaved as they came
        assert Counter(found) == Counter(sent)
    else:
        assert found == sent


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_damaged_recordings_give_what_the_real_tool_gave(case: DamagedReplay) -> None:
    data = case.path.read_bytes()
    entries, reached, verdict = replay.decode(data, version=0 if case.version == 0 else None)
    assert len(entries) == case.messages
    assert reached <= len(data)
    if "invalid" in case.stderr:
        assert verdict.kind == "bad-length"
        assert case.stderr == f"invalid {'key' if verdict.field == 'key' else 'message'} size: {verdict.value} bytes"
    elif "unsupported protocol version" in case.stderr:
        assert verdict.kind == "unknown-version"
        assert f"version: {verdict.value} " in case.stderr
    elif "failed to read file header" in case.stderr:
        assert verdict.kind == ("empty" if not data else "truncated-header")
    else:
        assert case.exit == 0
        name = case.path.stem.partition("-")[2]
        whole = ("whole", "cut-entry", "flip-value", "header-only", "reserved-ff", "time-ms", "bad-time", "empty")
        expected = "clean" if name in whole else "trailing-zeros" if name.startswith("zeros") else "truncated-tail"
        assert verdict.kind == expected
    if case.path.name == "v0-bad-time.log":
        assert [entry.number for entry in entries if entry.time is None] == [4]


def test_worked_examples_of_the_specification() -> None:
    t = 1_706_868_930
    both: list[tuple[int, bytes | None, bytes | None]] = [
        (t, b"user-123", b"Hello, World!"),
        (t, None, b"Hello, World!"),
    ]
    examples: list[tuple[int, list[tuple[int, bytes | None, bytes | None]], str]] = [
        (2, both, "2fbd6dbb6a6a4417a026abeec2af08da2b4af45202727c9871a18dc87e1ebf98"),
        (
            1,
            [(t, None, b"Hello, World!"), (t + 1, None, b"second")],
            "bdc783d01b2b6c5ac5902864269a98087a05f435edd0f6cdedf1033c5826b0e1",
        ),
        (
            0,
            [(replay.time_v0(b"2026-02-02T10:15:30.123456Z") or 0, None, b"hello")],
            "76c49e00e9c6a40e3ff505fa2142594bd55ac8cdb40966c6ee2141d7f9efb53c",
        ),
    ]
    for version, entries, digest in examples:
        assert hashlib.sha256(replay.encode(version, entries)).hexdigest() == digest


@SLOW
@given(strategies.recordings())
def test_random_recordings(recording: strategies.Recording) -> None:
    forced = 0 if recording.version == 0 else None
    entries, reached, verdict = replay.decode(recording.data, forced)
    assert (entries, reached, verdict.kind) == (recording.entries, len(recording.data), "clean")


@SLOW
@given(strategies.recordings(), st.data())
def test_a_cut_recording_loses_only_its_last_entry(recording: strategies.Recording, draw: st.DataObject) -> None:
    start = 0 if recording.version == 0 else replay.HEADER_SIZE
    cut = draw.draw(st.integers(start, len(recording.data)))
    entries, reached, _ = replay.decode(recording.data[:cut], 0 if recording.version == 0 else None)
    assert entries == [e for e in recording.entries if e.position + e.size <= cut]
    assert reached == max([start, *(e.position + e.size for e in entries)])


@given(st.binary(max_size=200), st.sampled_from([b"", b"\0\0\0\1" + bytes(16), b"\0\0\0\2" + bytes(16)]))
def test_any_bytes_are_decoded_without_an_exception(tail: bytes, head: bytes) -> None:
    for version in (None, 0):
        entries, reached, _ = replay.decode(head + tail, version)
        assert 0 <= reached <= len(head + tail)
        assert all(entry.position + entry.size <= reached for entry in entries)
