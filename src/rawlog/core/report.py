"""Account: what a work that writes a new directory came to, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rawlog.core.text import counted


@dataclass(slots=True)
class Account:
    """What was written and what was lost on the way. Families add their own counts as fields.

    `notes` are sentences with a place: each loss, each change, each thing made anew.
    """

    notes: list[str] = field(default_factory=list, kw_only=True)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return True

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {**asdict(self), "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """Everything, for people: the notes, then the counts."""
        counts = []
        for name, value in asdict(self).items():
            if name == "notes" or not value or isinstance(value, str):
                continue
            number = len(value) if isinstance(value, (list, dict)) else value
            words = name.replace("_", " ")
            counts.append(counted(number, _singular(words), words))
        return [*self.notes, ", ".join(counts)] if counts else list(self.notes)


def _singular(words: str) -> str:
    """`records kept` as one: `record kept`."""
    first, space, rest = words.partition(" ")
    for ending, instead in (("ies", "y"), ("ches", "ch"), ("s", "")):
        if first.endswith(ending) and not first.endswith("ss"):
            return first.removesuffix(ending) + instead + space + rest
    return words


@dataclass(slots=True)
class Several(Account):
    """What came of several works that belong together, each by its name."""

    parts: dict[str, Account] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost in any of them."""
        return all(one.is_whole for one in self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Each part's own account."""
        return {**{name: one.as_json() for name, one in self.parts.items()}, "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """Each part's own account, under its name."""
        return [text for name, one in self.parts.items() for text in (name, *(f"  {line}" for line in one.lines()))]
