"""Layouts: positions, sizes and the structures read by them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.model.explain import layout_nodes
from rawlog.model.layout import Field, Layout
from rawlog.registry import formats

UNIT = Layout(
    "unit",
    Field("offset", ">i8", "where"),
    Field("size", ">i4"),
    Field("kind", "u1"),
    Field("mark", "S3"),
    Field("little", "<u2"),
)


def test_positions_follow_one_another_without_padding() -> None:
    assert [UNIT.at(field.name) for field in UNIT.fields] == [0, 8, 12, 13, 16]
    assert [UNIT.after(field.name) for field in UNIT.fields] == [8, 12, 13, 16, 18]
    assert UNIT.size == UNIT.dtype.itemsize == 18


def test_a_field_twice_or_of_no_type_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Layout("x", Field("a", "i1"), Field("a", "i1"))
    for type in ("", "i3", "f4", "S", "=i4", "i16", ">i4 "):
        with pytest.raises(AssertionError):
            Layout("x", Field("a", type))


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=5))
def test_scattered_structures_are_taken_as_struct_unpacks_them(pairs: list[tuple[int, int]]) -> None:
    pieces = [struct.pack(">qiB3s", a, b, 7, b"abc") + struct.pack("<H", 513) for a, b in pairs]
    data = b"?" + b"??".join(pieces)
    starts = np.array([1 + number * (UNIT.size + 2) for number in range(len(pieces))], np.int64)
    taken = UNIT.take(np.frombuffer(data, np.uint8), starts)
    assert [(int(one["offset"]), int(one["size"])) for one in taken] == pairs
    assert all((one["kind"], one["mark"], one["little"]) == (7, b"abc", 513) for one in taken)


def test_a_view_leaves_out_a_cut_structure() -> None:
    data = np.frombuffer(bytes(range(18)) * 2 + b"rest", np.uint8)
    assert UNIT.view(data).size == 2
    assert UNIT.view(data[:17]).size == 0


def test_nodes_show_the_fields_that_are_whole() -> None:
    data = np.frombuffer(b"..." + bytes(range(18)), np.uint8)
    nodes = layout_nodes(UNIT, data, 3, 1000)
    assert [(node.position, node.size, node.name) for node in nodes] == [
        (1003 + UNIT.at(field.name), field.size, field.name) for field in UNIT.fields
    ]
    assert [node.value for node in nodes] == [0x0001020304050607, 0x08090A0B, 12, b"\r\x0e\x0f", 0x1110]
    assert len(layout_nodes(UNIT, data, 3, 0, upto=3 + 15)) == 3


def test_the_layouts_of_all_formats_are_what_numpy_makes_of_them() -> None:
    for format in formats().values():
        for layout in format.layouts:
            assert layout.size == layout.dtype.itemsize
            assert {field.name: layout.dtype.fields[field.name][1] for field in layout.fields} == {
                field.name: layout.at(field.name) for field in layout.fields
            }
