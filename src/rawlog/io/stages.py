"""Stages: hidden directories and files next to a target, where it is written before it gets its name.

The writer holds a lock on what it stages; the lock ends with its process, so the next writer of the same target can remove what a
killed one left. Directories for temporary files are held, and removed, in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rawlog.model.errors import AccessError

#: Longer names of targets are shortened in the names of their stages.
LONGEST_STAGED = 180
LOCK, NEW, REPLACED, REPLACED_IN = ".lock", "new", "replaced", "replaced-in"
#: In the name of a stage that can be resumed.
RESUMED = "00000000"
_MARK = re.compile(r"[0-9a-f]{8}\.rawlog(\.gone)?")
_GONE = re.compile(r"[0-9a-f]{8}\.rawlog\.gone")
_STAGE = re.compile(r"\.[0-9a-f]{8}\.rawlog$")
_SCRATCH = re.compile(r"rawlog-([a-z]+-)?[0-9a-f]{8}(\.gone)?")


class Stage:
    """A directory that is locked as long as the process has it, and removed when it is closed."""

    def __init__(self, path: str, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls, before: str, after: str = "", *, owner: str = "", mode: int = 0o777) -> Self:
        """A new one, whose path begins and ends with these. With an `owner` it stays while that process lives: what a job's processes pass
        on to one another is the job's.
        """
        while True:
            path = f"{before}{uuid.uuid4().hex[:8]}{after}"
            os.mkdir(path, mode)
            try:
                lock = _new_file(os.path.join(path, LOCK))
            except FileNotFoundError:
                continue  # somebody took it for an empty leftover
            os.write(lock, owner.encode())
            if _is_ours(lock):
                return cls(path, lock)

    def release(self) -> None:
        """Let go of it without removing it."""
        os.close(self._lock)

    def close(self) -> None:
        """Remove it with what is in it."""
        remove_stage(self.path)
        os.close(self._lock)


def stage_of(target: str, *, of_job: bool = False) -> Stage:
    """A new stage of a local target; what killed writers of the same target left is removed, or put back.

    With `of_job` it belongs to the process that the whole job lives and dies with.
    """
    before = _clear(target, _MARK, Path(target))
    return Stage.create(before, ".rawlog", owner=_owner(_job_process()) if of_job else "")


def lasting_stage_of(target: str) -> Stage:
    """The stage of a target under a name that stays, with what an earlier process left in it. AccessError if a living process has it."""
    path = f"{_clear(target, _GONE, Path(target))}{RESUMED}.rawlog"
    if os.path.islink(path):
        raise AccessError(f"{path}: a symbolic link; remove it")
    os.makedirs(path, exist_ok=True)
    lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _take_lock(lock):
        os.close(lock)
        raise AccessError(f"{path}: another process is writing there")
    _put_back(path, Path(target))
    return Stage(path, lock)


def staged_file_of(target: str) -> tuple[str, int]:
    """A new, locked file next to a target, opened; what killed writers of the same target left is removed."""
    before = _clear(target, _MARK)
    while True:
        path = f"{before}{uuid.uuid4().hex[:8]}.rawlog"
        descriptor = _new_file(path)
        if _is_ours(descriptor):
            return path, descriptor


def kept_stage_of(target: str, kind: str) -> str:
    """The name of a place next to a local target where its parts grow before they are put together; it outlives a killed process."""
    return f"{_beginning(os.path.abspath(target))}{kind}"


def scratch_stage(kind: str = "") -> Stage:
    """A directory for temporary files, for as long as the process lives, or until `close`; those of killed processes are removed."""
    parent = tempfile.gettempdir()
    _sweep(parent, "", _SCRATCH)
    return Stage.create(os.path.join(parent, f"rawlog-{kind}"), mode=0o700)


def is_staged(path: Path) -> bool:
    """Whether a path is inside a stage."""
    return any(_STAGE.search(folder.name) for folder in path.parents)


def remove_stage(path: str) -> None:
    """Remove a stage that is this process's own; its lock goes last, so that a killed removal is taken up by the next one.

    It gets another name first: whoever still writes below it finds nothing to write to.
    """
    gone = path if path.endswith(".gone") else f"{path}.gone"
    with contextlib.suppress(OSError):
        os.rename(path, gone)
    if os.path.islink(gone):
        return
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(gone)):
            if entry.name == LOCK:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(gone, LOCK))
    with contextlib.suppress(OSError):
        os.rmdir(gone)


@contextlib.contextmanager
def locked(path: str, named: str) -> Iterator[None]:
    """Hold the lock of a file or directory that is written in place. AccessError if another process has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _take_lock(descriptor):
            raise AccessError(f"{named}: another process is writing it")
        yield
    finally:
        os.close(descriptor)


