"""Order: the sort order in the metadata of an Iceberg table, and which data files have it.

Readers learn it from the table's sort order and from the `sort_order_id` of each data file: a file without one is not sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parse_order(table: Any) -> tuple[str, ...]:
    """The columns that an Iceberg table is sorted by. Nothing if it is not, or in a way that rawlog does not write."""
    return _columns(table, table.sort_order())


def order_id(table: Any, order: Sequence[str]) -> int | None:
    """The number of an order in a table's metadata; None if the table has no such order."""
    if not order:
        return None
    return next((number for number, one in table.sort_orders().items() if _columns(table, one) == tuple(order)), None)


def set_order(transaction: Any, order: Sequence[str]) -> None:
    """Sort a table from now on. Data files that are there stay as they are."""
    from pyiceberg.table.sorting import NullOrder
    from pyiceberg.transforms import IdentityTransform

    with transaction.update_sort_order() as update:
        for name in order:
            update.asc(name, IdentityTransform(), NullOrder.NULLS_FIRST)


def _columns(table: Any, order: Any) -> tuple[str, ...]:
    """The columns of an order that is ascending, nulls first, without transforms; nothing if it is another one."""
    from pyiceberg.table.sorting import NullOrder, SortDirection
    from pyiceberg.transforms import IdentityTransform

    found = []
    for field in order.fields:
        name = table.schema().find_column_name(field.source_id)
        is_plain = isinstance(field.transform, IdentityTransform) and field.direction == SortDirection.ASC
        if name is None or not is_plain or field.null_order != NullOrder.NULLS_FIRST:
            return ()
        found.append(name)
    return tuple(found)
