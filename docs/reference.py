"""The reference pages of the site, made from the code: verbs and options, Python functions, tables, rules, byte layouts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import build
import rawlog
from rawlog import registry
from rawlog.cli import manual
from rawlog.model.table import Table
from rawlog.model.verb import parameters_of, show_signature


def pages() -> dict[str, str]:
    """The pages by their name below reference/."""
    return {
        "verbs.md": verbs(),
        "python.md": functions(),
        "tables.md": tables(),
        "rules.md": rules(),
        "layouts.md": layouts(),
    }


def cell(text: str) -> str:
    """Text that stays in its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("$", "\\$")


def code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`".replace("|", "\\|")


# Verbs -----------------------------------------------------------------------------------------------------------------------


def verbs() -> str:
    parts = [
        "# Verbs and options",
        "What `rawlog --help` and `man rawlog` say, on one page. Every verb is also a [Python function](python.md).",
        "| exit code | |\n|---|---|\n" + "\n".join(f"| {number} | {text} |" for number, text in manual.EXIT_CODES),
        "| variable | |\n|---|---|\n" + "\n".join(f"| `{name}` | {text} |" for name, text in manual.VARIABLES),
    ]
    before = ""
    for one in manual.entries():
        if one.group != before:
            parts.append(f"## {one.group[0].upper()}{one.group[1:]}")
            before = one.group
        parts.append(f"### {one.name}\n\n{one.summary}\n\n```text\n{one.usage}\n```\n\n{_prose(one.text)}")
        rows = "\n".join(f"| {code(name)} | {cell(text)} |" for name, text in one.options)
        parts.append(f"| option | |\n|---|---|\n{rows}" if rows else "")
        parts.append(f"```text\n{one.epilog}\n```" if one.epilog else "")
    return "\n\n".join(filter(None, parts)) + "\n"


def _prose(text: str) -> str:
    """Help as Markdown: indented lines are shown as they are."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = block.splitlines()
        as_is = any(line.startswith("  ") for line in lines)
        blocks.append(f"```text\n{block}\n```" if as_is else re.sub(r"([<*_$])", r"\\\1", block))
    return "\n\n".join(blocks)


# Python ----------------------------------------------------------------------------------------------------------------------


def functions() -> str:
    parts = [
        "# Python functions",
        "Every function with all its options. How they are used: [rawlog in Python](../python.md).",
    ]
    names = [name for name in rawlog.__all__ if not name.startswith("_")]
    for name in sorted(names, key=str.lower):
        one = getattr(rawlog, name)
        if isinstance(one, type):
            methods = [method for label, method in vars(one).items() if not label.startswith("_") and callable(method)]
            parts += [
                f"## {name}",
                _docstring(one),
                *(_function(f"{name}.{m.__name__}", m, "###") for m in methods),
            ]
        else:
            parts.append(_function(f"rawlog.{name}", one, "##"))
    return "\n\n".join(filter(None, parts)) + "\n"


def _function(name: str, one: Callable[..., Any], level: str) -> str:
    show_signature(one)
    lines: list[str] = []
    for parameter in inspect.signature(one).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "    *," not in lines:
            lines.append("    *,")
        if parameter.name != "self":
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            lines.append(f"    {parameter.name}{default},")
    returns = str(inspect.signature(one).return_annotation)
    inner = "\n".join(["", *lines, ""]) if lines else ""
    helps = [
        f"| `{p.name}` | {cell(p.help or (p.metavar or ''))} |" for p in parameters_of(one) if not p.is_python_only
    ]
    table = "\n".join(["| option | |", "|---|---|", *helps]) if helps else ""
    return f"{level} {name}\n\n```python\n{name}({inner}) -> {returns}\n```\n\n{_docstring(one)}\n\n{table}".strip()


def _docstring(one: Any) -> str:
    text = inspect.getdoc(one) or ""
    parts = []
    for block in re.split(r"\n\s*\n", text):
        is_code = block.startswith((">>>", "  "))
        kind = "pycon" if block.startswith(">>>") else "text"
        parts.append(f"```{kind}\n{block}\n```" if is_code else block.replace("**", "\\*\\*"))
    return "\n\n".join(parts)


# Tables, rules, layouts ------------------------------------------------------------------------------------------------------


def tables() -> str:
    parts = [
        "# Tables",
        "What `cat --table`, `query` and `ingest` know. Names and types are a contract: they do not change.",
    ]
    found: dict[str, list[Table]] = {}
    for name in registry.tables():
        table = registry.table_named(name)
        found.setdefault(name.split(".")[0] if "." in name else "", []).append(table)
    for group, members in found.items():
        parts.append(f"## {group or 'Of all systems'}")
        parts += [build.table(table) for table in members]
    return "\n\n".join(parts) + "\n"


def rules() -> str:
    parts = [
        "# Rules",
        "What `rawlog verify` looks for. `rawlog verify --rules` prints the same; `--rule` and `--skip` choose.",
        "| code | severity | |\n|---|---|---|",
    ]
    rows = []
    for one in sorted(rawlog.rules(), key=lambda rule: rule.code):
        first = one.about.strip().split("\n\n")[0]
        rows.append(f"| `{one.code}` | {one.severity.value} | {cell(first)} |")
    parts[-1] += "\n" + "\n".join(rows)
    return "\n\n".join(parts) + "\n"


def layouts() -> str:
    parts = [
        "# Byte layouts",
        "The fixed part of every structure, as the readers and writers use it: one figure and one table each.",
    ]
    for family in registry.families():
        parts += [f"## {family.title}", build.layouts(family)]
    return "\n\n".join(parts) + "\n"
