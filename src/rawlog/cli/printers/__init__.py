"""How results are printed: a function for each type that verbs return. Its keyword parameters are options of the command line."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from rawlog.model.verb import Option

Json = Annotated[bool, Option("Print one JSON object per line.", "--json", section="Output")]


class Printing(TypedDict, total=False):
    """Output: how rows are printed."""

    as_json: Json
    as_csv: Annotated[bool, Option("Print comma-separated values, with a line of names.", "--csv")]
    raw: Annotated[bool, "Print only the values, as they are, each followed by the delimiter."]
    delimiter: Annotated[str | None, Option(r"What follows each value of --raw.  [default: \n]", metavar="TEXT")]
    template: Annotated[
        str | None,
        Option(
            r"Print this pattern, as in rpk: '%t %p %o %k %v\n'; see `rawlog cat --help`.", "--format", metavar="TEXT"
        ),
    ]
    arrow: Annotated[bool, "Print an Arrow IPC stream."]
    expanded: Annotated[bool, "Print one field per line, every value whole."]
    wide: Annotated[bool, "Print all columns and whole values, even if lines are longer than the terminal."]
    form: Annotated[
        Literal["base64", "hex", "escape"] | None,
        Option("Print every binary value in this form.  [default: text where it is UTF-8, else base64]", "--bytes"),
    ]
