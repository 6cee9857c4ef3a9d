"""Storage: ranges read, trees listed, files that appear only when they are whole. Local and on an S3 server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.io.output import writing
from rawlog.io.storage import (
    Source,
    exists,
    is_remote,
    listing,
    local_path,
)
from rawlog.model.errors import AccessError
from rawlog.testing.formats import shared
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

DATA = bytes(range(256)) * 3


@pytest.fixture(params=["local", "file URL", "s3", "s3 by environment"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Paths below an empty directory, local or in a bucket."""
    if request.param == "local":
        return lambda name: str(tmp_path / name)
    if request.param == "file URL":
        return lambda name: f"file://{tmp_path / name}"
    s3: S3Server = request.getfixturevalue("s3")
    bucket = f"b{abs(hash(request.node.name)) % 10**12}"
    s3.filesystem().create_dir(bucket)
    if request.param == "s3":
        return lambda name: s3.url(f"{bucket}/{name}")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket_of_environment = f"{bucket}e"
    s3.filesystem().create_dir(bucket_of_environment)
    return lambda name: f"s3://{bucket_of_environment}/{name}"


def put(path: str, data: bytes = DATA) -> str:
    with writing(path) as file:
        file.write(data)
    return path


def test_what_is_written_is_read(place: Callable[[str], str]) -> None:
    path = put(place("a/b.log"))
    assert exists(path)
    with Source(path) as source:
        assert source.size == len(DATA)
        assert source.read(0, 10**12) == DATA
        assert source.read(255, 2) == b"\xff\x00"
        assert source.read(len(DATA) - 1, 99) == b"\xff"
        assert source.read(len(DATA), 5) == source.read(len(DATA) + 99, 5) == source.read(3, -1) == b""
        target = bytearray(1000)
        assert source.read_into(700, memoryview(target)) == len(DATA) - 700
        assert target[: len(DATA) - 700] == DATA[700:]
        assert source.refresh() == len(DATA)


def test_a_listing_is_sorted_and_goes_all_the_way_down(place: Callable[[str], str]) -> None:
    for name in ("z.log", "d/2.log", "d/1.log", "d/e/3.log"):
        put(place(name), name.encode())
    found = list(listing(place("")))
    assert sorted(entry.size for entry in found) == [5, 7, 7, 9]
    assert [entry.path for entry in listing(place("d"))] == sorted(entry.path for entry in listing(place("d")))
    assert all(entry.modified and entry.problem is None for entry in found)
    for entry in found:
        with Source(entry.path) as source:
            assert source.read(0, 99).decode() in entry.path
    assert len(list(listing(place("d")))) == 3
    [one] = listing(place("d/e/3.log"))
    assert one.size == 9


def test_globs_are_expanded(place: Callable[[str], str]) -> None:
    if "?" in place("x"):
        return  # a URL with a query
    for name in ("a1.log", "a2.log", "b.log", "d/a3.log"):
        put(place(name))
    assert len(list(listing(place("a*.log")))) == 2
    assert len(list(listing(place("a[2-9].log")))) == 1
    assert len(list(listing(place("*/a*.log")))) == 1
    assert len(list(listing(place("**/*.log")))) >= 1
    with pytest.raises(AccessError, match="no such file"):
        list(listing(place("nothing*")))


def test_what_is_missing_is_an_access_error_with_the_path(place: Callable[[str], str]) -> None:
    put(place("there"))
    path = place("not/there")
    assert not exists(path)
    for act in (lambda: Source(path), lambda: list(listing(path)), lambda: rawlog.read(path)):
        with pytest.raises(AccessError) as caught:
            act()
        assert path in str(caught.value)


def test_an_existing_file_is_not_overwritten(place: Callable[[str], str]) -> None:
    path = put(place("x"), b"old")
    with pytest.raises(AccessError, match="exists already"):
        put(path, b"new")
    with Source(path) as source:
        assert source.read(0, 9) == b"old"
    with writing(path, overwrite=True) as file:
        file.write(b"new")
    with Source(path) as source:
        assert source.read(0, 9) == b"new"


@pytest.mark.parametrize("error", [KeyError("x"), OSError(28, "No space left on device"), AccessError("gone")])
def test_a_failure_leaves_nothing_behind(place: Callable[[str], str], error: Exception) -> None:
    put(place("other"))
    with pytest.raises(AccessError if isinstance(error, OSError) else KeyError), writing(place("x")) as file:
        file.write(b"half")
        raise error
    assert len(list(listing(place("")))) == 1
    assert not exists(place("x"))


def test_a_file_is_not_there_before_it_is_whole(place: Callable[[str], str]) -> None:
    with writing(place("x")) as file:
        file.write(b"half")
        assert not exists(place("x"))
    assert exists(place("x"))


