"""SQL over files and lakes, for any engine: the tables of some paths, where their rows are, and which of them a statement needs.

The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from rawlog import registry
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import AccessError, DataError, OptionError
from rawlog.model.report import SeriousNote
from rawlog.model.table import COMMON, Table
from rawlog.reading import rows
from rawlog.reading.parts import Part, choose_replicas, plan
from rawlog.reading.select import Selection, limit_rows, partition_column
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.values.transform import bind

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.lakes.lake import Lake

# ----------------------------------------------------------------------------------------------------------------------
# Bounds: which rows of a view a statement can need at most, read from its text.
#
# An engine still evaluates the whole statement. A bound only leaves out rows that its WHERE would drop anyway, so that their files,
# segments and batches are not read. What is uncertain is no bound.

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
        for name, narrower in (("from_offset", max), ("to_offset", min), ("since", max), ("until", min)):
            merged[name] = _merged(getattr(self, name), getattr(other, name), narrower)
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


def _merged(bound: Any, other: Any, choose_replicas: Callable[[Any, Any], Any]) -> Any:
    return other if bound is None else bound if other is None else choose_replicas(bound, other)


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


# ----------------------------------------------------------------------------------------------------------------------
# Reading SQL far enough to know which tables and columns a statement needs; the engines do the rest.
# Tables have dotted names, `kafka.batches` or `old.records`, but the names of temporary views have no dots: `rewrite` replaces them. What
# is uncertain is left as it is, and more columns are read rather than too few.


# ----------------------------------------------------------------------------------------------------------------------
# The tables of some paths in SQL: their names, their columns, and where their rows are.
#
# The views of one path are its tables by name: `records`, `files`, `findings`, and those of its systems, `batches` or `kafka.batches`.
# Of several named paths, `old=DIR`, they are `old.records` and so on, and `old` alone is its records.

V = TypeVar("V")
Name = tuple[str, ...]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|`(?P<quoted>(?:[^`]|``)*)`"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<mark>.)""",
    re.DOTALL,
)
#: A field after a column: `:user.name`, `:items[0].sku`.
_PATH = re.compile(r""":((?:[^\W\d]\w*)(?:\.[^\W\d]\w*|\[\d{1,9}\])*)""")
#: Words that end a list of tables: after them, a dotted name is that of a column.
_ENDS_FROM = frozenset(
    {
        *("select", "where", "group", "order", "having", "limit", "on", "using", "union", "except", "intersect"),
        *("window", "qualify", "cluster", "distribute", "sort", "set"),
    }
)


