"""Walking: the one loop that reads frames, in windows of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.io.storage import Source
from rawlog.io.walk import hex_lines, walk
from rawlog.model.errors import CorruptError, RawlogError, UnsupportedError
from rawlog.model.format import File, Format, Origin
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.registry import formats
from rawlog.testing.formats import frames_of, shared
from tests.data.golden import golden_path
from tests.data.recordings import held
from tests.reference import replay, strategies

RECORDING = formats()["replay.recording"]
T = 1_706_868_930


def file(path: Path) -> File:
    return File(str(path), path.stat().st_size, format=RECORDING.name)


@shared
@given(strategies.recordings(), st.integers(1, 300), st.data())
def test_windows_of_any_size_give_the_frames_of_the_reference(
    tmp_path: Path, recording: strategies.Recording, window: int, data: st.DataObject
) -> None:
    if not recording.data:
        return
    path = tmp_path / "x"
    cut = data.draw(st.integers(27 if recording.version == 0 else 20, max(27, len(recording.data))))
    path.write_bytes(recording.data[:cut])
    entries, reached, _ = replay.decode(recording.data[:cut])
    windows = list(walk(file(path), RECORDING, window=window, errors="stop"))
    assert frames_of(file(path), RECORDING, window=window, errors="stop") == [
        (entry.number, entry.position, entry.position + entry.size) for entry in entries
    ]
    assert windows[-1].reached_in_file == reached
    assert [frames.last for frames in windows] == [False] * (len(windows) - 1) + [True]


def test_a_walk_from_and_to_a_frame_gives_those_between() -> None:
    path = golden_path("replay", "v2", "basic.log")
    whole = frames_of(file(path), RECORDING)
    for first in (0, 1, 35, 69):
        for last in (first, first + 1, 69):
            if last > 69:
                continue
            part = frames_of(file(path), RECORDING, start=whole[first][1], stop=whole[last][2], first=first, window=100)
            assert part == whole[first : last + 1]


def test_a_boundary_inside_a_frame_is_an_error() -> None:
    """An index that disagrees with its log must not lose the frame that it cuts in two."""
    path = golden_path("replay", "v2", "basic.log")
    with pytest.raises(CorruptError, match="crosses the planned boundary at byte 100"):
        list(walk(file(path), RECORDING, stop=100))


def test_a_window_grows_only_to_the_largest_frame(tmp_path: Path) -> None:
    path = tmp_path / "x"
    sizes = [10, 5000, 3, 70_000, 1]
    path.write_bytes(replay.encode(2, [(T, None, bytes(size)) for size in sizes]))
    windows = list(walk(file(path), RECORDING, window=64))
    assert sum(len(frames) for frames in windows) == 5
    assert max(frames.data.size for frames in windows) < 2 * (70_000 + 24)


def test_skipping_finds_what_follows_damage_across_windows(tmp_path: Path) -> None:
    entries = [(T + number, b"key", b"value %d" % number * 20) for number in range(50)]
    data = bytearray(replay.encode(2, entries))
    whole = replay.decode(bytes(data))[0]
    for number in (5, 20, 21, 49):
        data[whole[number].position + 8] = 0xFF
    path = tmp_path / "x"
    path.write_bytes(data)
    expected = [entry.position for entry in whole if entry.number not in (5, 20, 21, 49)]
    for window in (1 << 20, 4096, 1000):
        found = frames_of(file(path), RECORDING, errors="skip", window=window)
        assert [start for _, start, _ in found] == expected, window
        assert [number for number, _, _ in found] == list(range(46))
    with pytest.raises(CorruptError) as caught:
        list(walk(file(path), RECORDING))
    assert caught.value.position == whole[5].position


@pytest.mark.parametrize(
    "value",
    [bytes(60), b"\0\0\0\0\0\0\0\1" * 9, b"{}" * 30, bytes(40) + b"tail" * 5],
    ids=["zeros", "ones", "text", "zeros and text"],
)
def test_an_unfinished_entry_of_any_content_is_unfinished(tmp_path: Path, value: bytes) -> None:
    """The lengths and zeros inside a cut entry once passed for entries of the year 1970, and the tail for damage."""
    path = tmp_path / "x"
    data = replay.encode(2, [(T, b"k", b"v"), (T, None, value)])
    start = replay.decode(data)[0][1].position
    for cut in range(start + 1, len(data)):
        path.write_bytes(data[:cut])
        [frames] = walk(file(path), RECORDING)
        assert (len(frames), frames.status) == (1, Status.TRUNCATED), f"cut at {cut}"


def test_a_last_entry_that_swallows_sound_ones_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x"
    data = bytearray(replay.encode(2, [(T, b"k", b"v%d" % number) for number in range(6)]))
    at = replay.decode(bytes(data))[0][1].position
    data[at + 22] = 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        list(walk(file(path), RECORDING))
    assert [number for number, _, _ in frames_of(file(path), RECORDING, errors="stop")] == [0]
    assert len(frames_of(file(path), RECORDING, errors="skip")) == 5


# ------------------------------------------------------------------ a format of our own: a byte of length, then so many


def scan(data: Any, kind: int) -> Frames:
    starts, stops, position, status = [], [], 0, Status.OK
    while position < data.size:
        length = int(data[position])
        if length == 0:
            status = Status.BAD_LENGTH if data[position:].any() else Status.PADDING
            break
        if length == 255:
            status = Status.BAD_LENGTH
            break
        if position + 1 + length > data.size:
            status = Status.TRUNCATED
            break
        starts.append(position)
        position += 1 + length
        stops.append(position)
    return Frames(data, np.array(starts, np.int64), np.array(stops, np.int64), position, status, kind)


class Toy:
    """What a module of this format would define."""

    scan = staticmethod(scan)

    @staticmethod
    def begin(head: bytes, size: int) -> Origin:
        return Origin(2, 7)


TOY = Format(name="toy.log", title="", files="", module=f"{__name__}:Toy")


def test_a_format_that_is_only_listed_cannot_be_walked(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="recognised, but cannot be read yet"):
        list(walk(file(tmp_path / "x"), Format(name="toy.index", title="", files="")))


@pytest.mark.parametrize("window", [1, 3, 10, 1000])
def test_zeros_to_the_end_are_padding_and_elsewhere_damage(tmp_path: Path, window: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"HD" + b"\3abc" + bytes(500))
    *_, last = walk(file(path), TOY, window=window)
    assert (last.status, last.last, last.reached_in_file, last.kind) == (Status.PADDING, True, 6, 7)
    path.write_bytes(b"HD" + b"\3abc" + bytes(500) + b"\1x")
    with pytest.raises(CorruptError, match="an invalid length") as caught:
        list(walk(file(path), TOY, window=window))
    assert caught.value.position == 6
    *_, last = walk(file(path), TOY, window=window, errors="skip")
    assert (last.status, last.last) == (Status.BAD_LENGTH, True)


class Long:
    """A format of frames that begin with zeros: zeros, then a byte of length, then so many bytes."""

    @staticmethod
    def scan(data: Any, kind: int) -> Frames:
        starts, stops, position, status = [], [], 0, Status.OK
        while position < data.size:
            ahead = np.flatnonzero(data[position:])
            if not ahead.size:
                status = Status.PADDING
                break
            stop = position + int(ahead[0]) + 1 + int(data[position + int(ahead[0])])
            if stop > data.size:
                status = Status.TRUNCATED
                break
            starts.append(position)
            stops.append(stop)
            position = stop
        return Frames(data, np.array(starts, np.int64), np.array(stops, np.int64), position, status, kind)


@pytest.mark.parametrize("zeros", [1, 7, 300])
def test_a_frame_that_begins_with_zeros_at_the_end_of_a_window_is_a_frame(tmp_path: Path, zeros: int) -> None:
    """A batch of a small offset begins with zeros: where a window ended in them, sound segments were called damaged."""
    long = Format(name="toy.long", title="", files="", module=f"{__name__}:Long")
    path = tmp_path / "x"
    for padding in (0, 50):
        path.write_bytes((bytes(zeros) + b"\3abc") * 20 + bytes(padding))
        for window in (1, 5, 100, 1 << 20):
            assert len(frames_of(file(path), long, window=window)) == 20


@shared
@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_in_any_windows_give_the_same_frames(tmp_path: Path, data: bytes, window: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"HD" + data)
    whole = list(walk(file(path), TOY, errors="stop", window=1 << 20))
    cut = list(walk(file(path), TOY, errors="stop", window=window))
    assert [p for frames in cut for p in frames.positions.tolist()] == whole[0].positions.tolist()
    assert cut[-1].status == whole[0].status
    assert cut[-1].reached_in_file == whole[0].reached_in_file


def test_a_file_that_shrinks_while_it_is_walked_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"HD" + b"\3abc" * 100)
    with Source(str(path)) as source:
        path.write_bytes(b"HD" + b"\3abc" * 50)
        frames = [p for window in walk(file(path), TOY, window=40, source=source) for p in window.positions.tolist()]
    assert len(frames) == 50


def test_bytes_are_shown_around_a_place() -> None:
    data = np.arange(100, dtype=np.uint8)
    lines = hex_lines(data, 40, 1000).splitlines()
    assert [line.split()[0] for line in lines] == ["1,016", "1,032", "1,048"]
    assert lines[1].startswith("         1,032  20 21 22") is True
    assert hex_lines(data[:0], 0, 0) == ""


def test_every_status_of_damage_has_its_words() -> None:
    from rawlog.io.walk import describe

    for status in Status:
        if status.is_damage:
            empty = np.empty(0, np.int64)
            error = describe(TOY, Frames(np.empty(0, np.uint8), empty, empty, 0, status), "x")
            assert isinstance(error, RawlogError)
            assert str(error).startswith("toy.log: x: byte 0: ")
            assert error.message != "damage"


@pytest.mark.parametrize("change", [2, 40, -2])
def test_a_length_that_is_a_little_wrong_hides_no_other_frame(change: int, tmp_path: Path) -> None:
    """A length that was two bytes too large reached into the next batch: the search for what follows began after the beginning of that
    sound one, and it was lost in silence.
    """
    source = golden_path("kafka", "broker-4.3.0", "data", "codec-none-0", f"{0:020}.log")
    data = bytearray(source.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    length = int.from_bytes(data[second + 8 : second + 12], "big")
    data[second + 8 : second + 12] = (length + change).to_bytes(4, "big")
    path = tmp_path / "codec-none-0" / source.name
    path.parent.mkdir()
    path.write_bytes(data)
    whole = {row["offset"] for row in rawlog.rows(source, columns=["offset"])}
    found = {row["offset"] for row in rawlog.rows(path, columns=["offset"], errors="skip")}
    batches = list(rawlog.rows(source, table="kafka.batches", columns=["position", "base_offset", "last_offset"]))
    (bad,) = (one for one in batches if one["position"] == second)
    assert whole - found == set(range(bad["base_offset"], bad["last_offset"] + 1))
    assert min(one.position or 0 for one in rawlog.verify(path) if one.severity == "error") == second
    rawlog.ingest(path, tmp_path / "lake", tables=["records"], engine="local")
    assert {row["offset"] for row in held(tmp_path / "lake")} == found


@pytest.mark.parametrize("bit", [1, 2, 4, 16])
def test_a_wrong_length_costs_one_frame_wherever_it_is(bit: int, tmp_path: Path) -> None:
    """Also of the last frame but one: the rest of the file looked like an unfinished frame then."""
    source = golden_path("kafka", "broker-4.3.0", "data", "codec-none-0", f"{0:020}.log")
    path = tmp_path / source.name
    log = formats()["kafka.log"]
    places = frames_of(File(str(source), source.stat().st_size, None, "kafka.log"), log)
    for _, start, _ in places[:-1]:
        data = bytearray(source.read_bytes())
        data[start + 11] ^= bit
        path.write_bytes(data)
        found = frames_of(File(str(path), len(data), None, "kafka.log"), log, errors="skip")
        kept = {(one, stop) for _, one, stop in found}
        assert kept >= {(one, stop) for _, one, stop in places if one != start}


# Headers -----------------------------------------------------------------------------------------------------------------


def with_wrong_bit(source: Path, target: Path, at: int) -> Path:
    data = bytearray(source.read_bytes())
    data[at] ^= 4
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(data))
    return target


#: A file with a header, its format, the byte that gets a wrong bit, and the table that it is read as.
HEADERS = {
    "ambry.log": ("ambry/store-small/1_0_log", 5, "records"),
    "replay version 2": ("replay/v2/find.log", 3, "records"),
    "replay version 2, high byte": ("replay/v2/find.log", 1, "records"),
    "replay version 1": ("replay/v1/basic-v1.0.0.log", 3, "records"),
    "rocketmq.index": ("../../samples/rocketmq/store/index", 20, "rocketmq.keys"),
}


def header_case(name: str) -> tuple[Path, int, str]:
    place, at, table = HEADERS[name]
    path = golden_path(*place.split("/"))
    return min(path.iterdir()) if path.is_dir() else path, at, table


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_bit_in_a_header_costs_no_frame(tmp_path: Path, name: str) -> None:
    """With `errors="skip"`, too, one bit in the header of a segment ended all reading: the header was asked before the option was."""
    path, at, table = header_case(name)
    broken = with_wrong_bit(path, tmp_path / path.parent.name / path.name, at)
    known = rawlog.read(path, table=table).num_rows
    notes: list[str] = []
    rows = rawlog.open(broken).table(table, errors="skip")
    rows.note = notes.append
    assert rows.to_arrow().num_rows == known > 0
    assert any("byte 0: " in note and "skipped" in note for note in notes)
    assert rawlog.open(broken).table(table, errors="skip").count() == known
    assert rawlog.open(broken).table(table, errors="stop").count() == 0
    with pytest.raises(RawlogError):
        rawlog.read(broken, table=table)
    codes = {one.code for one in rawlog.verify(broken) if one.severity == "error"}
    assert f"{rawlog.open(path).files[0].format}.header" in codes


def test_a_header_after_which_nothing_is_credible_ends_its_file_only(tmp_path: Path) -> None:
    for path in golden_path("ambry", "store-small").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with_wrong_bit(tmp_path / "0_0_18_index", tmp_path / "0_0_18_index", 1)
    notes: list[str] = []
    rows = rawlog.open(tmp_path).table("ambry.index", errors="skip")
    rows.note = notes.append
    there = rawlog.read(golden_path("ambry", "store-small"), table="ambry.index").num_rows
    assert 0 < rows.to_arrow().num_rows < there
    assert any("0_0_18_index: byte 0: damaged; nothing is read from there on" in note for note in notes)
