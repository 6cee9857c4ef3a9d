"""Bounds: which rows of a view a statement can need at most, read from its text.

An engine still evaluates the whole statement. A bound only leaves out rows that its WHERE would drop anyway, so that their files,
segments and batches are not read. What is uncertain is no bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from rawlog import registry
from rawlog.model.table import Table
from rawlog.reading.select import Selection, partition_column

#: The most rows for which a LIMIT is a bound.
MOST_ROWS = 1 << 20
_INT32, _INT64 = 1 << 31, 1 << 63
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d:\d\d)?")
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
#: Text that is the same bytes whichever side of a comparison an engine converts.
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
_FLIPPED = {"GT": "LT", "GTE": "LTE", "LT": "GT", "LTE": "GTE", "EQ": "EQ"}
_JOINS = ("", "INNER", "OUTER", "CROSS")
#: What may be selected for LIMIT to be a bound: nothing that could be an aggregate or make several rows of one.
_SIMPLE = ("Column", "Identifier", "Star", "Alias", "Literal", "Paren")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all rows that a statement needs of a view have in common; None: nothing. `limit` rows are enough.

    Offsets and times are half-open, times in microseconds. `is_exact` says that these bounds are all that the WHERE asks for.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    since: int | None = None
    until: int | None = None
    keys: frozenset[bytes] | None = None
    limit: int | None = None
    is_exact: bool = True

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self) if field.name != "is_exact")

    def both(self, other: Bounds) -> Bounds:
        """What rows have in common that are within these bounds and others."""
        exact, merged = self.is_exact and other.is_exact, {}
        for name in ("topics", "partitions", "keys"):
            bound, other_bound = getattr(self, name), getattr(other, name)
            merged[name] = (
                bound if other_bound is None else other_bound if bound is None else (bound & other_bound) or bound
            )
            exact = exact and (bound is None or other_bound is None or bool(bound & other_bound))
        for name, choose in (("from_offset", max), ("to_offset", min), ("since", max), ("until", min)):
            merged[name] = _merged(getattr(self, name), getattr(other, name), choose)
        return Bounds(**merged, is_exact=exact)

    def either(self, other: Bounds) -> Bounds:
        """What rows have in common that are within these bounds or others."""
        merged: dict[str, Any] = {}
        for name in ("topics", "partitions", "keys", "from_offset", "to_offset", "since", "until"):
            bound, other_bound = getattr(self, name), getattr(other, name)
            if bound is not None and other_bound is not None:
                merged[name] = (
                    bound | other_bound if isinstance(bound, frozenset) else _widest(name)(bound, other_bound)
                )
        return Bounds(**merged, is_exact=False)

    def selection(self, reading: Selection) -> Selection:
        """A selection of rows within the bounds, read as another one says."""
        keys = ", ".join(f"x'{key.hex()}'" for key in sorted(self.keys or ()))
        return reading.replace(
            topic_pattern=None if self.topics is None else "|".join(re.escape(name) for name in sorted(self.topics)),
            partitions=() if self.partitions is None else tuple(sorted(self.partitions)),
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            since=self.since,
            until=self.until,
            where=f"key IN ({keys})" if keys else None,
            limit=self.limit,
        )

    def row_filter(self, table: Table) -> Any:
        """An expression of PyIceberg with which data files of a lake are chosen; None for all of them."""
        from pyiceberg import expressions

        # As Any: their constructors are made when they are called.
        test: Any = expressions
        tests: list[Any] = []
        if self.topics is not None:
            tests.append(test.In("topic", set(self.topics)))
        if self.partitions is not None:
            tests.append(test.In(str(partition_column(table)), set(self.partitions)))
        for pair, low, high, form in (
            (table.offsets, self.from_offset, self.to_offset, int),
            (table.times, self.since, self.until, _iso),
        ):
            if low is not None and pair is not None:
                tests.append(test.GreaterThanOrEqual(pair[1], form(low)))
            if high is not None and pair is not None:
                tests.append(test.LessThan(pair[0], form(high)))
        return reduce(test.And, tests) if tests else None


NOTHING_KNOWN = Bounds(is_exact=False)


def _merged(bound: Any, other: Any, choose: Callable[[Any, Any], Any]) -> Any:
    return other if bound is None else bound if other is None else choose(bound, other)


def _widest(name: str) -> Callable[[int, int], int]:
    return min if name in ("from_offset", "since") else max


def _iso(microseconds: int) -> str:
    return (
        datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000).isoformat()
    )


def bounds_of(sql: str, tables: Mapping[str, Table], dialect: str, *, utc: bool = True) -> dict[str, Bounds]:
    """The bounds of the views of a statement, by the names that it uses. `utc` says that times without a zone are in UTC.

    Of a view that is used several times, the bounds cover all uses.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(sql, read=dialect)
    except (SqlglotError, RecursionError):
        return {}
    if not isinstance(tree, exp.Select | exp.SetOperation):
        return {}
    by_view: dict[str, Bounds] = {}
    uses = [use for use in tree.find_all(exp.Table) if use.name.lower() in tables]
    for use in uses:
        name = use.name.lower()
        bounds = _bounds_of_use(use, tables[name], utc)
        by_view[name] = by_view[name].either(bounds) if name in by_view else bounds
    if len(uses) == 1 and isinstance(tree, exp.Select):
        name = uses[0].name.lower()
        by_view[name] = replace(by_view[name], limit=_limit(tree, uses[0], by_view[name]))
    return {name: bounds for name, bounds in by_view.items() if bounds}


