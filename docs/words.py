"""The words that rawlog does not use, and what to write instead. `make lint` runs this over code, help, messages and pages.

A line that needs such a word in another sense ends with `words: ok` in a comment.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What is looked for, and what to write instead.
WORDS = (
    (r"\btold\b|_told\b|\btold_|\bTold", "reported, printed, given"),
    (r"\banew\b|_anew\b|\banew_", "again: rebuilt, rewritten"),
    (r"\b_?[Mm]end(s|ed|ing)?\b|_mend(s|ed|ing)?\b|\bmend_", "repair"),
    (r"(?<!lag )(?<!lags )(?<!be )(?<!is )\bbehind\b", "after"),
    (r"\bbeside\b", "next to"),
    (r"\bstands?\b(?! for| in for|alone)|\bstood\b", "is, are"),
    (r"\bheld against\b|\bhold(s|ing)? (it |them |one )?against\b", "compared with"),
    (r"\b(that|which|what|offsets|times?|lengths?|sizes?) cannot be(?=[\"'.,;:)]|$)", "is invalid"),
    (r"\b(?<!there )(is|are) none(?=[\"'.,;:)]| of| in|$)", "does not exist, has no"),
    (r"\b(what|came|comes|come|become) (came|comes|come)? ?of (it|them|each|this|a|the|all|every|one)\b", "the result"),
    (
        r"\b(one|a \w+) an? (core|executor|line|partition|row|record|field|frame|unit|table|file|column|key|entry|value|batch)\b",
        "one per",
    ),
    (r"\b[Oo]ne (row|package) an? ", "one per"),
    (r"\bso asked\b", "if asked"),
    (r"\bwithout a word\b|\bin other words\b", "silently"),
    (r"\bthereof\b|\bthereby\b|\bwhereof\b|\bhence\b|\bthence\b|\bwhence\b", "plain words"),
    (r"\bnor yet\b|\bbe it\b|\bas it were\b|\bfor want of\b|\bbut for\b", "plain words"),
)
FILES, FOLDERS = ("README.md", "Makefile", "pyproject.toml"), ("src", "docs")
LEFT_OUT = ("docs/words.py", "docs/decisions/")


def found(path: Path) -> list[str]:
    """The places of a file where such a word is."""
    lines = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if "words: ok" in line:
            continue
        for pattern, instead in WORDS:
            if (match := re.search(pattern, line)) is not None:
                lines.append(
                    f"{path.relative_to(ROOT)}:{number}: {match.group(0)!r}: write {instead}: {line.strip()[:100]}"
                )
    return lines


def main() -> int:
    listed = [ROOT / name for name in FILES]
    listed += [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*")) if path.suffix in (".py", ".md")]
    chosen = [name for path in listed if not (name := str(path.relative_to(ROOT))).startswith(LEFT_OUT)]
    if len(sys.argv) > 1:
        chosen = [name for name in chosen if name.startswith(tuple(sys.argv[1:]))]
    lines = [line for name in chosen for line in found(ROOT / name)]
    print("\n".join(lines[:400]))
    if lines:
        print(f"{len(lines)} lines with words that rawlog does not use; see docs/words.py")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
