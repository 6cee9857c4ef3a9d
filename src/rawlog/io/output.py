"""Output: the way files and directories get to the user. It refuses to touch a source, checks names, stages, syncs and renames.

A target is first written under a hidden name next to it, its stage, and appears at once, whole, or not at all. The writer holds a lock on
what it stages; the lock ends with its process, so the next writer of the same target can remove what a killed one left. Directories for
temporary files are held, and removed, in the same way. Nothing here knows a format.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from rawlog.io.storage import Source, exists, file_system, is_remote, local_path, split_query
from rawlog.model.errors import AccessError, EncodeError, ExistsError, OptionError

# Stages --------------------------------------------------------------------------------------------------------------------------

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
    """The process that a job ends with: Spark's for a helper that Spark started, else this one."""
    pid = os.getpid()
    for _ in range(8):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return os.getpid()


# ----------------------------------------------------------------------------------------------------------------------
# Whether two places are the same or one lies inside the other: directories, files, globs and URLs, however they are named.


def first_overlapping(target: str, sources: Iterable[str | os.PathLike[str]]) -> str | None:
    """The first source that is, contains or lies inside a target; None if no source does.

    Symbolic links and `..` are resolved, also in parts of the target that do not exist yet; a glob means what it matches.
    """
    finals = set() if is_remote(target) else _resolve(target)
    return next((name for source in sources if _overlaps(target, finals, name := os.fspath(source))), None)


def precious_inside(path: Path) -> str | None:
    """What of the home and the working directory a directory is or contains, in words; None for neither. The root contains both."""
    final = path.resolve()
    for name, precious in (("home", os.path.expanduser("~")), ("working", os.curdir)):
        try:
            place = Path(precious).resolve()
        except OSError:
            continue  # a working directory that was removed
        if final == place or final in place.parents:
            return f"{'is' if final == place else 'contains'} the {name} directory"
    return None


def _overlaps(target: str, finals: Iterable[Path], source: str) -> bool:
    if is_remote(target) or is_remote(source):
        return is_remote(target) and is_remote(source) and _urls_overlap(target, source)
    return any(
        _paths_overlap(final, real) for match in _matches(source) for real in _resolve(match) for final in finals
    )


def _resolve(path: str) -> set[Path]:
    """What a path leads to, and what it leads to if `..` after a symbolic link is taken by the text, as some callers do."""
    local = local_path(path)
    try:
        return {Path(local).resolve(), Path(os.path.abspath(local)).resolve()}
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise AccessError(f"{path}: {error}") from None


def _matches(path: str) -> list[str]:
    local = local_path(path)
    if os.path.lexists(local) or not glob.has_magic(local):
        return [local]
    return glob.glob(local, recursive=True)