def rewrite(sql: str, views_by_name: Mapping[Name, V]) -> tuple[str, dict[str, V]]:
    """The SQL with dotted names as names of temporary views, which have no dots, and the views that it may need."""
    tokens = list(_TOKEN.finditer(sql))
    meaning = [index for index, token in enumerate(tokens) if token.lastgroup != "skip"]
    out = [token[0] for token in tokens]
    needed: dict[str, V] = {}
    in_from = False
    at = 0
    while at < len(meaning):
        token = tokens[meaning[at]]
        word = (token["word"] or "").lower()
        if word in ("from", "join", "table", "describe", "desc"):
            in_from = True
        elif word in _ENDS_FROM:
            in_from = False
        chain = _chain(tokens, meaning, at)
        names = tuple(name.lower() for name in chain)
        for count in range(len(names), 0, -1):
            # Outside FROM a dotted name may be that of a column: only one with more parts surely begins with a table.
            sure = count == 1 or in_from or count < len(names)
            if names[:count] in views_by_name and sure:
                name = "_".join(names[:count])
                needed[name] = views_by_name[names[:count]]
                if count > 1:
                    out[meaning[at]] = name
                    for gone in range(meaning[at] + 1, meaning[at + 2 * (count - 1)] + 1):
                        out[gone] = ""
                break
        at += max(1, 2 * len(chain) - 1)
    return "".join(out), needed


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an engine writes what `value:user` and `json(value)` mean. Each gets the column and its type."""

    field: Callable[[str, str, str], str]
    json: Callable[[str, str], str]


def expand(sql: str, columns: Mapping[str, str], spelling: Spelling) -> str:
    """The SQL with `value:user.name[0]`, a field of a JSON text, and `json(value)` as calls of functions.

    `columns` are the columns that hold texts or bytes, in lower case, with their types. Inside brackets and braces a colon means
    something else.
    """
    tokens = list(_TOKEN.finditer(sql))
    out = [token[0] for token in tokens]
    depth, at = 0, 0
    while at < len(tokens):
        mark = tokens[at][0]
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        end = _name_end(tokens, at)
        if end is None or (at and tokens[at - 1][0] in (".", ":", "'")):
            at += 1
            continue
        name = (tokens[end - 1]["word"] or tokens[end - 1]["quoted"] or "").lower()
        chain = "".join(out[at:end])
        path = _PATH.match(sql, tokens[end - 1].end()) if name in columns and depth == 0 else None
        if path is not None:
            out[at] = spelling.field(chain, columns[name], path[1])
            stop = next((n for n in range(end, len(tokens)) if tokens[n].start() >= path.end()), len(tokens))
            out[at + 1 : stop] = [""] * (stop - at - 1)
            at = stop
            continue
        if chain.lower() == "json" and (inner := _argument(tokens, end)) is not None:
            begin, close = inner
            name = (tokens[close - 1]["word"] or tokens[close - 1]["quoted"] or "").lower()
            if name in columns:
                out[at] = spelling.json("".join(out[begin:close]), columns[name])
                out[at + 1 : close + 1] = [""] * (close - at)
                at = close + 1
                continue
        at = end
    return "".join(out)


def _name_end(tokens: Sequence[re.Match[str]], at: int) -> int | None:
    """The token after the dotted name that begins at one; None if none begins there."""
    if tokens[at]["word"] is None and tokens[at]["quoted"] is None:
        return None
    while at + 2 < len(tokens) and tokens[at + 1][0] == "." and (tokens[at + 2]["word"] or tokens[at + 2]["quoted"]):
        at += 2
    return at + 1


def _argument(tokens: Sequence[re.Match[str]], at: int) -> tuple[int, int] | None:
    """The tokens of a dotted name that alone is in the parentheses after a function's name: its first, and the closing one."""
    if at + 1 >= len(tokens) or tokens[at][0] != "(":
        return None
    end = _name_end(tokens, at + 1)
    return None if end is None or end >= len(tokens) or tokens[end][0] != ")" else (at + 1, end)


def _chain(tokens: Sequence[re.Match[str]], meaning: Sequence[int], at: int) -> list[str]:
    """The names of `a.b.c` that begins at a token; empty if the token is not a name."""
    names: list[str] = []
    while at < len(meaning):
        token = tokens[meaning[at]]
        name = token["word"] or token["quoted"]
        if name is None:
            break
        names.append(name)
        if at + 2 >= len(meaning) or tokens[meaning[at + 1]][0] != ".":
            break
        at += 2
    return names


def words_of(sql: str) -> set[str]:
    """Every name in a statement, in lower case; text in double quotes may be one."""
    words = {(token["word"] or token["quoted"] or "").lower() for token in _TOKEN.finditer(sql)}
    return words | {token[0][1:-1].lower() for token in _TOKEN.finditer(sql) if token[0].startswith('"')}


def column_words(sql: str) -> set[str] | None:
    """Names that include all columns of a query; None if it may need columns without naming them."""
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "skip"]
    words = [(token["word"] or token["quoted"] or token[0]).lower() for token in tokens]
    if not words or words[0] not in ("select", "with"):
        return None
    for index, word in enumerate(words):
        if word == "*" and words[max(0, index - 2) : index + 2] != ["count", "(", "*", ")"]:
            return None
        if word in ("natural", "|", "columns") or (word in ("table", "from") and words[index - 1] in ("(", ";")):
            return None
    return words_of(sql)


def needed_columns(table: Table, words: Collection[str] | None) -> list[str]:
    """The columns that a query names, all for None; the narrowest one if it only counts."""
    if words is None:
        return list(table.names)
    named = [column.name for column in table.columns if column.name.lower() in words]
    narrow = [column.name for column in table.columns if column.type in ("int", "bigint")]
    return named or narrow[:1] or [table.columns[0].name]


def statements(text: str) -> tuple[list[str], str]:
    """The statements of a text that end in `;`, without empty ones, and the text after the last one."""
    texts: list[str] = []
    start = 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "mark" and token[0] == ";":
            texts.append(text[start : token.start()])
            start = token.end()
    return [statement.strip() for statement in texts if has_meaning(statement)], text[start:]


