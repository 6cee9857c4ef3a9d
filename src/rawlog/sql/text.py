"""Reading SQL far enough to know which tables and columns a statement needs; the engines do the rest.

Tables have dotted names, `kafka.batches` or `old.records`, but the names of temporary views have no dots: `rewrite` replaces them. What
is uncertain is left as it is, and more columns are read rather than too few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rawlog.core.tables import Table

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


def rewrite(sql: str, known: Mapping[Name, V]) -> tuple[str, dict[str, V]]:
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
            if names[:count] in known and sure:
                name = "_".join(names[:count])
                needed[name] = known[names[:count]]
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
    found = {(token["word"] or token["quoted"] or "").lower() for token in _TOKEN.finditer(sql)}
    return found | {token[0][1:-1].lower() for token in _TOKEN.finditer(sql) if token[0].startswith('"')}


def column_words(sql: str) -> set[str] | None:
    """Names that include all columns that a query needs, or None if it may need some that it does not name."""
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
    found: list[str] = []
    start = 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "mark" and token[0] == ";":
            found.append(text[start : token.start()])
            start = token.end()
    return [one.strip() for one in found if has_meaning(one)], text[start:]


def has_meaning(text: str) -> bool:
    """Whether a text has more than spaces and comments."""
    return any(token.lastgroup != "skip" for token in _TOKEN.finditer(text))
