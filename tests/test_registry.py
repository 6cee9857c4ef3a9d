"""Every ability that a format or family names is there: names of modules are text, which no type checker sees."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from rawlog import registry
from rawlog.model.format import Codec, Deferred, Family, File, Format, Place
from rawlog.model.store import Store
from rawlog.testing.store import check_class


def deferred(value: object, seen: set[int]) -> Iterator[Deferred]:
    if isinstance(value, Deferred):
        yield value
    elif dataclasses.is_dataclass(value) and id(value) not in seen:
        seen.add(id(value))
        for field in dataclasses.fields(value):
            yield from deferred(getattr(value, field.name), seen)
    elif isinstance(value, dict):
        yield from deferred(tuple(value.values()), seen)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from deferred(one, seen)


@pytest.mark.parametrize("family", registry.families(), ids=lambda family: family.name)
def test_every_ability_that_is_named_can_be_imported(family: object) -> None:
    for one in deferred(family, set()):
        ability = functools.reduce(getattr, one.name.split("."), importlib.import_module(one.module))
        assert callable(ability), one


@pytest.mark.parametrize("family", registry.families(), ids=lambda family: family.name)
def test_the_class_of_stores_defines_abilities_and_nothing_else(family: Family) -> None:
    """`Family.store` is text, and a method whose name is wrong is an ability that the system silently does not have."""
    check_class(family)


def test_a_plain_store_travels_small_and_one_of_a_class_as_what_it_is() -> None:
    """Stores are sent to Spark's tasks: what rules share and what is looked up stay behind."""
    files = [
        File(f"/logs/t-0/{number:020}.log", 1, 0.0, "kafka.log", Place("t", 0, number, "/logs/t-0"))
        for number in range(50)
    ]
    plain = Store(files, "t-0")
    plain.share(list)
    plain.find("kafka.log", 7)
    assert len(pickle.dumps(plain)) < len(pickle.dumps(tuple(files))) + 150
    for kind in (Store, *(family.store_class for family in registry.families())):
        store = kind.of(plain)
        store.summaries["/logs/t-0"] = "seen"
        again = pickle.loads(pickle.dumps(store))
        assert type(again) is kind
        assert (again.files, again.name, again.summaries) == (store.files, "t-0", store.summaries)
        assert kind.of(store) is store


@pytest.mark.parametrize("format", registry.formats().values(), ids=lambda format: format.name)
def test_every_format_has_the_abilities_that_its_tables_need(format: Format) -> None:
    """`Format.module` is text: a wrong one shows when a user needs it. A helper that is named like an ability would be taken for it: the
    module of checkpoints had a `write` that makes their text.
    """
    abilities = [name for name in vars(Codec) if not name.startswith("_") and name != "LAYOUTS" and format.can(name)]
    for name in abilities:
        function = getattr(format.codec, name)
        assert name == "splits" or callable(function), name
        if name != "splits":
            taken = inspect.signature(getattr(Codec, name)).parameters
            inspect.signature(function).bind(*[None] * (len(taken) - 1))
    assert {"scan", "decode"} <= set(abilities) or not format.tables
    assert format.has_rules == ("rules" in abilities)
    assert ("explain" in abilities) == ("explain" in format.abilities())
    assert bool(abilities) == (format.module is not None)


SOURCE = Path(rawlog.__file__).parent
#: Files that may name families, with the reason.
ALLOWED = {
    "registry.py": "the list of all families, in the order in which they are asked",
    "verbs/cluster.py": "a verb of Kafka's own: what would be abstract has one implementor (decision 0034)",
    "verbs/extract.py": "a verb of Ambry's own",
}
#: Packages that may, with the reason.
ALLOWED_PACKAGES = {
    "live": "a client of Kafka brokers: what it sends and gets are that family's batches (decision 0015)"
}


#: `replay` is the name of a verb and of a form of recordings too.
VERB, VERB_FILES = (
    "'replay'",
    ("__init__.py", "verbs/__init__.py", "verbs/live.py", "cli/command.py"),
)


def named_families(tree: ast.AST) -> Iterator[str]:
    """The imports of families in a module, also those for type checking, and the literals that name a family or one of its formats."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {one.name}" for one in node.names if one.name.startswith("rawlog.formats."))
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("rawlog.formats"):
            yield f"from {node.module} import"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.removeprefix("rawlog.formats.")
            if any(text == name or text.startswith(f"{name}.") for name in registry.FAMILIES):
                yield repr(node.value)


def _named_in(path: Path) -> list[str]:
    names = list(named_families(ast.parse(path.read_text())))
    return [name for name in names if name != VERB or str(path.relative_to(SOURCE)) not in VERB_FILES]


def test_nothing_outside_of_formats_names_a_family() -> None:
    """`restore`, `cluster`, `extract` and `erase` imported families in 41 places, so a sixth family could not have had such a verb."""
    found = {
        str(path.relative_to(SOURCE)): names
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("formats", *ALLOWED_PACKAGES) and (names := _named_in(path))
    }
    assert set(found) == set(ALLOWED), found


def test_a_family_that_is_named_is_seen() -> None:
    for text in (
        "import rawlog.formats.kafka.log.segment",
        "from rawlog.formats.kafka.cluster import paths",
        "from rawlog.formats import kafka",
        "x = file.format == 'kafka.log'",
        "x = f'kraft.{name}'",
        "x = 'ambry'",
        "x = Deferred('rawlog.formats.replay.recording', 'scan')",
    ):
        assert list(named_families(ast.parse(text))), text
    assert not list(named_families(ast.parse("x = 'kafka logs and others'")))