def has_meaning(text: str) -> bool:
    """Whether a text has more than spaces and comments."""
    return any(token.lastgroup != "skip" for token in _TOKEN.finditer(text))


_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)

log = logging.getLogger("rawlog.engines.sql")

#: No bounds: all rows.
ALL = Bounds()


@dataclass(frozen=True, slots=True)
class Source:
    """Paths that are queried together, with a name or without."""

    name: str | None
    paths: tuple[str, ...]
    #: The catalog of the lake that it is, if that is not the lake's own.
    catalog: str | None = None


class Directory:
    """The files of a source. `reading` says what to do at damage (`raise`, or `skip` it) and which replicas are read."""

    def __init__(self, paths: Sequence[str], reading: Selection, note: Callable[[str], None] | None = None) -> None:
        """`note` gets the choice of replicas. OptionError if replicas are refused."""
        self.paths = [path if is_remote(path) else os.path.abspath(local_path(path)) for path in paths]
        self.tree = open_known(self.paths, note=note, without_unreadable=True)
        self.paths = list(self.tree.roots)
        self.reading, self.note = bind(reading, self.tree), note
        self._chosen: dict[str, Tree] = {}
        choose_replicas(self.tree, reading, note)

    def refresh(self) -> None:
        """List the files again: some may be new, others deleted."""
        self.tree = open_tree(self.paths)
        self._chosen = {}

    def use(self, tree: Tree) -> None:
        """Read these files instead of all that were found."""
        self.tree, self._chosen = tree, {}

    @property
    def errors(self) -> str:
        """What to do at damage."""
        return self.reading.errors

    def chosen(self, table: Table) -> Tree:
        """The files whose rows a table has: of replicas those that are read."""
        if table.name not in self._chosen:
            self._chosen[table.name] = choose_replicas(self.tree, self.reading, table=table)
        return self._chosen[table.name]

    @property
    def state(self) -> int:
        """A number that changes when the files do."""
        return hash(tuple((file.path, file.size, file.modified) for file in self.tree))


