"""The verbs that only one family has, run on files at some paths. The family says what they do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from rawlog import registry
from rawlog.core.errors import OptionError, unknown
from rawlog.core.times import parse_time
from rawlog.core.verb import Kind, Parameter
from rawlog.io.output import Output
from rawlog.reading.tree import open_tree

if TYPE_CHECKING:
    from rawlog.core.report import Report
    from rawlog.core.verb import Shown

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def run_verb(name: str, paths: Paths, given: Mapping[str, Any]) -> Report | Iterator[Shown]:
    """Run a family's verb with some of its parameters: a Report if it writes, else what it shows.

    OptionError for a parameter that it does not have, for an invalid value, and for a target that touches a source.
    """
    known = registry.verbs()
    if name not in known:
        raise unknown("verb", name, known)
    verb = known[name]
    for one in given:
        if one not in {parameter.name for parameter in verb.parameters}:
            raise unknown(f"option of {name}", one, [parameter.name for parameter in verb.parameters])
    options = {parameter.name: _value(parameter, given.get(parameter.name)) for parameter in verb.parameters}
    tree = open_tree(paths)
    target = next((parameter.name for parameter in verb.parameters if parameter.kind is Kind.TARGET), None)
    if target is None:
        return verb.run(tree.files, tree.roots, options)
    with Output(options[target]) as output:
        output.refuse(tree.sources)
        with output.directory() as folder:
            report = cast("Report", verb.run(tree.files, tree.roots, {**options, target: folder}))
    report.verb, report.source, report.target = name, ", ".join(tree.roots), output.named
    return report


def _value(parameter: Parameter, value: Any) -> Any:
    """The value of a parameter, checked, as the verb takes it."""
    if value is None:
        if parameter.is_required:
            raise OptionError(f"{parameter.name} is required")
        return parameter.empty
    if parameter.is_repeated:
        return (value,) if isinstance(value, str) else tuple(value)
    if parameter.kind is Kind.TIME:
        return parse_time(value)
    if parameter.kind is Kind.TARGET:
        return os.fspath(value)
    if parameter.kind is Kind.CHOICE and value not in parameter.choices:
        raise unknown(f"value of {parameter.name}", str(value), parameter.choices)
    if parameter.kind is Kind.NUMBER and (not isinstance(value, int) or value < 0):
        raise OptionError(f"{parameter.name} {value!r}: a whole number, 0 or more, expected")
    return value
