"""`extract`: the blobs of Ambry stores as files. A verb of Ambry's own, so it names Ambry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from rawlog.io.output import Output
from rawlog.model.errors import UnknownFormatError, unknown
from rawlog.model.report import Report
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Path, Paths, Time, texts
from rawlog.reading.tree import open_known
from rawlog.verbs.options import instead


@verb(
    group="move",
    examples=("rawlog extract /data/ambry/9 --to blobs --names filename",),
    more="Exit codes: 0 all blobs are complete; 1 some are not, see the manifest; 2 wrong usage; 3 cannot be read or written.",
)
def extract(
    paths: Annotated[Paths, "STORE"],
    *,
    to: Annotated[Path, Option("The directory to write; it must not exist yet, or be empty.", metavar="DIR")],
    blob: Annotated[str | Sequence[str], Option("Only this blob; may be given again.", metavar="ID")] = (),
    names: Annotated[Literal["id", "filename"], "Name files by the id of a blob or by its own file name."] = "id",
    all: Annotated[bool, "Also write deleted and expired blobs, if their content still exists."] = False,
    now: Annotated[
        Time | None, Option("The time that decides what has expired: ISO 8601 or milliseconds.", metavar="TIME")
    ] = None,
) -> Report:
    """Write blobs as files, with a manifest.

    Large blobs are joined from their chunks, which may be in another STORE. Compressed content is decompressed; encrypted
    content is written as it is, and the manifest says so.

    Returns a Report. AccessError if `to` exists and is not empty; OptionError for a blob that does not exist.

    >>> import rawlog
    >>> report = rawlog.extract("samples/ambry", to="out/blobs", names="filename")
    """
    from rawlog.formats.ambry.store.extract import extract_blobs
    from rawlog.formats.ambry.store.state import LIVE

    if names not in ("id", "filename"):
        raise unknown("value of names", names, ("id", "filename"))
    options = {"names": names, "state": "all" if all else LIVE}
    if blobs := texts(blob):
        options["blobs"] = ",".join(blobs)
    if now is not None:
        options["now"] = now.isoformat() if isinstance(now, datetime) else str(now)
    left_out: list[str] = []
    tree = open_known(paths, note=left_out.append, without_unreadable=True)
    with Output(os.fspath(to)) as output:
        output.refuse(tree.sources)
        with output.directory() as folder:
            stores = [file for file in tree.files if file.system == "ambry"]
            if not stores:
                raise instead(UnknownFormatError(f"{', '.join(tree.roots)}: no Ambry store is here"), tree)
            report = extract_blobs(stores, folder, options)
    report.verb, report.source, report.target = "extract", ", ".join(tree.roots), output.named
    report.notes[:0] = left_out
    return report