@dataclass(frozen=True, slots=True)
class Files:
    """A table that is read from raw files."""

    directory: Directory
    #: The table as the files have it.
    stored: Table

    @property
    def table(self) -> Table:
        """The table as queries see it: decoded, if that is asked for."""
        return self.directory.reading.transformed(self.stored)

    def parts(self, bounds: Bounds = ALL) -> list[Part]:
        """What there is to read, one part of a file each; within bounds, only what may have such rows."""
        return plan(self.directory.chosen(self.stored), self.stored, bounds.selection(self.directory.reading))

    def batches(self, columns: Sequence[str] | None = None, bounds: Bounds = ALL) -> Iterator[pa.RecordBatch]:
        """The rows within bounds, batch by batch. DataError at damage, unless it is to be skipped."""
        return limit_rows(self._batches(columns, bounds), bounds.limit)

    def _note(self, text: str) -> None:
        """Pass on notes about skipped damage and misplaced rows."""
        if isinstance(text, SeriousNote) and self.directory.note is not None:
            self.directory.note(text)

    def _batches(self, columns: Sequence[str] | None, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        selection = bounds.selection(self.directory.reading).begun()
        selection = selection.replace(columns=None if columns is None else tuple(columns), limit=None)
        listener = rows.Listener(self.directory.tree, self._note)
        for part in self.parts(bounds):
            try:
                yield from rows.read(part, self.stored, selection, listener)
            except DataError as error:
                if self.directory.errors != "skip":
                    raise
                # An error that is raised although damage is skipped concerns the whole file: its header.
                log.warning("%s; the file is left out", str(error).splitlines()[0])
        for text in selection.judge([selection.tallies]) if selection.transforms else ():
            if self.directory.note is not None:
                self.directory.note(text)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake: Parquet files that hold its rows now."""

    lake: Lake
    table: Table
    name: str

    def files(self, bounds: Bounds = ALL) -> list[str]:
        """The URLs of the Parquet files of the newest snapshot that may have rows within bounds."""
        return self.lake.data_files(self.name, bounds.row_filter(self.table) if bounds else None)

    def plain(self, columns: Sequence[str]) -> Table | None:
        """The table without the columns that may be stored in `rawlog.records`; None if some of them are wanted."""
        from rawlog.lakes.payload import needs_payload

        if not self.table.payload or not self.lake.has_references(self.name):
            return self.table
        if needs_payload(self.table, columns):
            return None
        return self.table.subset([name for name in self.table.names if name not in self.table.payload])


@dataclass(frozen=True, slots=True)
class View:
    """A table in SQL: its dotted names, and where its rows are."""

    names: tuple[tuple[str, ...], ...]
    rows: Files | LakeTable

    @property
    def table(self) -> Table:
        return self.rows.table


def sources(paths: Sequence[str], catalog: str | None = None) -> list[Source]:
    """The sources of `PATH` and `name=PATH` arguments; those without a name make one source: the lake in a `catalog`, if one is given.

    OptionError for a name that is given twice, and for several paths of one lake.
    """
    plain = [path for path in paths if _name_of(path) is None]
    if catalog is not None and len(plain) > 1:
        raise OptionError(f"--catalog {catalog} is one lake; give other paths a name, as logs={plain[1]}")
    all_sources = [Source(None, tuple(plain), catalog)] if plain or catalog is not None else []
    if not paths and not all_sources:
        raise OptionError("nothing to ask: name a path, or a catalog with --catalog")
    for path in paths:
        named = _name_of(path)
        if named is None:
            continue
        if any(source.name == named[0] for source in all_sources):
            raise OptionError(f"name {named[0]} is given twice")
        all_sources.append(Source(*named))
    return all_sources


def _name_of(path: str) -> tuple[str, tuple[str, ...]] | None:
    match = _NAMED.fullmatch(path)
    if match is None or os.path.lexists(path):
        return None
    return match[1].lower(), (match[2],)


def views(source: Source, reading: Selection | None = None, note: Callable[[str], None] | None = None) -> list[View]:
    """The views of a source; `note` gets the choice of replicas.

    AccessError if it does not exist, UnknownFormatError if it has no file of a known format.
    """
    from rawlog.lakes.names import is_lake

    lakes = (
        [path for path in source.paths if is_lake(path)] if source.catalog is None else [f"catalog {source.catalog}"]
    )
    if lakes and len(source.paths) > 1:
        raise OptionError(f"{lakes[0]} is a lake: give it a name, as in lake={lakes[0]}")
    if lakes and reading is not None and reading.transforms and note is not None:
        note(
            f"{lakes[0]}: --decode does not change a lake: `rawlog ingest --decode` fills value_json and value_fields "
            "(`value_fields.orders.total`); "
            f"`rawlog convert {lakes[0]} orders.parquet --format parquet --topic orders --decode value=auto` gives nested columns"
        )
    tables: Mapping[str, Files | LakeTable] = (
        _lake_tables(source) if lakes else _file_tables(source.paths, reading or Selection(), note)
    )
    prefix = () if source.name is None else (source.name,)
    return [
        View(tuple((*prefix, *name) for name in names), rows)
        for names, rows in zip(_names(list(tables), source.name is not None), tables.values(), strict=True)
    ]


def _names(tables: list[str], named: bool) -> list[list[tuple[str, ...]]]:
    """The names of each table: its full name; the short one if it is unique; the empty one for the records of a named path."""
    short = [name.rpartition(".")[2] for name in tables]
    common = {table.name for table in COMMON}
    result: list[list[tuple[str, ...]]] = []
    for name, last in zip(tables, short, strict=True):
        space, _, table_name = name.rpartition(".")
        names: list[tuple[str, ...]] = [(space, table_name)] if space else [(table_name,), ("rawlog", table_name)]
        if space and short.count(last) == 1 and last not in common:
            names.append((last,))
        if named and name == "records":
            names.append(())
        result.append(names)
    return result


def _file_tables(paths: Sequence[str], reading: Selection, note: Callable[[str], None] | None) -> dict[str, Files]:
    directory = Directory(paths, reading, note)
    return {name: Files(directory, registry.table_named(name)) for name in directory.tree.tables}


def _lake_tables(source: Source) -> dict[str, LakeTable]:
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import known_tables

    lake, tables = Lake(source.paths[0] if source.paths else None, catalog=source.catalog), known_tables()
    names = [name for name in lake.tables() if name in tables]
    if source.catalog is not None and not names:
        raise AccessError(f"catalog {source.catalog}: it has no table of a lake; `rawlog ingest --catalog` makes them")
    return {name.removeprefix("rawlog."): LakeTable(lake, lake.table_of(name) or tables[name], name) for name in names}
