"""Every ability that a format or family names is there: names of modules are text, which no type checker sees."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator

import pytest

from rawlog import registry
from rawlog.core.format import Deferred


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
    found = list(deferred(family, set()))
    assert found
    for one in found:
        ability = functools.reduce(getattr, one.name.split("."), importlib.import_module(one.module))
        assert callable(ability), one