def bounds_of_condition(text: str, table: Table) -> Bounds:
    """The bounds of an expression over the columns of a table, as `rawlog cat --where` takes it; its times are in UTC."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        condition = sqlglot.parse_one(text, into=exp.Condition, read="spark")
    except (SqlglotError, RecursionError):
        return NOTHING_KNOWN
    return _Reader(table, "", True, set(), True).read(condition)


def _bounds_of_use(use: Any, table: Table, utc: bool) -> Bounds:
    """What the WHERE of the SELECT says whose FROM, or a join of it, names the view."""
    from sqlglot import exp

    select = use.parent.parent if isinstance(use.parent, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or any(use.args.get(name) for name in ("pivots", "sample", "joins", "db")):
        return NOTHING_KNOWN
    where = select.args.get("where")
    if where is None:
        return Bounds()
    joins = select.args.get("joins") or []
    if any(join.args.get("method") or join.kind not in _JOINS for join in joins):
        return NOTHING_KNOWN  # the nearest row, or the one at the same place: it depends on the others
    alone = not joins and not select.args.get("laterals")
    # A name of a result may hide the column; which of the two a WHERE means depends on the engine.
    hidden = {expression.alias.lower() for expression in select.expressions if isinstance(expression, exp.Alias)}
    return _Reader(table, use.alias_or_name.lower(), alone, hidden, utc).read(where.this)


def _limit(tree: Any, use: Any, bounds: Bounds) -> int | None:
    """How many rows are enough: where a statement gives rows as they come, and drops none that the bounds let pass."""
    allowed = {"expressions", "from_", "where", "limit", "offset"}
    clauses = {name for name, value in tree.args.items() if value}
    simple = all(type(node).__name__ in _SIMPLE for expression in tree.expressions for node in expression.walk())
    if not clauses <= allowed or not simple or not bounds.is_exact or use.parent is not tree.args.get("from_"):
        return None
    limit, offset = (_integer(tree.args[name].expression) if tree.args.get(name) else 0 for name in ("limit", "offset"))
    if "limit" not in clauses or limit is None or offset is None or limit + offset > MOST_ROWS:
        return None
    return limit + offset


class _Reader:
    """Reads conditions on the columns of one view."""

    def __init__(self, table: Table, name: str, alone: bool, hidden: set[str], utc: bool) -> None:
        self.table, self.name, self.alone, self.hidden, self.utc = table, name, alone, hidden, utc
        # Tables that are folded from whole stores are read whole, and rows of `files` and `findings` go by the places of files.
        folded = registry.maker(table) is not None
        self.is_stream = not folded and table.name not in ("files", "findings")

    def read(self, node: Any) -> Bounds:
        """The bounds of a condition; nothing is known of one that is not understood."""
        from sqlglot import exp

        if not self.is_stream:
            return NOTHING_KNOWN
        if isinstance(node, exp.Paren):
            return self.read(node.this)
        if isinstance(node, exp.And):
            return self.read(node.this).both(self.read(node.expression))
        if isinstance(node, exp.Or):
            return self.read(node.this).either(self.read(node.expression))
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low = self._compare(node.this, "GTE", [node.args["low"]])
            return low.both(self._compare(node.this, "LTE", [node.args["high"]]))
        if isinstance(node, exp.In):
            others = any(value for name, value in node.args.items() if name not in ("this", "expressions"))
            return NOTHING_KNOWN if others else self._compare(node.this, "EQ", node.expressions)
        kind = type(node).__name__
        if kind not in _FLIPPED:
            return NOTHING_KNOWN
        if self._column(node.this) is not None:
            return self._compare(node.this, kind, [node.expression])
        return self._compare(node.expression, _FLIPPED[kind], [node.this])

    def _column(self, node: Any) -> str | None:
        """The column of the view that an expression is."""
        from sqlglot import exp

        if isinstance(node, exp.Cast | exp.Decode):  # of a key only: as text
            inner = self._column(node.this)
            return inner if inner == "key" and _is_conversion(node, "TEXT", "VARCHAR") else None
        if not isinstance(node, exp.Column) or node.args.get("db"):
            return None
        name, table = node.name.lower(), node.table.lower()
        if table != self.name and (table or not self.alone or name in self.hidden):
            return None
        return name if name in self.table.names else None

    def _compare(self, column: Any, kind: str, values: list[Any]) -> Bounds:
        name = self._column(column)
        if name is None:
            return NOTHING_KNOWN
        if name == "topic" and kind == "EQ":
            return _set("topics", [value.this if _is_text(value) else None for value in values])
        if name == partition_column(self.table) and kind == "EQ":
            numbers = [_integer(value) for value in values]
            return _set(
                "partitions", [number if number is not None and abs(number) < _INT32 else None for number in numbers]
            )
        if name == "key" and kind == "EQ" and self.table.column("key").type == "binary":
            return _set("keys", [_bytes(value) for value in values])
        if self.table.offsets is not None and name in self.table.offsets:
            bounds = _range(("from_offset", "to_offset"), kind, [_integer(value) for value in values])
            return replace(bounds, is_exact=bounds.is_exact and len(set(self.table.offsets)) == 1)
        if self.table.times == (name, name):
            recent = values[0] if kind in ("GT", "GTE") else None
            if recent is not None and (since := _ago(recent)) is not None:
                return Bounds(since=since, is_exact=False)
            return _range(("since", "until"), kind, [_microseconds(value, self.utc) for value in values])
        return NOTHING_KNOWN


def _set(name: str, values: list[Any]) -> Bounds:
    arguments: dict[str, Any] = {name: frozenset(values)}
    return NOTHING_KNOWN if None in values or not values else Bounds(**arguments)


def _range(names: tuple[str, str], kind: str, values: list[int | None]) -> Bounds:
    """A half-open range that holds all rows that compare so with one of some numbers."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers or max(map(abs, numbers)) >= _INT64 - 1:
        return NOTHING_KNOWN
    low = {"EQ": min(numbers), "GTE": min(numbers), "GT": min(numbers) + 1}.get(kind)
    high = {"EQ": max(numbers) + 1, "LT": max(numbers), "LTE": max(numbers) + 1}.get(kind)
    arguments: dict[str, Any] = {names[0]: low, names[1]: high}
    return Bounds(**arguments, is_exact=len(set(numbers)) == 1)


