"""`browse`: a local web page to walk files, records and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rawlog.model.verb import Option, verb
from rawlog.reading.options import Format, Paths, listed

if TYPE_CHECKING:
    from rawlog.pages.browser.server import Server


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
            "Serve at this address. If other machines can reach it, everybody who knows the token can read all files at the PATHs.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, Option("Port of the server; 0 takes a free one.", least=0, most=65535, metavar="N")] = 0,
    format: Format = None,
) -> Server:
    """Serve a local web page to walk files, records and bytes.

    It shows the directories, partitions, batches, records and bytes at `paths`. Search by offset, time, key, text, id or SQL; see
    findings in their place; export rows. Nothing is changed, and only files at `paths` are shown. The address has a token: requests
    without it are refused.

    Returns a Server that works in the background: open its `url`. End it with `close()`, or use it as a context manager. AccessError for a
    path that does not exist, an address that cannot be used, or if the packages of the extra `browse` are missing.

    >>> import rawlog
    >>> with rawlog.browse("samples/kafka") as server:
    ...     address = server.url
    """
    from rawlog.pages.browser.server import Server

    return Server(listed(paths), host=host, port=port, format=format)