# What killed writers left ------------------------------------------------------------------------------------------------


def _clear(target: str, pattern: re.Pattern[str], final: Path | None = None) -> str:
    """What the paths of a target's stages begin with, in a directory that exists and where killed writers left nothing."""
    before = _beginning(target)
    parent, name = os.path.split(before)
    os.makedirs(parent, exist_ok=True)
    _sweep(parent, name, pattern, final)
    return before


def _beginning(target: str) -> str:
    parent, name = os.path.split(target)
    raw = os.fsencode(name)
    if len(raw) > LONGEST_STAGED:
        name = os.fsdecode(raw[: LONGEST_STAGED - 20]) + "~" + hashlib.blake2b(raw, digest_size=8).hexdigest()
    return os.path.join(parent, f".{name}.")


def _sweep(parent: str, before: str, pattern: re.Pattern[str], final: Path | None = None) -> None:
    """Remove what killed writers left: stages with these names that no living process has locked."""
    try:
        names = [
            name for name in os.listdir(parent) if name.startswith(before) and pattern.fullmatch(name[len(before) :])
        ]
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        if os.path.islink(path):
            continue
        is_folder = os.path.isdir(path)
        lock = _is_dead(os.path.join(path, LOCK) if is_folder else path)
        if lock is None:
            if is_folder:
                with contextlib.suppress(OSError):
                    os.rmdir(path)  # nothing in it, not even a lock: its writer was killed at once, or makes another
            continue
        try:
            if not is_folder:
                os.unlink(path)
                continue
            if final is not None:
                _put_back(path, final)
            remove_stage(path)
        except OSError:
            pass
        finally:
            os.close(lock)


def _put_back(stage: str, final: Path) -> None:
    """Undo a replacement that was killed between its two renames: what was there before is there again."""
    old = Path(stage) / REPLACED
    if old.exists() and not os.path.lexists(final):
        os.rename(old, final)
    folder = Path(stage) / REPLACED_IN
    for replaced in folder.iterdir() if folder.is_dir() else ():
        if final.is_dir() and not os.path.lexists(final / replaced.name):
            os.rename(replaced, final / replaced.name)


# Locks and their processes -----------------------------------------------------------------------------------------------


def _new_file(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _is_ours(descriptor: int) -> bool:
    """Lock a file that this process just made. False, and it is closed, if somebody took it for a leftover."""
    if _take_lock(descriptor) and os.fstat(descriptor).st_nlink:
        return True
    os.close(descriptor)
    return False


def _take_lock(descriptor: int) -> bool:
    """Lock a file that this process made; False if somebody else has the lock. A file system without locks keeps leftovers."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_dead(path: str) -> int | None:
    """The lock of a stage whose writer is gone, taken over; None if it lives, or if that cannot be known."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = os.stat(path, follow_symlinks=False)
        is_same = os.path.samestat(now, os.fstat(descriptor)) and now.st_uid == os.getuid()
        if is_same and not _may_live(os.pread(descriptor, 200, 0).decode("ascii", "replace")):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _owner(pid: int) -> str:
    """A process as no other ever is: the boot of the machine, the namespace of the number, the number, when it began."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {pid} {_began(pid)}"
    except OSError:
        return "unknown"


def _began(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _may_live(owner: str) -> bool:
    """Whether a process may still live that a stage belongs to, if it has such an owner."""
    if not owner:
        return False
    parts, this_process = owner.split(), _owner(os.getpid()).split()
    if len(parts) != 4 or parts[:2] != this_process[:2] or not parts[2].isdecimal():
        return True  # of another machine, or of no process that could be asked about
    try:
        return _began(int(parts[2])) == parts[3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _job_process() -> int:
    """The process that a job lives and dies with: Spark's, where this is one of the helpers that it starts, else this one."""
    pid = os.getpid()
    for _ in range(8):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return os.getpid()


__all__ = [
    "LOCK",
    "NEW",
    "REPLACED",
    "REPLACED_IN",
    "Stage",
    "is_staged",
    "kept_stage_of",
    "lasting_stage_of",
    "locked",
    "remove_stage",
    "scratch_stage",
    "stage_of",
    "staged_file_of",
]
