"""The functions that give an overview: report, browse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.model.verb import Option, verb
from rawlog.reading.tree import Tree
from rawlog.verbs.check import open_sources, running_of, settings_of
from rawlog.verbs.options import (
    OUTPUT,
    Format,
    Limits,
    Note,
    Path,
    Paths,
    Verifying,
    listed,
)

if TYPE_CHECKING:
    from rawlog.pages.browser.server import Server
    from rawlog.pages.report import Overview


@verb(
    group="look",
    examples=(
        "rawlog report /var/kafka-logs -o report.html",
        "rawlog report disk1/ disk2/ -o cluster.html",
        "rawlog report lake -o lake.html",
        "rawlog report /var/kafka-logs -o report.html --json",
    ),
    more="Exit codes: 0 no errors and no warnings; 1 errors or warnings; 2 wrong usage; 3 something could not be read or written.",
    doing="reading",
)
def report(
    paths: Annotated[Paths, "PATH"],
    output: Annotated[
        Path | None,
        Option(
            "The page to write; replaced if it exists.",
            "-o",
            "--to",
            old=("--output",),
            is_required=True,
            metavar="OUT",
            section=OUTPUT,
        ),
    ] = None,
    *,
    format: Format = None,
    note: Note | None = None,
    **options: Unpack[Verifying],
) -> Overview:
    """Write one page: what is here, is it healthy, what to do.

    For every system and topic it has size, records, throughput over time, message sizes, codecs, keys, gaps, producers, transactions,
    consumer lag, and findings by cause with the commands that help. The page is one file, opens without a network and is safe to pass on:
    it shows keys, topics and paths, no values. Nothing at `paths` is changed. A lake has a report of its own: its records are measured,
    and its findings are those of the runs that ingested them.

    Returns an Overview; without `output` no page is written. Damage is a finding and never raises. OptionError if `output` is in a source,
    AccessError for a path that does not exist, UnknownFormatError if nothing is of a known format.

    >>> import rawlog
    >>> verdict = rawlog.report("samples/kafka", "out/report.html").verdict
    """
    from rawlog.io.files import writing
    from rawlog.io.output import refuse_nested
    from rawlog.lakes.names import is_lake
    from rawlog.reading.inspect import RuleChoice
    from rawlog.verbs.report import Survey

    running = running_of(options, Limits.__annotations__)
    most, headers = options.get("max_decompressed", MAX_DECOMPRESSED), options.get("max_headers", MAX_HEADERS)
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
    job: Any = Survey(RuleChoice(max_decompressed=most, max_headers=headers))
    if lake is not None:
        from rawlog.verbs.lake_report import LakeSurvey

        job = LakeSurvey(lake)
    found = engine.run(job, tree, running.get("progress")).overview
    if output is not None:
        with writing(os.fspath(output), overwrite=True, sources=tree.sources) as out:
            out.write(found.to_html().encode())
    return found  # type: ignore[no-any-return]


@verb(
    group="look",
    examples=("rawlog browse /var/kafka-logs", "rawlog browse disk1/ disk2/ --port 8700 --open"),
    more="Through SSH: `ssh -L 8700:127.0.0.1:8700 broker1 rawlog browse /var/kafka-logs --port 8700`, then open the address here.",
)
def browse(
    paths: Annotated[Paths, "PATH"],
    *,
    host: Annotated[
        str,
        Option(
            "Serve at this address. With one that others reach, whoever knows the token reads all files at the PATHs.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, Option("Port of the server; 0 takes a free one.", least=0, most=65535, metavar="N")] = 0,
    format: Format = None,
) -> Server:
    """Serve a local web page to walk files, records and bytes.

    It shows the directories, partitions, batches, records and bytes at `paths`. Search by offset, time, key, text, id or SQL; see
    findings in their place; export rows. Nothing is changed, and only files at `paths` are shown. The address has a token: without it
    nothing is answered.

    Returns a Server that works in the background: open its `url`. End it with `close()`, or use it as a context manager. AccessError for a
    path that does not exist, an address that cannot be used, or if the packages of the extra `browse` are missing.

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
