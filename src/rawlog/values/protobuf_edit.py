"""Fields of Protobuf messages changed: protobuf reads a body, some of its fields are changed, and protobuf writes it again.

Steps follow the JSON form of a message: into the members of a Struct, the items of a ListValue, and the fields of the message that an Any
holds, if its type is in the schema or one that it imports. A Value can hold anything that JSON can: its masks are those of JSON texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rawlog.values.documents import EVERY, Number, Step
from rawlog.values.masker import Edit, Misfit, UnknownType
from rawlog.values.protobuf import WRAPPERS, MessageSchema, held_message

#: By the numbers that descriptors have: the kinds of scalars, and the ranges of whole numbers.
_SIGNED, _UNSIGNED = {3: 63, 5: 31, 15: 31, 16: 63, 17: 31, 18: 63}, {4: 64, 6: 64, 7: 32, 13: 32}
_DOUBLE, _FLOAT, _BOOL, _STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 1, 2, 8, 9, 10, 11, 12, 14
_TYPE_NAMES = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string", 12: "bytes",
    13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip

_OWN = "google.protobuf."
_STRUCT, _VALUE, _LIST, _ANY = (f"{_OWN}{name}" for name in ("Struct", "Value", "ListValue", "Any"))
#: Numbers beyond it are not exact in a double.
_EXACT = 1 << 53


class MessageEditor:
    """Changes fields of the bodies of one Protobuf message."""

    def __init__(self, schema: MessageSchema, path: tuple[int, ...]) -> None:
        self.message = schema.message(path)

    def edit(self, body: bytes, edits: Sequence[Edit]) -> tuple[bytes, list[bool]]:
        """A body with changed fields, and for each change whether it has the field. Fields that the schema does not know stay. ValueError
        if it is not such a message, Misfit if a field cannot have what it would become.
        """
        from google.protobuf.message import DecodeError

        message = self.message()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        has_field = []
        for edit in edits:
            with edit.named():
                has_field.append(_edit_message(message, edit.steps, edit))
        return (message.SerializeToString(deterministic=True) if any(has_field) else body), has_field


def _edit_message(message: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    """Change the field that steps lead to; whether the message has it. Fields that are not there have nothing to hide."""
    step, rest = steps[0], steps[1:]
    name = message.DESCRIPTOR.full_name
    if name in _INSIDE:
        return _INSIDE[name](message, steps, edit)
    if name.startswith(_OWN):
        raise Misfit(name, "drop it as a whole")
    field = message.DESCRIPTOR.fields_by_name.get(step) if isinstance(step, str) else None
    if field is None or not any(
        present is field or present.number == field.number for present, _ in message.ListFields()
    ):
        return False
    if not rest:
        if edit.is_drop:
            if field.is_required:
                raise Misfit(_field_type(field), "it is required")
            message.ClearField(field.name)
        else:
            _mask_field(message, field, edit)
        return True
    held = getattr(message, field.name)
    if _is_map(field):
        return _edit_map(held, field.message_type.fields_by_name["value"], rest, edit)
    if not field.is_repeated:
        return _edit_message(held, rest, edit) if field.type in (_MESSAGE, _GROUP) else False
    if not isinstance(rest[0], int):
        return False
    places = [*range(len(held))] if rest[0] == EVERY else [rest[0]] if rest[0] < len(held) else []
    if not rest[1:] and places and edit.is_drop:
        raise Misfit(_field_type(field), "an item has no null; drop the whole list")
    has_field = False
    for place in places:
        if not rest[1:]:
            has_field = True
            _mask_item(held, place, field, edit)
        elif field.type in (_MESSAGE, _GROUP):
            has_field |= _edit_message(held[place], rest[1:], edit)
    return has_field


def _edit_map(held: Any, item: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    has_field = False
    for key in [name for name in held if (str(name).lower() if isinstance(name, bool) else str(name)) == str(steps[0])]:
        if steps[1:]:
            has_field |= item.type == _MESSAGE and _edit_message(held[key], steps[1:], edit)
            continue
        has_field = True
        if edit.is_drop:
            del held[key]
        else:
            _mask_item(held, key, item, edit)
    return has_field


def _mask_field(message: Any, field: Any, edit: Edit) -> None:
    held = getattr(message, field.name)
    if _is_map(field) or field.is_repeated:
        if edit.rule.how != "digits":
            raise Misfit(_field_type(field), "name the fields in it")
        item = field.message_type.fields_by_name["value"] if _is_map(field) else field
        for place in list(held) if _is_map(field) else range(len(held)):
            _mask_item(held, place, item, edit)
    elif field.type in (_MESSAGE, _GROUP):
        _mask_message(held, edit)
    else:
        setattr(message, field.name, _scalar(held, field, edit))


def _mask_item(held: Any, place: Any, field: Any, edit: Edit) -> None:
    if field.type in (_MESSAGE, _GROUP):
        _mask_message(held[place], edit)
    else:
        held[place] = _scalar(held[place], field, edit)


def _mask_message(message: Any, edit: Edit) -> None:
    """A message as a whole: one that wraps a value is that value; of others every field, if the mask keeps the form."""
    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name in WRAPPERS:
        field = descriptor.fields_by_name["value"]
        message.value = _scalar(message.value, field, edit)
        return
    if name == _VALUE:
        _mask_value(message, edit)
        return
    if edit.rule.how != "digits" or (name.startswith(_OWN) and name not in _INSIDE):
        raise Misfit(f"message {name}", "name the fields in it, or drop it")
    if name == _ANY:
        _in_any(message, lambda held: _mask_message(held, edit))
        return
    for field, _ in message.ListFields():
        _mask_field(message, field, edit)


def _scalar(value: Any, field: Any, edit: Edit) -> Any:
    type, name = field.type, _field_type(field)
    if type in _SIGNED:
        return edit.whole(value, name, -(1 << _SIGNED[type]), (1 << _SIGNED[type]) - 1)
    if type in _UNSIGNED:
        return edit.whole(value, name, 0, (1 << _UNSIGNED[type]) - 1)
    if type in (_DOUBLE, _FLOAT):
        return edit.floating(value, name, type == _FLOAT)
    if type == _BOOL:
        return edit.truth(value, name)
    if type == _ENUM:
        numbers = {symbol.name: symbol.number for symbol in field.enum_type.values}
        names = {symbol.number: symbol.name for symbol in field.enum_type.values}
        return numbers[edit.symbol(names.get(value, str(value)), name, list(numbers))]
    return edit.of_bytes(value) or b"" if type == _BYTES else edit.text(value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _field_type(field: Any) -> str:
    """A field's type as its schema calls it."""
    if _is_map(field):
        return "map"
    if field.type in (_MESSAGE, _GROUP):
        name = f"message {field.message_type.full_name}"
    else:
        name = f"enum {field.enum_type.full_name}" if field.type == _ENUM else _TYPE_NAMES[field.type]
    return f"repeated {name}" if field.is_repeated else name


