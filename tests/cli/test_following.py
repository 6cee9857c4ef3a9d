"""`tail -f`: every row once, as files grow, roll and are replaced."""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from rawlog import registry
from rawlog.reading.follow import Following, last_rows
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from tests.cli.conftest import COMMAND, HEADER, entry, recording
from tests.data.golden import golden_path

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")


def follower(path: Path, **changes: object) -> Following:
    notes: list[str] = []
    made = Following([str(path)], registry.table_named("records"), Selection(**changes), note=notes.append)
    made.notes = notes  # type: ignore[attr-defined]
    return made


def values(made: Following) -> list[bytes]:
    return [value for batch in made.poll() for value in batch.column("value").to_pylist()]


def offsets(made: Following) -> list[int]:
    return [value for batch in made.poll() for value in batch.column("offset").to_pylist()]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_growing_file_byte_by_byte(tmp_path):
    path = tmp_path / "r.log"
    made = follower(path.parent)
    seen: list[bytes] = []
    for byte in recording(b"one", b"two", b""):
        append(path, bytes([byte]))
        seen += values(made)
    assert seen == [b"one", b"two", b""]
    assert values(made) == []


def test_begins_at_the_present_end(log):
    made = follower(log)
    made.skip(open_tree(str(log)))
    assert values(made) == []
    append(log, entry(b"five"))
    (batch,) = made.poll()
    assert batch.column("value").to_pylist() == [b"five"]
    assert batch.column("offset").to_pylist() == [5]


def test_an_unfinished_entry_is_waited_for(log):
    made = follower(log)
    append(log, entry(b"five")[:-1])
    assert values(made) == [b"zero", b"one", b"two", b"three", b"four"]
    assert values(made) == []
    append(log, b"e" + entry(b"six"))
    assert values(made) == [b"five", b"six"]


def test_rolling_segments_in_a_growing_directory(tmp_path):
    target = tmp_path / "segments-by-size-0"
    target.mkdir()
    made = follower(tmp_path)
    seen: list[int] = []
    segments = sorted(SEGMENTS.glob("*.log"))
    assert len(segments) > 2
    for segment in segments:
        data = segment.read_bytes()
        for start in range(0, len(data), 700):
            append(target / segment.name, data[start : start + 700])
            seen += offsets(made)
    assert seen == _all(SEGMENTS)
    assert len(set(seen)) == len(seen)


def _all(path: Path) -> list[int]:
    import rawlog

    return rawlog.read(path, columns=["offset"]).column("offset").to_pylist()


def test_old_segments_are_not_shown_again(tmp_path):
    target = tmp_path / "segments-by-size-0"
    shutil.copytree(SEGMENTS, target)
    made = follower(tmp_path)
    made.skip(open_tree(str(tmp_path)))
    assert offsets(made) == []
    for path in target.glob("*.log"):
        path.touch()
    assert offsets(made) == []


def test_a_recording_begun_again_is_read_from_its_beginning(log):
    made = follower(log)
    values(made)
    log.write_bytes(recording(b"new"))
    assert values(made) == [b"new"]
    assert "became smaller" in made.notes[0]  # type: ignore[attr-defined]


def test_a_replaced_file_is_read_from_its_beginning(log):
    made = follower(log)
    values(made)
    log.rename(log.with_suffix(".old"))
    log.write_bytes(recording(b"a", b"b", b"c", b"d", b"e", b"f", b"gggggggggggggggggggggggg"))
    assert values(made)[-1] == b"gggggggggggggggggggggggg"
    assert "was replaced" in made.notes[0]  # type: ignore[attr-defined]


def test_a_log_cut_back_shows_only_what_comes(tmp_path):
    target = tmp_path / "segments-by-size-0"
    target.mkdir()
    source = min(SEGMENTS.glob("*.log")).read_bytes()
    path = target / "00000000000000000000.log"
    path.write_bytes(source)
    made = follower(tmp_path)
    first = offsets(made)
    sizes = [int.from_bytes(source[8:12], "big") + 12]
    path.write_bytes(source[: sizes[0]])
    assert offsets(made) == []
    append(path, source[sizes[0] :])
    again = offsets(made)
    assert again
    assert again == first[-len(again) :]


def test_selections_hold_while_following(log):
    made = follower(log, where="length(value) = 3")
    assert values(made) == [b"one", b"two"]
    append(log, entry(b"five") + entry(b"six"))
    assert values(made) == [b"six"]


class Tail:
    """A real `tail -f`, with its lines as they come."""

    def __init__(self, environment: dict[str, str], *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "tail", "-f", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)

    def end(self) -> tuple[int, bytes]:
        """Interrupt it; its exit code and what it said."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._thread.join(60)
        with self.process.stdout, self.process.stderr:
            return code, self.process.stderr.read()

    def next(self) -> dict[str, object]:
        return json.loads(self.lines.get(timeout=120))


def test_a_real_tail_f_until_interrupted(environment, log):
    tail = Tail(environment, log.parent, "-n", 1, "--json")
    assert tail.next()["value"] == "four"
    append(log, entry(b"five"))
    assert tail.next()["value"] == "five"
    (log.parent / "second.log").write_bytes(recording(b"new file"))
    assert tail.next()["value"] == "new file"
    append(log, entry(b"six"))
    assert tail.next()["value"] == "six"
    assert tail.end() == (0, b"")
    assert tail.lines.empty()


def test_tail_f_ends_when_nobody_reads(environment, log):
    process = subprocess.Popen(
        [*COMMAND, "tail", "-f", str(log), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_tail_f_with_a_limit(run, log):
    assert run("tail", "-f", "-n", 3, "--limit", 2, log, "--raw").text == "two\nthree\n"


@pytest.mark.parametrize("form", ["--json", "--csv", "--raw"])
def test_tail_f_waits_for_a_file_in_an_empty_directory(run, tmp_path, form, monkeypatch):
    def pause(seconds):
        (tmp_path / "r.log").write_bytes(HEADER + entry(b"first"))

    monkeypatch.setattr("rawlog.cli.printers.rows._pause", pause)
    ran = run("tail", "-f", tmp_path, "--limit", 1, form)
    assert (ran.code, ran.err) == (0, "")
    assert b"first" in ran.out


@pytest.mark.parametrize("grown", ["the same segment", "a new segment"])
def test_what_is_written_between_the_last_rows_and_the_first_look_is_shown_once(tmp_path, grown):
    """`tail -f -n 5` of a live log printed offsets 3343 to 3347 and then went on from 3072: the end was taken before the rows."""
    target = tmp_path / "segments-by-size-0"
    target.mkdir()
    first, second, *_ = sorted(SEGMENTS.glob("*.log"))
    data = first.read_bytes()
    half = _middle(first)
    append(target / first.name, data[:half])
    tree = open_tree(str(tmp_path))
    made = follower(tmp_path)
    ends = made.skip(tree)
    append(target / first.name, data[half:])
    if grown == "a new segment":
        append(target / second.name, second.read_bytes())
    rows = Rows(tree, "records", Selection())
    seen = [offset for batch in last_rows(rows, 5, ends) for offset in batch.column("offset").to_pylist()]
    assert len(seen) == 5
    seen += offsets(made)
    assert seen == list(range(seen[0], seen[-1] + 1))
    every = _all(target)
    assert seen == every[every.index(seen[0]) :]


def _middle(segment: Path) -> int:
    import rawlog

    positions = rawlog.read(segment, table="kafka.batches", columns=["position"]).column("position").to_pylist()
    assert len(positions) > 2
    return positions[len(positions) // 2]
