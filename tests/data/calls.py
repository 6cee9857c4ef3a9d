"""How each verb of the command line is called, once for all tests that try every verb.

A new verb is added here; `tests/hostile` has a test that none is missing.
"""

from __future__ import annotations

from rawlog.model.table import RECORDS

#: Places in a call: the source, a sound copy of it, one file, the target.
SOURCE, SOUND, FILE, OUT = "$", "%", "!", "@"
LOCAL = ("--engine", "local")
EVERYTHING = ",".join(RECORDS.names)

Words = tuple[str, ...]

#: Verbs that read stored files and end. The first call of each is its plain one.
CALLS: dict[str, tuple[Words, ...]] = {
    "ls": ((SOURCE,), (SOURCE, "--json")),
    "cat": ((SOURCE,), (SOURCE, "--json"), (SOURCE, "--errors", "skip")),
    "head": ((SOURCE,),),
    "tail": ((SOURCE,),),
    "count": ((SOURCE,), (SOURCE, "--errors", "skip")),
    "find": (("key", SOURCE), ("key", SOURCE, "--errors", "skip")),
    "explain": ((FILE,), (FILE, "--html", f"{OUT}.html")),
    "report": ((SOURCE, "-o", f"{OUT}.html"),),
    "verify": ((SOURCE,), (SOURCE, "--complete"), (SOURCE, "--json")),
    "diff": ((SOURCE, SOUND), (SOURCE, SOUND, "--errors", "skip")),
    "convert": (
        (SOURCE, OUT, "--format", "jsonl", *LOCAL),
        (SOURCE, f"{OUT}.csv", "--errors", "skip", *LOCAL),
        (SOURCE, f"{OUT}.parquet", "--errors", "skip", *LOCAL),
        (SOURCE, OUT, "--format", "kafka", "--errors", "skip", "--accept-loss", EVERYTHING, *LOCAL),
        (SOURCE, OUT, "--format", "rocketmq", "--errors", "skip", "--accept-loss", EVERYTHING, *LOCAL),
        (SOURCE, OUT, "--format", "replay", "--errors", "skip", "--accept-loss", EVERYTHING, *LOCAL),
    ),
    "restore": ((SOURCE, OUT), (SOURCE, OUT, "--errors", "skip")),
    "erase": ((SOURCE, OUT, "--key", "k", *LOCAL),),
    "repair": ((SOURCE, OUT),),
    "rebuild": ((SOURCE, OUT),),
    "rescue": ((SOURCE, "--to", OUT), (SOURCE, "--plan")),
    "compact": ((SOURCE, OUT),),
    "query": (("SELECT count(*) AS n FROM files", SOURCE, "--engine", "duckdb"),),
    "ingest": ((SOURCE, "--to", OUT, *LOCAL),),
    "extract": ((SOURCE, "--to", OUT), (SOURCE, "--to", OUT, "--names", "filename", "--all")),
    "transactions": ((SOURCE,),),
    "groups": ((SOURCE,),),
    "cluster": ((SOURCE,),),
}
#: Verbs that read stored files and wait for somebody, or that read what other verbs wrote.
WAITING: dict[str, Words] = {
    "browse": (SOURCE,),
    "sql": (SOURCE, "--engine", "duckdb"),
    "lake": (SOURCE,),
    "replay": (SOURCE, "--brokers", "127.0.0.1:1", "--dry-run"),
}
#: Verbs that read no stored files.
WITHOUT_FILES = {"formats", "record", "mirror", "submit", "completion", "doctor"}


def fill(words: Words, places: dict[str, str]) -> list[str]:
    """The words of a call with its places filled in."""
    return [places[word[:1]] + word[1:] if word[:1] in places else word for word in words]