# Messages that hold others -----------------------------------------------------------------------------------------------


def _edit_struct(message: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    step, rest = steps[0], steps[1:]
    if not isinstance(step, str) or step not in message.fields:
        return False
    if rest:
        return _edit_value(message.fields[step], rest, edit)
    if edit.is_drop:
        del message.fields[step]
    else:
        _mask_value(message.fields[step], edit)
    return True


def _edit_list(message: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    step, rest = steps[0], steps[1:]
    if not isinstance(step, int):
        return False
    has_field = False
    for item in message.values if step == EVERY else message.values[step : step + 1]:
        if rest:
            has_field |= _edit_value(item, rest, edit)
            continue
        has_field = True
        if edit.is_drop:
            item.null_value = 0  # the items after it keep their places
        else:
            _mask_value(item, edit)
    return has_field


def _edit_value(message: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        return _edit_struct(message.struct_value, steps, edit)
    return kind == "list_value" and _edit_list(message.list_value, steps, edit)


def _edit_any(message: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    """A message in an Any. One whose JSON form is not an object has it in the field `value`."""

    def change(held: Any) -> bool:
        name, rest = held.DESCRIPTOR.full_name, steps
        if name.startswith(_OWN) and name != _ANY:
            if steps[0] != "value":
                return False
            rest = steps[1:]
        if rest:
            return _edit_message(held, rest, edit)
        if edit.is_drop:
            held.Clear()
        else:
            _mask_message(held, edit)
        return True

    return bool(_in_any(message, change))


def _in_any(message: Any, change: Callable[[Any], Any]) -> Any:
    """Change the message that an Any holds; what that gives, or None if it holds nothing. UnknownType if it cannot be read."""
    if not message.type_url and not message.value:
        return None
    try:
        held = held_message(message)
    except LookupError:
        hint = "the schema does not have this type, so that its fields are not known"
        raise UnknownType(f"Any of {message.type_url}", f"{hint}; drop the whole Any") from None
    except ValueError:
        raise UnknownType(
            f"Any of {message.type_url}", "its bytes are not such a message; drop the whole Any"
        ) from None
    result = change(held)
    message.value = held.SerializeToString(deterministic=True)
    return result


#: How steps lead into messages whose JSON form is that of what they hold.
_INSIDE: dict[str, Callable[[Any, tuple[Step, ...], Edit], bool]] = {
    _STRUCT: _edit_struct,
    _VALUE: _edit_value,
    _LIST: _edit_list,
    _ANY: _edit_any,
}


def _mask_value(message: Any, edit: Edit) -> None:
    """A value of JSON as a whole. Objects and lists only if the mask keeps the form."""
    kind = message.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        if edit.rule.how != "digits":
            raise Misfit(kind.replace("_value", f" in a {_VALUE}"), "name the fields in it, or drop it")
        held = message.struct_value.fields.values() if kind == "struct_value" else message.list_value.values
        for inner in held:
            _mask_value(inner, edit)
    elif kind == "number_value":
        value = message.number_value
        if value - value != 0:  # NaN and infinity have no digits
            return
        text = str(int(value)) if value == int(value) and abs(value) < _EXACT else json.dumps(value)
        masked = edit.of_json(Number(text))
        if isinstance(masked, Number):
            message.number_value = float(masked)
        else:
            message.string_value = masked
    elif kind == "string_value":
        message.string_value = edit.text(message.string_value)
    elif kind == "bool_value":
        masked = edit.of_json(message.bool_value)
        if isinstance(masked, bool):
            message.bool_value = masked
        else:
            message.string_value = masked
