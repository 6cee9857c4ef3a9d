"""Hard delete of chosen blobs in a copy of a store: their user metadata and content become zeros in place (§7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rawlog.core import report as core
from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.store.rebuild import Report, copy_file, one_store
from rawlog.formats.ambry.store.store import read_messages
from rawlog.formats.ambry.writer import hard_deleted
from rawlog.io.output import child, new_directory, refuse_nested


def erase_blobs(
    files: Sequence[File],
    target: str,
    blob_ids: Iterable[str | bytes],
    *,
    sources: Iterable[str] = (),
    overwrite: bool = False,
) -> Report:
    """Copy a store to `target` with the content of these blobs zeroed, byte for byte as Ambry's hard delete would.

    Sizes, offsets, index and blooms stay right: only zeros and checksums are written. OptionError for an id that the log does not have,
    or if the target would touch one of the `sources`. With `overwrite` a directory that is there is replaced.
    """
    refuse_nested(target, sources)
    store = one_store(files)
    wanted = {keys.identity_of(one if isinstance(one, bytes) else keys.from_text(one)): one for one in blob_ids}
    if not wanted:
        raise OptionError("no blob named: nothing to erase")
    report = Report()
    met: set[tuple[int, int, int]] = set()
    with new_directory(target, overwrite=overwrite) as work:
        for file in (*store.logs, *store.index_files, *store.bloom_files, *store.others):
            if file.problem is None:
                copy_file(file.path, child(work, file.path.rpartition("/")[2]))
        for file in store.logs:
            name = file.path.rpartition("/")[2]
            with (work / name).open("r+b") as out:
                for messages in read_messages(file, check=True, errors="raise"):
                    found = keys.identities(messages.data, messages["key_start"], messages["key_size"]).tuples
                    for index in np.flatnonzero(messages["kind"] == Kind.PUT).tolist():
                        identity = found[index]
                        if identity not in wanted:
                            continue
                        frames = messages.frames
                        start, stop = int(frames.starts[index]), int(frames.stops[index])
                        out.seek(int(frames.positions[index]))
                        out.write(hard_deleted(messages.data[start:stop].tobytes()))
                        met.add(identity)
                        report.messages += 1
                        report.notes.append(
                            f"{name}: byte {int(frames.positions[index]):,}: {keys.text_of(messages.key(index))}"
                        )
        missing = [one for identity, one in wanted.items() if identity not in met]
        if missing:
            shown = ", ".join(one if isinstance(one, str) else keys.text_of(one) for one in missing[:3])
            raise OptionError(f"{len(missing)} of the blobs have no content in this store: {shown}")
        report.files = sorted(path.name for path in work.iterdir())
    return report


def erase_store(files: Sequence[File], target: str, options: Mapping[str, str]) -> core.Report:
    """The verb `erase`: `erase_blobs` with the option `blobs`, ids separated by commas."""
    made = erase_blobs(files, target, [one for one in options.get("blobs", "").split(",") if one])
    report = core.Report("erase", target=target, counts={"erased": made.messages}, facts={"files": made.files})
    for note in made.notes:
        report.add(core.Action.REMOVED, note)
    return report
