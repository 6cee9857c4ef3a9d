"""The verbs that only Ambry stores have."""

from __future__ import annotations

from rawlog.model.format import Deferred
from rawlog.model.verb import Kind, Parameter, Verb

EXTRACT = Verb(
    group="move",
    summary="Write blobs as files, with a manifest.",
    help="""Write the blobs of Ambry STOREs as files, with a manifest.

Large blobs are joined from their chunks, which may be in any of the given STOREs. Compressed content is decompressed; encrypted content
is written as it is, and the manifest says so.""",
    examples=("rawlog extract /data/ambry/9 --to blobs --names filename",),
    exit_codes="0 all blobs are complete; 1 some are not, see the manifest; 2 wrong usage; 3 cannot be read or written.",
    paths="STORE",
    parameters=(
        Parameter(
            "to", "A directory that does not exist yet, or is empty.", Kind.TARGET, is_required=True, metavar="DIR"
        ),
        Parameter("blob", "Only this blob; may be given again.", is_repeated=True, metavar="ID"),
        Parameter("names", "What files are named after.", Kind.CHOICE, "id", ("id", "filename")),
        Parameter("all", "Deleted and expired blobs too, if their content still exists.", Kind.FLAG),
        Parameter("now", "The time that decides what has expired: ISO 8601 or milliseconds.", metavar="TIME"),
    ),
    run=Deferred("rawlog.formats.ambry.store.extract", "run_extract"),
)
