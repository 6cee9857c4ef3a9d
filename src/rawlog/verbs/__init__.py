"""What users can ask for: a function for each verb, declared once (see `rawlog.model.verb`). This is the list of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.model.verb import Declaration

#: The verbs in the order of `rawlog --help`, and the module of each, which is imported when it is first needed. These modules import
#: neither NumPy nor Arrow before a verb runs, so that help and completion are quick: what a job needs is imported in its functions.
VERBS = {
    "formats": "doctor",
    "ls": "ls",
    "cat": "cat",
    "head": "cat",
    "tail": "cat",
    "count": "cat",
    "find": "cat",
    "explain": "explain",
    "report": "report",
    "browse": "browse",
    "verify": "verify",
    "diff": "diff",
    "repair": "repair",
    "rebuild": "repair",
    "rescue": "rescue",
    "convert": "convert",
    "restore": "restore",
    "erase": "erase",
    "compact": "repair",
    "extract": "extract",
    "query": "query",
    "ingest": "ingest",
    "lake": "ingest",
    "groups": "groups",
    "transactions": "groups",
    "cluster": "cluster",
    "record": "live",
    "replay": "live",
    "mirror": "live",
    "doctor": "doctor",
}
#: Functions of `rawlog` that are no verbs of the command line, or have another name there.
FUNCTIONS = {
    **dict.fromkeys(("Log", "follow", "open", "read", "rows"), "cat"),
    "list_formats": "doctor",
    "rules": "verify",
    "write": "convert",
}


def declaration(name: str) -> Declaration:
    """The declaration of a verb. KeyError for an unknown one."""
    from rawlog.model.verb import DECLARED

    importlib.import_module(f"rawlog.verbs.{VERBS[name]}")
    return DECLARED[name]


def public(name: str) -> object:
    """A function of `rawlog`, with a signature that names every option. KeyError for an unknown one."""
    from rawlog.model.verb import show_signature

    function = getattr(importlib.import_module(f"rawlog.verbs.{FUNCTIONS.get(name) or VERBS[name]}"), name)
    if not isinstance(function, type):
        show_signature(function)
    return function
