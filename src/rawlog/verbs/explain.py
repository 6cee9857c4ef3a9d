"""`explain`: the bytes of a frame, field by field."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from rawlog.model.verb import Option, verb
from rawlog.reading.options import Format, Path, ShowSecrets
from rawlog.reading.tree import open_known
from rawlog.verbs.options import Page

if TYPE_CHECKING:
    from rawlog.reading.explain import Explanation


@verb(
    group="look",
    examples=(
        "rawlog explain orders-0/00000000000000000000.log --at 1204",
        "rawlog explain orders-0/ --offset 42 --html batch.html",
        "rawlog explain metadata.bin --as kraft.checkpoint --number 3 --json",
    ),
)
def explain(
    path: Annotated[Path, "PATH"],
    *,
    at: Annotated[int | None, Option("The frame with this byte of the file.", least=0, metavar="POSITION")] = None,
    offset: Annotated[int | None, Option("The frame with this offset.", metavar="N")] = None,
    number: Annotated[int | None, Option("The frame of this number, from 0.", least=0, metavar="N")] = None,
    html: Page = None,
    format: Format = None,
    show_secrets: ShowSecrets = False,
) -> Explanation:
    """Show the bytes of a frame, field by field.

    Each field has its position, bytes, name, type, value and meaning. Without `at`, `offset` or `number` it is the header of the file and
    its first frame. With `offset`, `path` may be the directory of a partition.

    Returns an Explanation. OptionError if there is no such frame, DataError if it is damaged.

    >>> import rawlog
    >>> frame = rawlog.explain("samples/kafka/transactions-0", offset=0)
    """
    from rawlog.reading.explain import explain_frame

    tree = open_known(path, format=format)
    explanation = explain_frame(tree, at=at, offset=offset, number=number, show_secrets=show_secrets)
    if html is not None:
        from rawlog.io.output import writing

        with writing(os.fspath(html), overwrite=True, sources=tree.sources) as out:
            out.write(explanation.to_html().encode())
    return explanation
