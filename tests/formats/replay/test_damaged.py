"""Damaged recordings, compared with what the real tool did with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.model.errors import (
    CorruptError,
    DataError,
    TruncatedError,
    UnsupportedError,
)
from rawlog.model.finding import Severity
from rawlog.testing.formats import plain
from rawlog.verbs.verify import all_rules
from tests.data.golden import DamagedReplay, damaged_replays, golden_path
from tests.reference import replay

FORMAT = "replay.recording"
T = 1_706_868_930

#: Where we differ, and why. The real tool of version 0 puts "now" in the place of an invalid time; we do not invent one.
FEWER_WITH_TIMES = {"v0-bad-time.log": 4, "v0-zeros-35.log": 10, "v0-zeros-70.log": 10}
#: The real tool takes a last entry that covers others for an unfinished one and reports success; we report it.
WE_COMPLAIN = {"v2-len-plus1.log", "v1-len-plus1.log", "v0-len-plus1.log", "v2-vlen-limit.log"}
#: Nothing in these says that they are recordings. A file of no bytes is good in version 0 alone.
UNKNOWN = {"v2-empty.log", "v1-empty.log", "v0-empty.log"}


def count(case: DamagedReplay, **how: Any) -> int:
    return rawlog.read(case.path, format=FORMAT, **how).num_rows


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_as_many_messages_as_the_real_tool_prints(case: DamagedReplay) -> None:
    if "failed to read file header" in case.stderr and case.path.stat().st_size:
        with pytest.raises(DataError):
            count(case)
    assert count(case, errors="stop", columns=["value"]) == case.messages
    assert count(case, errors="stop") == FEWER_WITH_TIMES.get(case.path.name, case.messages)
    stream = rawlog.open(case.path, format=FORMAT).table("records", errors="stop")
    assert stream.count() == case.messages


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_the_words_of_the_real_tool(case: DamagedReplay) -> None:
    """Scripts may look for them."""
    complains = case.exit != 0 or case.path.name in WE_COMPLAIN
    if not case.path.stat().st_size:
        assert count(case) == 0
    elif not complains:
        count(case, columns=["value"])
    else:
        with pytest.raises(DataError) as caught:
            count(case, columns=["value"])
        error = caught.value
        assert str(error).startswith(f"{FORMAT}: {case.path}: byte {error.position:,}: ")
        if "unexpected EOF" in case.stderr:
            assert isinstance(error, TruncatedError)
        elif "unsupported" in case.stderr:
            assert isinstance(error, UnsupportedError)
            assert case.stderr.removeprefix("failed to read file header: ") in str(error)
        else:
            assert isinstance(error, CorruptError)
            assert case.stderr in str(error)


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_damaged_files_are_still_taken_for_recordings(case: DamagedReplay) -> None:
    [file] = rawlog.open(case.path).files
    assert file.format == (None if case.path.name in UNKNOWN else FORMAT)


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_verify_tells_the_sound_from_the_damaged(case: DamagedReplay) -> None:
    findings = rawlog.verify(case.path, format=FORMAT)
    name = case.path.name
    damaged = (case.exit != 0 and case.path.stat().st_size) or name in WE_COMPLAIN or name in FEWER_WITH_TIMES
    assert (findings.verdict == "damaged") == bool(damaged), list(findings)
    for finding in findings:
        assert 0 <= (finding.position or 0) <= case.path.stat().st_size
        assert (finding.path, finding.format) == (str(case.path), FORMAT)


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_an_unfinished_entry_is_noted_and_no_error(case: DamagedReplay) -> None:
    if "-cut-" not in case.path.name:
        return
    notes: list[str] = []
    stream = rawlog.open(case.path).table("records")
    stream.note = notes.append
    assert stream.to_arrow().num_rows == 9
    [row] = plain(rawlog.read(case.path, table="files"))
    if case.path.name.endswith("cut-entry.log"):
        assert (notes, row["state"]) == ([], "ok")
        return
    left = case.path.stat().st_size - row["valid_size"]
    assert notes == [f"{case.path}: byte {row['valid_size']:,}: the last {left:,} bytes are an unfinished frame"]
    assert (row["state"], row["frames"], row["records"]) == ("truncated", 9, 9)
    assert [finding.code for finding in rawlog.verify(case.path)] == [f"{FORMAT}.unfinished"]


@pytest.mark.parametrize("name", ["v2-len-minus1", "v2-len-huge", "v2-vlen-minus1", "v1-len-minus1", "v0-len-minus1"])
def test_skipping_damage_finds_the_entries_after_it(name: str) -> None:
    path = golden_path("replay", "damaged", f"{name}.log")
    whole = plain(rawlog.read(golden_path("replay", "damaged", f"{name[:2]}-whole.log")))
    notes: list[str] = []
    stream = rawlog.open(path).table("records", errors="skip")
    stream.note = notes.append
    found = plain(stream.to_arrow())
    assert [row["value"] for row in found] == [row["value"] for row in whole[:4] + whole[5:]]
    start, stop = (plain(rawlog.read(path, table="replay.entries", errors="skip"))[i]["position"] for i in (3, 4))
    start += len(found[3]["value"]) + len(found[3]["key"] or b"") + replay.FIXED_SIZE[int(name[1])]
    assert notes == [f"{path}: byte {start:,}: {stop - start:,} damaged bytes skipped"]
    [finding] = [one for one in rawlog.verify(path) if one.severity is Severity.ERROR]
    assert (finding.code, finding.position, finding.size) == (f"{FORMAT}.framing", start, stop - start)


# ------------------------------------------------------------------ rules


def broken(tmp_path: Path, data: bytes) -> dict[str, Any]:
    """The findings on bytes, by code; each code once."""
    path = tmp_path / "broken.log"
    path.write_bytes(data)
    findings = list(rawlog.verify(path, format=FORMAT))
    assert len({finding.code for finding in findings}) == len(findings), findings
    return {finding.code.removeprefix(f"{FORMAT}."): finding for finding in findings}


def real(version: int) -> bytes:
    return golden_path("replay", "damaged", f"v{version}-whole.log").read_bytes()


def place(version: int, number: int) -> int:
    return replay.decode(real(version))[0][number].position


def over(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


RULES: dict[str, Any] = {}


def breaks(code: str) -> Any:
    """A test that makes one rule speak; test_every_rule_is_broken counts them."""

    def keep(function: Any) -> Any:
        RULES[code] = function
        return function

    return keep


@breaks("time")
def test_a_time_beyond_the_calendar_is_an_error(tmp_path: Path) -> None:
    at = place(2, 3)
    for seconds in ((1 << 63) - 1, -(1 << 63), 1 << 60):
        [finding] = broken(tmp_path, over(real(2), at, seconds.to_bytes(8, "big", signed=True))).values()
        assert finding.code == f"{FORMAT}.time"
        assert (finding.severity, finding.position, finding.size, finding.offset) == (Severity.ERROR, at, 8, 3)
        assert finding.found == str(seconds)


@pytest.mark.parametrize(
    "text", [b"2026-02-30", b"2026-13-01", b"xxxx", b"2026-02-02T24", b"2026-02-02T10:60", b"2026/02"]
)
def test_a_text_that_is_no_time_is_an_error(tmp_path: Path, text: bytes) -> None:
    at = place(0, 4)
    [finding] = broken(tmp_path, over(real(0), at, text)).values()
    assert (finding.code, finding.position, finding.size, finding.offset) == (f"{FORMAT}.time", at, 27, 4)
    assert finding.expected == "YYYY-MM-DDTHH:MM:SS.ffffffZ"
    assert text.decode() in (finding.found or "")


@pytest.mark.parametrize("number", [0, 4, 9])
def test_an_invalid_time_is_reported_at_its_place(tmp_path: Path, number: int) -> None:
    """A bad time in the first entry of a batch was reported at the end of that batch, and skipping it skipped the batch."""
    at = place(2, number)
    path = tmp_path / "x.log"
    path.write_bytes(over(real(2), at, b"\x7f" + b"\xff" * 7))
    with pytest.raises(CorruptError, match="an invalid time: 9,223,372,036,854,775,807 seconds") as caught:
        rawlog.read(path)
    assert caught.value.position == at
    found = plain(rawlog.read(path, errors="skip"))
    assert [row["offset"] for row in found] == [other for other in range(10) if other != number]
    assert rawlog.read(path, errors="stop").num_rows == number
    assert rawlog.read(path, columns=["value"]).num_rows == 10


@breaks("milliseconds")
def test_milliseconds_where_seconds_belong_are_a_warning(tmp_path: Path) -> None:
    for version in (1, 2):
        at = place(version, 2)
        [finding] = broken(tmp_path, over(real(version), at, (T * 1000).to_bytes(8, "big"))).values()
        assert (finding.code, finding.severity) == (f"{FORMAT}.milliseconds", Severity.WARNING)
        assert (finding.position, finding.offset, finding.found) == (at, 2, str(T * 1000))


@breaks("trailing-zeros")
def test_zeros_at_the_end_are_a_warning(tmp_path: Path) -> None:
    for version, fixed in ((1, 16), (2, 24)):
        for entries in (1, 2, 5):
            [finding] = broken(tmp_path, real(version) + bytes(fixed * entries)).values()
            assert (finding.code, finding.severity) == (f"{FORMAT}.trailing-zeros", Severity.WARNING)
            assert (finding.position, finding.size) == (len(real(version)), fixed * entries)
            assert f"{entries} messages" in finding.message


def test_a_recording_of_nothing_but_zeros_is_reported_from_its_first_byte(tmp_path: Path) -> None:
    found = broken(tmp_path, real(2)[:20] + bytes(48))
    assert (found["trailing-zeros"].position, found["trailing-zeros"].size) == (20, 48)


def test_an_empty_entry_that_others_follow_is_no_trailing_zero(tmp_path: Path) -> None:
    at = place(2, 5)
    assert broken(tmp_path, real(2)[:at] + bytes(24) + real(2)[at:]) == {}


@breaks("reserved")
def test_reserved_bytes_that_are_not_zero_are_a_warning(tmp_path: Path) -> None:
    [finding] = broken(tmp_path, over(real(2), 19, b"\1")).values()
    assert (finding.code, finding.severity) == (f"{FORMAT}.reserved", Severity.WARNING)
    assert (finding.position, finding.size, finding.found) == (4, 16, "00" * 15 + "01")


@breaks("transaction-marker")
def test_transaction_markers_are_pointed_out(tmp_path: Path) -> None:
    data = golden_path("replay", "v2", "txn.log").read_bytes()
    [finding] = broken(tmp_path, data).values()
    assert (finding.code, finding.severity) == (f"{FORMAT}.transaction-marker", Severity.INFO)
    first = next(e for e in replay.decode(data)[0] if e.key in (b"\0\0\0\0", b"\0\0\0\1"))
    assert finding.position == first.position
    assert finding.message.startswith("4 ")


@breaks("header")
def test_an_invalid_header_is_an_error(tmp_path: Path) -> None:
    [version] = broken(tmp_path, over(real(2), 0, b"\0\0\0\3")).values()
    assert (version.code, version.position, version.expected, version.found) == (f"{FORMAT}.header", 0, "1 or 2", "3")
    [cut] = broken(tmp_path, real(2)[:19]).values()
    assert (cut.code, cut.severity, cut.found) == (f"{FORMAT}.header", Severity.ERROR, "19")


@breaks("framing")
def test_an_invalid_length_is_an_error(tmp_path: Path) -> None:
    at = place(1, 6)
    [finding] = broken(tmp_path, over(real(1), at + 8, b"\xff" * 8)).values()
    assert (finding.code, finding.severity) == (f"{FORMAT}.framing", Severity.ERROR)
    assert (finding.position, finding.size) == (at, place(1, 7) - at)
    assert (finding.expected, finding.found) == ("0 to 104857600", "-1")


def test_damage_up_to_the_end_of_the_file_covers_it(tmp_path: Path) -> None:
    data = real(2) + b"\xff" * 24
    [finding] = broken(tmp_path, data).values()
    assert (finding.position, finding.size) == (len(real(2)), 24)


@breaks("unfinished")
def test_an_unfinished_entry_is_only_information(tmp_path: Path) -> None:
    [finding] = broken(tmp_path, real(2)[:-1]).values()
    assert (finding.code, finding.severity) == (f"{FORMAT}.unfinished", Severity.INFO)
    assert finding.position == place(2, 9)


@breaks("covered")
def test_an_entry_whose_length_covers_others_is_found(tmp_path: Path) -> None:
    """`repair` left such an entry out, at a place where `verify` found nothing: the damage that it saw began after the entry."""
    data = real(2)
    at, size = place(2, 3), place(2, 4) - place(2, 3)
    length = int.from_bytes(data[at + 16 : at + 24], "big")
    found = broken(tmp_path, over(data, at + 16, (length + 30).to_bytes(8, "big")))
    assert set(found) == {"covered", "framing"}
    finding = found["covered"]
    assert (finding.severity, finding.position, finding.offset) == (Severity.WARNING, at, 3)
    assert finding.size == size


def test_entries_that_a_missing_byte_of_version_0_covers_are_kept(tmp_path: Path) -> None:
    """`repair` took the next entry for one with an invalid time and a long value: the 24 entries in it were lost, and nobody named them."""
    data = golden_path("replay/v0/basic-v0.10.0.log").read_bytes()
    starts = [entry.position for entry in replay.decode(data)[0]]
    path = tmp_path / "x.log"
    path.write_bytes(data[: starts[15] - 3] + data[starts[15] - 2 :])
    report = rawlog.repair(path, tmp_path / "repaired")
    assert report.counts["entries_kept"] == len(starts) - 1
    [dropped] = report.all_entries()
    assert (dropped.start, dropped.stop) == (starts[15], starts[16] - 1)


def test_bad_entries_next_to_each_other_are_one_note(tmp_path: Path) -> None:
    """Zeros after a recording of version 0 are entries with an invalid time: two megabytes of them were 57,000 lines on stderr, and each
    entry cost as much as all that followed it.
    """
    path = tmp_path / "x"
    whole = golden_path("replay/v0/basic-v0.1.0.log").read_bytes()
    path.write_bytes(whole + bytes(35 * 3000) + whole)
    notes: list[str] = []
    rows = rawlog.open(path, format=FORMAT).table("records", errors="skip")
    rows.note = notes.append
    assert rows.to_arrow().num_rows == 140
    [note] = notes
    assert f"byte {len(whole):,}: an invalid time" in note
    assert note.endswith(f"; skipped, and 2,999 frames after it up to byte {len(whole) + 35 * 2999:,}")


def test_every_rule_of_recordings_is_broken_in_a_test() -> None:
    codes = {rule.code for rule in all_rules() if rule.code.startswith(f"{FORMAT}.")}
    assert codes == {f"{FORMAT}.{code}" for code in RULES}


def test_rules_are_chosen_by_code(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(over(over(real(2), 19, b"\1"), place(2, 2), (T * 1000).to_bytes(8, "big")))
    reserved, milliseconds = f"{FORMAT}.reserved", f"{FORMAT}.milliseconds"
    assert [f.code for f in rawlog.verify(path, rule=[reserved])] == [reserved]
    assert [f.code for f in rawlog.verify(path, skip=[reserved])] == [milliseconds]
    assert [f.code for f in rawlog.verify(path, rule=["replay"], skip=[FORMAT])] == []
