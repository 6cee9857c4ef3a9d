"""The functions that give an overview: report, browse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.reading.inspect import Chosen
from rawlog.reading.tree import Tree
from rawlog.verbs.check import open_sources, settings_of
from rawlog.verbs.options import (
    Note,
    Path,
    Paths,
    Running,
    listed,
)

if TYPE_CHECKING:
    from rawlog.pages.browser.server import Server
    from rawlog.pages.report import Overview


def report(
    paths: Paths,
    output: Path | None = None,
    *,
    format: str | None = None,
    max_decompressed: int = MAX_DECOMPRESSED,
    max_headers: int = MAX_HEADERS,
    note: Note | None = None,
    **running: Unpack[Running],
) -> Overview:
    """Verify and measure everything at `paths`, in one pass. Returns an Overview; `output` is a file to write it to as a page.
    `paths` may be one lake, too: then its records are measured, and its findings are those of the runs that ingested them.

    The page is self-contained: what is here, is it healthy, what to do next; then for every system and topic throughput, message sizes,
    keys, gaps, producers, groups and transactions. A file `output` that exists is replaced. Damage is a finding and never raises.
    OptionError if `output` is in a source, AccessError for a path that does not exist, UnknownFormatError if nothing is of a known format.

    >>> import rawlog
    >>> verdict = rawlog.report("samples/kafka", "out/report.html").verdict
    """
    from rawlog.io.files import writing
    from rawlog.io.output import refuse_nested
    from rawlog.lakes.names import is_lake
    from rawlog.verbs.report import Survey

    lake = next((one for one in listed(paths) if is_lake(one)), None)
    if lake is not None and len(listed(paths)) > 1:
        raise OptionError(f"{lake}: a lake has a report of its own; leave out the other paths")
    if lake is None:
        engine, [tree] = open_sources([paths], running, format=format, note=note)
    else:
        tree = _records_of(lake)
        engine = choose(tree.size, **settings_of(running))
    if output is not None:
        refuse_nested(os.fspath(output), tree.sources)
    job: Any = Survey(Chosen(max_decompressed=max_decompressed, max_headers=max_headers))
    if lake is not None:
        from rawlog.verbs.lake_report import LakeSurvey

        job = LakeSurvey(lake)
    found = engine.run(job, tree, running.get("progress")).overview
    if output is not None:
        with writing(os.fspath(output), overwrite=True, sources=tree.sources) as out:
            out.write(found.to_html().encode())
    return found  # type: ignore[no-any-return]


def browse(
    paths: Paths,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    format: str | None = None,
) -> Server:
    """Serve a web page to walk the files, records and bytes at `paths`, in the background. Returns a Server: open its `url`.

    Only this machine reaches it, unless `host` says otherwise; nothing is answered without the token in its `url`.
    `port` 0 takes a free one. End it with `close()`, or use it as a context manager. AccessError for a path that does not exist, an
    address that cannot be used, or if the packages of the extra `browse` are missing.

    >>> import rawlog
    >>> with rawlog.browse("samples/kafka") as server:
    ...     address = server.url
    """
    from rawlog.pages.browser.server import Server

    return Server(listed(paths), host=host, port=port, format=format)


def _records_of(lake: str) -> Tree:
    """The data files of the records of a lake; none, if it has no records."""
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import lake_name
    from rawlog.model.table import RECORDS
    from rawlog.verbs.convert_sources import lake_tree

    path = os.path.abspath(lake)
    return lake_tree(path, RECORDS) if lake_name(RECORDS) in Lake(path).tables() else Tree((path,), ())