def _is_text(node: Any) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Literal) and bool(node.is_string)


def _is_conversion(node: Any, *types: str) -> bool:
    """Whether a node converts to one of some types of any length, or between text and bytes in UTF-8."""
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        return node.to.this.name in types and not node.to.expressions
    charset = node.args.get("charset")
    return charset is None or (_is_text(charset) and charset.this.lower() in ("utf-8", "utf8", "us-ascii"))


def _keeps(type: str, literal: re.Match[str]) -> bool:
    """Whether a time in text, converted to a type, is still the same instant."""
    if type == "DATE":
        return literal[1] is None and literal[4] is None
    return type in ("TIMESTAMPTZ", "TIMESTAMPLTZ") or (type in ("TIMESTAMP", "TIMESTAMPNTZ") and literal[4] is None)


def _integer(node: Any) -> int | None:
    from sqlglot import exp

    if isinstance(node, exp.Neg):
        number = _integer(node.this)
        return None if number is None else -number
    if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdecimal():
        return None
    return int(node.this)


def _bytes(node: Any) -> bytes | None:
    """The bytes of a literal: in hex, or plain text."""
    from sqlglot import exp

    if isinstance(node, exp.HexString):
        digits = str(node.this)
        return bytes.fromhex(digits) if re.fullmatch(r"([0-9a-fA-F]{2})*", digits) else None
    if isinstance(node, exp.Cast | exp.Encode):
        node = node.this if _is_conversion(node, "TEXT", "VARCHAR", "BINARY", "VARBINARY", "BLOB") else None
    return node.this.encode() if _is_text(node) and _PLAIN.fullmatch(node.this) else None


def _microseconds(node: Any, utc: bool) -> int | None:
    """The instant of a literal such as '2026-01-01 12:00'."""
    from sqlglot import exp

    type, node = (node.to, node.this) if isinstance(node, exp.Cast) else (None, node)
    match = _TIME.fullmatch(node.this) if _is_text(node) else None
    if match is None or (match[4] is None and not utc):
        return None
    if type is not None and (type.expressions or not _keeps(type.this.name, match)):
        return None
    try:
        parsed = datetime.fromisoformat(match[0])
    except ValueError:
        return None
    parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
    since = parsed - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def _ago(node: Any) -> int | None:
    """The instant of `now() - INTERVAL 1 DAY`: not later than the engine's own."""
    from sqlglot import exp

    if not isinstance(node, exp.Sub) or not isinstance(node.expression, exp.Interval):
        return None
    is_now = isinstance(node.this, exp.CurrentTimestamp) or (
        isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "now"
    )
    unit = node.expression.args.get("unit")
    seconds = _SECONDS.get(unit.name.upper().removesuffix("S")) if unit is not None else None
    count = node.expression.this
    if not is_now or seconds is None or not _is_text(count) or not count.this.isdecimal():
        return None
    return int((time.time() - int(count.this) * seconds) * 1_000_000) - 1


__all__ = ["Bounds", "bounds_of", "bounds_of_condition"]