def _paths_overlap(target: Path, source: Path) -> bool:
    """Whether one of two resolved paths is or contains the other, by name or, through a second mount, by identity."""
    if target == source or target in source.parents or source in target.parents:
        return True
    source_identity, target_identity = _identity(source), _identity(target)
    above_target = source_identity is not None and any(
        _identity(path) == source_identity for path in (target, *target.parents)
    )
    return above_target or (
        target_identity is not None and any(_identity(path) == target_identity for path in source.parents)
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _urls_overlap(target: str, source: str) -> bool:
    (target_parts, target_at), (source_parts, source_at) = _url_parts(target), _url_parts(source)
    if target_at and source_at and target_at != source_at:
        return False  # buckets of one name at two services
    shared = min(len(target_parts), len(source_parts))
    return target_parts[:shared] == source_parts[:shared]


def _url_parts(url: str) -> tuple[list[str], str]:
    """A URL as the parts of a normal path, without who asks, and the service that it names."""
    base, query = split_query(url)
    scheme, _, rest = base.partition("://")
    host, _, path = rest.partition("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    service = re.search(r"[?&]endpoint_override=([^&]*)", query)
    scheme = {"gcs": "gs", "abfss": "abfs", "s3a": "s3"}.get(scheme.lower(), scheme.lower())
    return [scheme, host.rpartition("@")[2].lower(), *parts], service.group(1) if service is not None else ""


#: The longest name of a file that the usual file systems take, in bytes.
LONGEST_NAME = 255
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

P = TypeVar("P", bound=Any)
PathLike = str | os.PathLike[str]


_ELSEWHERE = "name a target that you can write"
#: What helps if a target cannot be written, by the number of the system's error.
_REMEDIES = {
    errno.ENOSPC: "free space there (`df -h`), or name a target on another disk",
    errno.EDQUOT: "name a target on another disk",
}


def unwritable(named: str, error: OSError) -> AccessError:
    """What the system says of a target, as an error of ours."""
    if isinstance(error, AccessError):
        return error
    return AccessError(f"{named}: {' '.join(str(error.strerror or error).split())}").advise(
        _REMEDIES.get(error.errno or 0, _ELSEWHERE)
    )


# Sources are never touched ---------------------------------------------------------------------------------------------


def refuse_nested(target: PathLike, sources: Iterable[PathLike]) -> None:
    """OptionError if a target is, contains or lies inside one of the places that are read, however they are named."""
    named = os.fspath(target)
    source = first_overlapping(named, sources)
    if source is not None:
        what = "the target and the source {source} are the same or lie inside one another"
        raise OptionError(f"{named}: {what.format(source=source)}").advise(f"name a target outside of {source}")


# Names that come from data ---------------------------------------------------------------------------------------------


def why_unsafe(name: str) -> str | None:
    """Why a name may not be one part of a path; None if it may."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is another directory's name"
    if "/" in name or (os.altsep is not None and os.altsep in name):
        return "it has a path separator in it"
    if "\0" in name:
        return "it has a zero byte in it"
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        return "it is not valid text"
    return f"it has {size} bytes, at most {LONGEST_NAME} are possible" if size > LONGEST_NAME else None


def child(folder: P, name: str) -> P:
    """The path of a name that comes from data, in a directory. EncodeError for one that is no plain name."""
    why = why_unsafe(name)
    if why is not None:
        raise EncodeError(f"{name!r} cannot be the name of a file or directory: {why}")
    path: P = folder / name
    return path


def descendant(folder: P, path: str) -> P:
    """The same for a relative path: each of its parts is checked."""
    for name in path.split("/"):
        folder = child(folder, name)
    return folder


# Where files grow, and temporary files -----------------------------------------------------------------------------------


def refuse_staged(target: str, kind: str, *, resume: bool) -> str:
    """The place next to a target where its parts grow before they are put together; it outlives a killed process. AccessError if an
    earlier one left something there and it is not to be resumed.
    """
    if is_remote(target):
        raise OptionError(f"{target}: a local path expected")
    stage = kept_stage_of(local_path(target), kind)
    if not resume and os.path.isdir(stage) and os.listdir(stage):
        raise AccessError(f"{stage}: left by an interrupted {kind} of {target}").advise(
            f"--resume continues it, or remove it: rm -r {stage}"
        )
    return stage


@contextlib.contextmanager
def scratch(kind: str = "") -> Iterator[str]:
    """A directory for temporary files, gone at the end of the block; those of killed processes are removed as well."""
    held = hold_scratch(kind)
    try:
        yield held.path
    finally:
        held.close()


def hold_scratch(kind: str = "") -> Stage:
    """The same for as long as the process lives, or until `close`. AccessError if there can be none."""
    try:
        return scratch_stage(kind)
    except OSError as error:
        raise unwritable(tempfile.gettempdir(), error) from None


# One target ------------------------------------------------------------------------------------------------------------


class Output:
    """One target, a file or a directory. Use as a context manager: leaving it removes what is still staged.

    Copies that are sent to other processes know the paths, and hold nothing. With `dry_run` nothing is written, by `directory` and
    `additions` either: what fills them is checked and forgotten.
    """

    def __init__(self, target: PathLike, *, overwrite: bool = False, dry_run: bool = False) -> None:
        self.named, self.overwrite, self.dry_run = os.fspath(target), overwrite, dry_run
        self.is_remote = is_remote(self.named)
        self.path = self.named if self.is_remote else os.path.abspath(local_path(self.named))
        self.stage: str | None = None
        self._held: Stage | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refuse(self, sources: Iterable[PathLike]) -> None:
        """OptionError if the target is, contains or lies inside one of these."""
        refuse_nested(self.named, sources)

    def check(self) -> None:
        """AccessError if something is in the way, OptionError if it is a directory that nobody wants to lose."""
        if self.is_remote:
            return
        final = Path(self.path)
        if final.is_dir():
            if not self.overwrite and any(final.iterdir()):
                raise ExistsError(f"{self.named}: exists already and is not empty")
            if precious := precious_inside(final):
                raise OptionError(f"{final}: {precious}, which is not replaced").advise("name a new directory")

    def check_directory(self) -> None:
        """The same for a target that is to be a directory: a file is in the way too."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ExistsError(f"{self.named}: exists already and is not a directory")
        self.check()

    def open(self) -> str:
        """The stage: a new directory next to the target. AccessError if there can be none."""
        if self.stage is None and self.is_remote:
            self.stage = _beside(self.path)
        elif self.stage is None:
            try:
                self._held = stage_of(self.path)
            except OSError as error:
                raise self.unwritable(error) from None
            self.stage = self._held.path
        return self.stage

    def reopen(self, *, resume: bool) -> str:
        """Open a stage whose name stays. With `resume` it keeps the files of a killed run; without, they are removed.

        `leave` closes it and keeps its files. AccessError if another process writes the same target.
        """
        try:
            self._held = lasting_stage_of(self.path)
            self.stage = self._held.path
            for entry in os.scandir(self.stage):
                if entry.name == NEW or (entry.name != LOCK and not resume):
                    Folder(self.stage).remove(entry.name)
        except OSError as error:
            raise self.unwritable(error) from None
        return self.stage

    def leave(self) -> None:
        """End a stage and keep what is in it."""
        if self._held is not None:
            self._held.release()
        self._held = self.stage = None

    def hand_over(self) -> str:
        """The stage, kept as long as the whole job lives: one process of it begins, others fill it, and another one ends. The last
        one removes it with `remove_stage`.
        """
        try:
            held = stage_of(self.path, of_job=True)
        except OSError as error:
            raise self.unwritable(error) from None
        held.release()
        return held.path

    def new(self) -> Path:
        """A new directory in the stage."""
        folder = Path(self.open()) / NEW
        folder.mkdir()
        return folder

    def put(self, staged: PathLike) -> None:
        """Give a file or directory, which is whole, the target's name. AccessError if something is in the way."""
        self.check()
        self._replace(Path(staged), Path(self.path), REPLACED)

    def add(self, staged: PathLike, *, merged: Collection[str] = ()) -> None:
        """Put what is in a directory into the target, which may exist: all of it, or nothing if one name is taken.

        `merged` are files that replace those of the target, after everything else: the caller has put the content of both into them.
        """
        folder, final = Path(staged), Path(self.path)
        if not os.path.lexists(final):
            self._replace(folder, final, REPLACED)
            return
        if not final.is_dir():
            raise ExistsError(f"{self.named}: exists already and is not a directory")
        names = sorted((entry.name for entry in folder.iterdir()), key=lambda name: (name in merged, name))
        for name in names:
            if name not in merged:
                self.refuse_existing(name)
        for name in names:
            self._replace(folder / name, final / name, f"{REPLACED_IN}/{name}")

    def refuse_existing(self, name: str) -> None:
        """AccessError if a name in the target is taken, by more than an empty directory, and may not be replaced."""
        path = Path(self.path) / name
        if os.path.lexists(path) and not self.overwrite and not (path.is_dir() and not any(path.iterdir())):
            raise ExistsError(f"{path}: exists already")

    def _replace(self, staged: Path, final: Path, old: str) -> None:
        try:
            if not is_staged(final):  # what is staged is synced once, when it leaves
                _sync_tree(staged)
            if os.path.lexists(final) and final.is_dir() != staged.is_dir():
                kind = "directory" if final.is_dir() else "file"
                raise ExistsError(f"{final}: a {kind} already")
            if staged.is_dir():
                self._rename_directory(staged, final, old)
            else:
                os.replace(staged, final)
            sync(final.parent)
        except OSError as error:
            raise self.unwritable(error) from None

    def _rename_directory(self, staged: Path, final: Path, old: str) -> None:
        try:
            os.rename(staged, final)  # nothing is there, or an empty directory
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if not self.overwrite:
            raise ExistsError(f"{final}: exists already and is not empty")
        if _exchange(staged, final):
            return  # what was there before is in the stage now, and goes with it
        aside = Path(self.open()) / old
        aside.parent.mkdir(exist_ok=True)
        os.rename(final, aside)
        try:
            os.rename(staged, final)
        except OSError:
            os.rename(aside, final)
            raise

    @contextlib.contextmanager
    def directory(self) -> Iterator[Folder]:
        """A directory to fill that becomes the target when the block ends well. AccessError if something is in the way."""
        self.check_directory()
        with self._filled() as folder:
            yield folder
        if not self.dry_run:
            self.put(folder.path)

    @contextlib.contextmanager
    def additions(self) -> Iterator[Folder]:
        """A directory to fill, whose content is added to the target when the block ends well: all of it or, if a name is taken, nothing."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ExistsError(f"{self.named}: exists already and is not a directory")
        with self._filled() as folder:
            yield folder
        if not self.dry_run:
            self.add(folder.path)

    @contextlib.contextmanager
    def growing(self, *, resume: bool = False) -> Iterator[Folder]:
        """The target itself, a directory that is filled in place, for what has no end of its own: a recording. Whoever writes it sees to
        it that its files are valid at every moment. With `resume` it may have content already.

        AccessError if something is in the way, or another process writes it.
        """
        if self.is_remote:
            raise OptionError(f"{self.named}: a local directory expected")
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise ExistsError(f"{self.named}: exists already and is not a directory")
        folder = Folder(self.path, named=self.named).make()
        with locked(self.path, self.named):
            if not resume and any(Path(self.path).iterdir()):
                raise ExistsError(f"{self.named}: exists already and is not empty")
            try:
                yield folder
            except OSError as error:
                raise self.unwritable(error) from None

    @contextlib.contextmanager
    def growing_file(self, *, resume: bool = False) -> Iterator[FileIO]:
        """The same for a file: opened to write and to seek in, at its start. It has no buffer: what was written is there."""
        if self.is_remote:
            raise OptionError(f"{self.named}: a local file expected")
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            if not resume and os.path.lexists(self.path):
                raise ExistsError(f"{self.named}: exists already")
            mode = "r+" if os.path.exists(self.path) else "x"
            with FileIO(self.path, mode) as file, locked(self.path, self.named):
                yield file
        except OSError as error:
            raise self.unwritable(error) from None

    @contextlib.contextmanager
    def _filled(self) -> Iterator[Folder]:
        try:
            yield Folder(self.path if self.dry_run else self.new(), named=self.named, dry_run=self.dry_run)
        except OSError as error:
            raise self.unwritable(error) from None

    def unwritable(self, error: OSError) -> AccessError:
        """What the system says, as an error that names the target."""
        return unwritable(self.named, error)

    def close(self) -> None:
        """Remove the stage and what is in it. Best effort."""
        if self._held is not None:
            self._held.close()
        elif self.stage is not None and self.is_remote:
            _remove_tree(self.stage)
        self._held = self.stage = None


def _beside(path: str) -> str:
    """A new name next to a target, for a stage in an object store, which has no locks."""
    base, query = split_query(path)
    parent, _, name = base.rstrip("/").rpartition("/")
    return f"{parent}/.{name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp{query}"


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False if this system cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(swap(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _sync_tree(path: Path) -> None:
    """Make a file, or a directory and all in it, last."""
    if not path.is_dir():
        sync(path)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            sync(Path(folder) / name)
        sync(Path(folder))


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What a target is filled with --------------------------------------------------------------------------------------------


class Folder:
    """A directory that is being written, below a stage. Every name is checked, whether it comes from data or not.

    With `dry_run` nothing is written: files take what they are given and forget it. Errors of the system are AccessErrors that name
    the target (`named`), not the stage.
    """

    def __init__(self, path: PathLike, *, named: str | None = None, dry_run: bool = False) -> None:
        self.path, self.dry_run = Path(path), dry_run
        self.named = os.fspath(path) if named is None else named

    def make(self) -> Self:
        """Create the directory itself, if need be."""
        if not self.dry_run:
            with self._explain_errors(""):
                self.path.mkdir(parents=True, exist_ok=True)
        return self

    def folder(self, path: str) -> Folder:
        """A directory below this one, made if need be; `path` may have several parts."""
        inner = descendant(self.path, path)
        if not self.dry_run:
            with self._explain_errors(path):
                self._make_below(inner)
        return Folder(inner, named=f"{self.named}/{path}", dry_run=self.dry_run)

    def create(self, path: str) -> IO[bytes]:
        """A new file to write and to seek in. AccessError if it exists already."""
        inner = descendant(self.path, path)
        with self._explain_errors(path):
            if self.dry_run:
                return open(os.devnull, "wb")
            self._make_below(inner.parent)
            return inner.open("xb")

    def change(self, path: str) -> IO[bytes]:
        """A file that was written here and closed, opened again to read, write and seek in. In a dry run it is empty."""
        inner = descendant(self.path, path)
        with self._explain_errors(path):
            return open(os.devnull if self.dry_run else inner, "r+b")

    def write(self, path: str, data: bytes | memoryview | str) -> None:
        """A new file with this content; text is written as UTF-8."""
        with self.create(path) as file, self._explain_errors(path):
            file.write(data.encode() if isinstance(data, str) else data)

    def copy(self, source: str, path: str, size: int | None = None) -> int:
        """A new file with the bytes of a source, or the first `size` of them; how many they are."""
        done = 0
        with Source(source) as reading, self.create(path) as file, self._explain_errors(path):
            left = reading.size if size is None else min(size, reading.size)
            while done < left and (piece := reading.read(done, min(8 << 20, left - done))):
                file.write(piece)
                done += len(piece)
        return done

    def take(self, staged: PathLike, path: str) -> None:
        """Move in a file or directory that was written elsewhere in the same stage."""
        if not self.dry_run:
            inner = descendant(self.path, path)
            with self._explain_errors(path):
                self._make_below(inner.parent)
                os.rename(staged, inner)

    def remove(self, path: str) -> None:
        """Remove a file or directory that was written here."""
        inner = descendant(self.path, path)
        if self.dry_run:
            return
        with self._explain_errors(path):
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner)
            else:
                inner.unlink(missing_ok=True)

    def _make_below(self, inner: Path) -> None:
        """Make this directory and those on the way to one below it. What is above is not made: a task that outlives its job shall not bring
        back a stage that was removed.
        """
        way = [inner]
        while way[-1] != self.path:
            way.append(way[-1].parent)
        for folder in reversed(way):
            folder.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def _explain_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(f"{self.named}/{path}" if path else self.named, error) from None


def make_directory(path: str) -> None:
    """Create a directory and those above it, where they do not exist. AccessError if that fails."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise AccessError(f"{path}: {' '.join(str(error.strerror or error).split())}") from None


def _remove_tree(path: str) -> None:
    """Remove a directory of an object store and all below it. Best effort."""
    with contextlib.suppress(OSError, ValueError, AccessError):
        system, inner = file_system(path)
        system.delete_dir(inner)


# Single files that appear under their names at once, whole, or not at all.


@contextlib.contextmanager
def writing(path: PathLike, *, overwrite: bool = False, sources: Iterable[PathLike] = ()) -> Iterator[IO[bytes]]:
    """A file to write that appears under `path` only when the block ends well.

    AccessError if it exists already, unless `overwrite` says to replace it; OptionError if a source would be touched.
    """
    named = os.fspath(path)
    refuse_nested(named, sources)
    if not overwrite and exists(named):
        raise ExistsError(f"{named}: exists already")
    if is_remote(named):
        yield from _writing_remote(named)
        return
    target = os.path.abspath(local_path(named))
    temporary = None
    try:
        temporary, descriptor = staged_file_of(target)
        with os.fdopen(descriptor, "wb") as file:  # the lock on it ends when it is closed: after it has its name
            yield file
            file.flush()
            os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
            os.replace(temporary, target)
        sync(Path(target).parent)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise unwritable(named, error) from None
        raise


def _writing_remote(path: str) -> Iterator[IO[bytes]]:
    system, inner = file_system(path)
    temporary = f"{inner}.{os.getpid()}.tmp"
    try:
        with system.open_output_stream(temporary) as file:
            yield file
        system.move(temporary, inner)
    except BaseException as error:
        with contextlib.suppress(OSError):
            system.delete_file(temporary)
        if isinstance(error, OSError):
            raise unwritable(path, error) from None
        raise


def move(path: str, target: str, *, overwrite: bool = False) -> None:
    """Give a file, which is whole, its name in the same file system. AccessError if something of that name exists already."""
    if not overwrite and exists(target):
        raise ExistsError(f"{target}: exists already")
    try:
        if is_remote(target):
            system, inner = file_system(target)
            system.move(file_system(path)[1], inner)
            return
        final = local_path(target)
        os.makedirs(os.path.dirname(os.path.abspath(final)), exist_ok=True)
        sync(Path(local_path(path)))
        os.replace(local_path(path), final)
    except OSError as error:
        raise unwritable(target, error) from None