def test_golden_files_read_alike_from_everywhere(place: Callable[[str], str]) -> None:
    local = golden_path("replay", "v2", "basic.log")
    path = put(place("rec.log"), local.read_bytes())
    assert rawlog.read(path).equals(rawlog.read(local))
    assert rawlog.verify(path).verdict == "clean"
    assert rawlog.read(path, table="replay.entries", columns=["path"], limit=1).column(0).to_pylist() == [
        local_path(path) if path.startswith("file:") else path
    ]
    copy = place("copy.log")
    rawlog.write(copy, rawlog.open(path).table("records"), format="replay")
    with Source(copy) as source:
        assert source.read(0, 1 << 20) == local.read_bytes()
    cut = put(place("cut.log"), local.read_bytes()[:-1])
    assert rawlog.read(cut).num_rows == 69


# ------------------------------------------------------------------ local files only


@shared
@given(st.binary(max_size=100), st.integers(0, 120), st.integers(0, 120))
def test_ranges_are_those_of_the_bytes(tmp_path: Path, data: bytes, start: int, size: int) -> None:
    (tmp_path / "x").write_bytes(data)
    with Source(str(tmp_path / "x")) as source:
        assert source.read(start, size) == data[start : start + size]


def test_a_growing_file_is_seen_to_grow(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    with Source(str(path)) as source:
        with path.open("ab") as more:
            more.write(b"two")
        assert source.size == 3
        assert source.refresh() == 6
        assert source.read(3, 3) == b"two"


def test_a_file_that_becomes_a_pipe_after_the_first_look_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is looked at before it is opened; a pipe that takes it in between is opened without waiting, and refused."""
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    before = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "stat", lambda *_, **__: before)
    with pytest.raises(AccessError, match="is a named pipe, not a regular file"):
        Source(str(tmp_path / "pipe"))


def test_a_directory_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="is a directory"):
        Source(str(tmp_path))


def problems(path: Path) -> dict[str, str | None]:
    return {Path(entry.path).name: entry.problem for entry in listing(str(path))}


def test_dangling_links_pipes_and_sockets_are_listed_with_their_problem(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    os.mkfifo(tmp_path / "pipe")
    assert problems(tmp_path) == {
        "dangling": "dangling symbolic link",
        "loop": "dangling symbolic link",
        "good": None,
        "link": None,
        "pipe": "is a named pipe, not a regular file",
    }


def test_a_directory_that_links_to_itself_is_walked_once(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"x")
    (tmp_path / "d" / "again").symlink_to(tmp_path / "d", target_is_directory=True)
    assert "x" in problems(tmp_path)
    assert len([entry for entry in listing(str(tmp_path)) if entry.path.endswith("/x")]) == 1


def test_files_that_may_not_be_read_are_listed_with_their_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert problems(tmp_path) == {"x": "permission denied"}


def test_a_directory_that_may_not_be_read_is_listed_with_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "x").write_bytes(b"x")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert problems(tmp_path) == {"x": None, "closed": "permission denied"}


def test_reading_that_fails_names_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(DATA)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with Source(str(path)) as source:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(AccessError, match="byte 100: Input/output error"):
            source.read(100, 5)


def test_a_name_with_glob_marks_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].log").write_bytes(b"x")
    (tmp_path / "a1.log").write_bytes(b"xx")
    assert [entry.size for entry in listing(str(tmp_path / "a[1].log"))] == [1]


def test_urls_of_unknown_kinds_are_refused(tmp_path: Path) -> None:
    for url in ("nonsense://bucket/x", "http://127.0.0.1/x", "s3://", "://", "s3://bucket\0/x", "s3://@/x"):
        assert is_remote(url)
        for act in (lambda url=url: Source(url), lambda url=url: list(listing(url)), lambda url=url: put(url)):
            with pytest.raises(AccessError):
                act()


def test_names_that_cannot_be_are_access_errors() -> None:
    for name in ("a\0b", "x" * 5000, ""):
        for act in (
            lambda name=name: Source(name),
            lambda name=name: list(listing(name)),
            lambda name=name: rawlog.read(name),
        ):
            with pytest.raises(AccessError):
                act()


def test_a_directory_in_the_way_is_an_access_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(AccessError):
        put(str(tmp_path / "file" / "below"))
    with pytest.raises(AccessError), writing(str(tmp_path), overwrite=True) as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert list(tmp_path.parent.glob(f".{tmp_path.name}*")) == []


def test_a_written_file_has_the_rights_that_others_have(tmp_path: Path) -> None:
    put(str(tmp_path / "x"))
    (tmp_path / "y").write_bytes(b"y")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode
