"""Reading SQL far enough to know which tables and columns a statement needs; the engines do the rest.

Tables have dotted names, `kafka.batches` or `old.records`, but the names of temporary views have no dots: `rewrite` replaces them. What
is uncertain is left as it is, and more columns are read rather than too few.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from rawlog.core.tables import Table

V = TypeVar("V")
Name = tuple[str, ...]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|`(?P<quoted>(?:[^`]|``)*)`"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<mark>.)""",
    re.DOTALL,
)
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
