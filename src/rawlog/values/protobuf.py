"""Protobuf: schemas, and single bodies as JSON by the library.

A schema's text is compiled once, by protoc in a process of its own, to descriptors that can be sent anywhere.
Registries write text that protoc refuses: explicit map entries, and reserved numbers next to reserved names. Both are taken out of the text
and, where they matter, put back into the descriptors.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.io.output import Folder, scratch, why_unsafe
from rawlog.model.table import EVERY, Step
from rawlog.model.text import to_json as line_of
from rawlog.reading.fields import Number
from rawlog.values import wire_kernels as k
from rawlog.values.avro import BodyError, SchemaError, Walk
from rawlog.values.kernels import TRUNCATED
from rawlog.values.masker import Edit, Misfit, UnknownType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


MAIN, READY, SOURCES = "rawlog_schema.proto", "rawlog_ready.pb", "sources"
#: A number that no field may have marks messages that are map entries, while protoc reads the text.
MARK = 536_870_911
#: Limits of one compilation: a schema may come from anywhere.
SECONDS, MEMORY = 60, 1 << 30
MOST_FILES, LARGEST_TEXTS, LONGEST_IMPORT, DEEPEST_IMPORT = 1000, 16 << 20, 1000, 64
MOST_INDEXES = 64
#: Comments and strings may lack their end: a search for it from each beginning would take the square of the text's length.
_TOKEN = re.compile(r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[\w.]+|\s+|.""", re.DOTALL)

#: Files that Confluent's registry knows without a reference, as far as values need them.
KNOWN = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";\n'
    "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }\n"
    "message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }\n"
    + "".join(
        f"extend google.protobuf.{''.join(part.title() for part in kind.split('_'))}Options {{ Meta {kind}_meta = 1088; }}\n"
        for kind in ("file", "message", "field", "enum", "enum_value")
    ),
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type;\n'
    "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }\n",
    "confluent/type/variant.proto": 'syntax = "proto3"; package confluent.type;\n'
    "message Variant { bytes metadata = 1; bytes value = 2; }\n",
    "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";\n',
}


class BadIndex(ValueError):
    """Message indexes that lead to no message of the schema."""


TIMESTAMP = "google.protobuf.Timestamp"
#: Messages that hold one value, which JSON shows instead of them.
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
# The types of fields, as descriptors number them.
DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, GROUP = range(1, 11)
MESSAGE, BYTES, UINT32, ENUM, SFIXED32, SFIXED64, SINT32, SINT64 = range(11, 19)
_WIRES = {
    **dict.fromkeys((INT64, UINT64, INT32, BOOL, UINT32, ENUM, SINT32, SINT64), k.VARINT),
    **dict.fromkeys((DOUBLE, FIXED64, SFIXED64), k.FIXED64),
    **dict.fromkeys((FLOAT, FIXED32, SFIXED32), k.FIXED32),
    **dict.fromkeys((STRING, BYTES, MESSAGE), k.BYTES),
}


class MessageLayout:
    """The fields of a message, sorted by number. What its fields hold is looked up when it is met: a message may contain itself."""

    def __init__(self, descriptor: Any) -> None:
        """SchemaError for a message that may have fields of other files."""
        if descriptor.is_extendable:
            raise SchemaError(f"message {descriptor.full_name} has extensions")
        self.name = str(descriptor.full_name)
        self.declared = list(descriptor.fields)
        self.fields = sorted(self.declared, key=lambda field: int(field.number))
        oneofs = {oneof.full_name: number for number, oneof in enumerate(descriptor.oneofs)}
        self.numbers = _numbers(field.number for field in self.fields)
        self.wires = _numbers(_WIRES.get(field.type, -1) for field in self.fields)
        self.is_repeated = _numbers(field.is_repeated for field in self.fields)
        self.choice = _numbers(
            -1 if field.containing_oneof is None else oneofs[field.containing_oneof.full_name] for field in self.fields
        )
        self.choices = len(oneofs)
        self.required = [place for place, field in enumerate(self.fields) if field.is_required]
        self._inner: dict[int, MessageLayout] = {}

    def inner(self, place: int) -> MessageLayout:
        """The messages of a field."""
        if place not in self._inner:
            self._inner[place] = MessageLayout(self.fields[place].message_type)
        return self._inner[place]

    @cached_property
    def is_known(self) -> bool:
        """Whether it is a well-known type, which the library shows in its own way."""
        return self.name.startswith("google.protobuf.")


def _numbers(values: Any) -> Numbers:
    return np.array([int(value) for value in values], np.int64)


@dataclass(slots=True)
class MessageSchema:
    """Descriptors of a schema and everything it imports, and its messages by index path. Picklable."""

    files: bytes
    messages: dict[tuple[int, ...], str]
    _classes: dict[tuple[int, ...], Any] = field(default_factory=dict)
    _layouts: dict[tuple[int, ...], MessageLayout | None] = field(default_factory=dict)

    def __getstate__(self) -> tuple[bytes, dict[tuple[int, ...], str]]:
        return self.files, self.messages

    def __setstate__(self, state: tuple[bytes, dict[tuple[int, ...], str]]) -> None:
        self.files, self.messages = state
        self._classes, self._layouts = {}, {}

    def layout(self, path: tuple[int, ...]) -> MessageLayout | None:
        """The fields of a message, for reading many at once; None if only the library can read it."""
        if path not in self._layouts:
            try:
                self._layouts[path] = MessageLayout(self.message(path).DESCRIPTOR)
            except SchemaError:
                self._layouts[path] = None
        return self._layouts[path]

    def message(self, path: tuple[int, ...]) -> Any:
        """The class of the message at an index path. BadIndex if there is none."""
        if path not in self.messages:
            raise BadIndex(f"message index {list(path)} does not exist")
        if path not in self._classes:
            from google.protobuf import message_factory

            descriptor = self._pool.FindMessageTypeByName(self.messages[path])
            self._classes[path] = message_factory.GetMessageClass(descriptor)
        return self._classes[path]

    @property
    def _pool(self) -> Any:
        return _pool(self.files)


@lru_cache(maxsize=64)
def _pool(files: bytes) -> Any:
    """A pool of its own for each schema: two may define the same name. SchemaError for descriptors that contradict themselves."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    defined = descriptor_pb2.FileDescriptorSet.FromString(files).file
    names = {f"{file.package}.{message.name}" for file in defined for message in file.message_type}
    # An Any may hold messages of Protobuf's own files, imported or not.
    more = (
        file
        for file in _well_known()
        if not names & {f"{file.package}.{message.name}" for message in file.message_type}
    )
    try:
        for file in (*defined, *more):
            pool.Add(file)
    except TypeError as error:
        raise SchemaError(str(error)) from None
    return pool


@lru_cache(maxsize=1)
def _well_known() -> tuple[Any, ...]:
    """The files of Protobuf's own types."""
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    files = []
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return tuple(files)


def held_message(message: Any) -> Any:
    """The message that an Any holds. LookupError if the schema does not have its type, ValueError if its bytes are not one."""
    from google.protobuf import message_factory
    from google.protobuf.message import DecodeError

    descriptor = message.DESCRIPTOR.file.pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
    held = message_factory.GetMessageClass(descriptor)()
    try:
        held.ParseFromString(message.value)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return held


def compile_schema(text: str, referenced: Sequence[tuple[str, str]] = ()) -> MessageSchema:
    """Compile a schema; `referenced` are the names and texts of the files that it imports. SchemaError with what protoc says."""
    from google.protobuf import descriptor_pb2

    ready = descriptor_of(text)
    if ready is not None:
        return _from_descriptor(ready, tuple(referenced))
    compiled = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text, tuple(referenced)))
    main = next(file for file in compiled.file if file.name == MAIN)
    messages = dict(_paths(main.message_type, (), f"{main.package}." if main.package else ""))
    for file in compiled.file:
        for message in file.message_type:
            _restore_maps(message)
    return _checked(MessageSchema(compiled.SerializeToString(), messages))


def _from_descriptor(ready: bytes, referenced: tuple[tuple[str, str], ...]) -> MessageSchema:
    """The same for a schema that is stored as a descriptor: every message in it counts, entries of maps too."""
    from google.protobuf import descriptor_pb2

    main = descriptor_pb2.FileDescriptorProto.FromString(ready)
    imports = "".join(f"import {json.dumps(name)};\n" for name in main.dependency)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(_compiled(f'syntax = "proto3";\n{imports}', referenced))
    for file in list(compiled.file):
        for message in file.message_type:
            _restore_maps(message)
        if file.name == MAIN:
            compiled.file.remove(file)
    main.name = MAIN
    compiled.file.append(main)
    messages = dict(_every_path(main.message_type, (), f"{main.package}." if main.package else ""))
    return _checked(MessageSchema(compiled.SerializeToString(), messages))


def _checked(schema: MessageSchema) -> MessageSchema:
    """The schema, if the library takes its descriptors: those that a registry keeps were read by no compiler. Else SchemaError."""
    _pool(schema.files)
    return schema


def _every_path(messages: Any, above: tuple[int, ...], prefix: str) -> Iterator[tuple[tuple[int, ...], str]]:
    for number, message in enumerate(messages):
        yield (*above, number), f"{prefix}{message.name}"
        yield from _every_path(message.nested_type, (*above, number), f"{prefix}{message.name}.")


def _paths(messages: Any, above: tuple[int, ...], prefix: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """Messages by index path. Entries that `map<>` implies are not in the text, so they are not counted; explicit ones are."""
    for number, message in enumerate(message for message in messages if not message.options.map_entry):
        yield (*above, number), f"{prefix}{message.name}"
        yield from _paths(message.nested_type, (*above, number), f"{prefix}{message.name}.")


def _restore_maps(message: Any) -> None:
    """Make the messages that the text calls map entries such entries again."""
    for inner in message.nested_type:
        _restore_maps(inner)
        if any(span.start == MARK for span in inner.reserved_range):
            inner.options.map_entry = True
            del inner.reserved_range[:]


@lru_cache(maxsize=256)
def _compiled(text: str, referenced: tuple[tuple[str, str], ...]) -> bytes:
    """A FileDescriptorSet of a schema's text and all that it imports, as text or as descriptors."""
    from google.protobuf import descriptor_pb2

    _check_imports(text, referenced)
    with scratch("schema-") as folder:
        sources = Folder(folder).folder(SOURCES)
        ready = descriptor_pb2.FileDescriptorSet()
        for name, source in {**KNOWN, **dict(referenced), MAIN: text}.items():
            raw = descriptor_of(source)
            if raw is None:
                sources.write(name, accepted(source))
            else:
                ready.file.add().ParseFromString(raw)
                ready.file[-1].name = name
        return _run_protoc(Folder(folder), ready.SerializeToString())


def _check_imports(text: str, referenced: Sequence[tuple[str, str]]) -> None:
    """SchemaError unless every import is a `.proto` file below a directory, and all of them are few and small."""
    names = {name for name, _ in referenced} | {MAIN, *KNOWN}
    if len(names) > MOST_FILES or sum(len(source) for _, source in referenced) + len(text) > LARGEST_TEXTS:
        raise SchemaError(f"more than {MOST_FILES:,} files or {LARGEST_TEXTS:,} characters")
    for name in names:
        parts = name.split("/")
        if (
            not name.endswith(".proto")
            or len(name) > LONGEST_IMPORT
            or len(parts) > DEEPEST_IMPORT
            or "\\" in name
            or any(why_unsafe(part) for part in parts)
            or any("/".join(parts[:count]) in names for count in range(1, len(parts)))
        ):
            raise SchemaError(f"invalid name of an import: {name[:LONGEST_IMPORT]!r}")
    if any(not _is_text(source) for source in (text, *(source for _, source in referenced))):
        raise SchemaError("not valid text")


def _is_text(text: str) -> bool:
    """Whether a text of JSON has no half of a character in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def accepted(text: str) -> str:
    """A schema's text as protoc takes it: without reserved statements, explicit map entries marked."""
    statements: list[str] = []
    statement: list[str] = []
    for token in _TOKEN.findall(text):
        if token.startswith("//") or (token.startswith("/*") and token.endswith("*/") and len(token) > 3):
            continue
        statement.append(token)
        if token in (";", "{", "}"):
            statements.append(_statement(statement))
            statement = []
    return "".join([*statements, *statement])


def _statement(tokens: list[str]) -> str:
    words = [word for word in tokens if not word.isspace()]
    if words[:1] == ["reserved"] and words[-1] == ";":
        return " "
    if words == ["option", "map_entry", "=", "true", ";"]:
        return f" reserved {MARK}; "
    return "".join(tokens)


#: What the child runs: the compiler alone, from the place that it is given. With -I and -S it looks for modules nowhere else: not where it
#: runs, and not where the environment says.
_CHILD = """
import resource, sys
for limit, most in ((resource.RLIMIT_AS, {memory}), (resource.RLIMIT_FSIZE, {memory}), (resource.RLIMIT_CORE, 0)):
    hard = resource.getrlimit(limit)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))
sys.path.append(sys.argv[1])
from grpc_tools import _protoc_compiler
sys.exit(_protoc_compiler.run_main([one.encode() for one in ("protoc", *sys.argv[2:])]))
"""


#: What protoc's own log prints between the errors.
_LOGGED = re.compile(r"WARNING: All log messages|[IWEF][0-9]{4} ")


def _run_protoc(folder: Folder, ready: bytes) -> bytes:
    """What protoc makes of the texts in `SOURCES` of a directory; `ready` is a FileDescriptorSet of files that have no text.

    It is native code that reads what anybody may have written: a process of its own, in an empty directory.
    """
    try:
        import grpc_tools
    except ImportError:
        raise SchemaError("Protobuf schemas need grpcio-tools: install the extra `schemas`") from None
    package = Path(next(iter(grpc_tools.__path__))).absolute()
    root = folder.path
    target = root / "schema.pb"
    command = [sys.executable, "-I", "-S", "-c", _CHILD.format(memory=MEMORY), str(package.parent)]
    command += [f"-I{path}" for path in (root / SOURCES, package / "_proto", *_common_protos())]
    command += [f"--descriptor_set_out={target}", "--include_imports", MAIN]
    if ready:
        folder.write(READY, ready)
        command.append(f"--descriptor_set_in={root / READY}")
    empty = folder.folder("empty")
    try:
        finished = subprocess.run(
            command, capture_output=True, timeout=SECONDS, cwd=empty.path, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise SchemaError(f"protoc did not end within {SECONDS} s") from None
    if finished.returncode or not target.is_file():
        text = finished.stderr.decode("utf-8", "replace").replace(f"{root / SOURCES}/", "")
        output = [line for line in text.splitlines() if line and not _LOGGED.match(line)]
        raise SchemaError("; ".join(output[:3]) or f"protoc ended with {finished.returncode}")
    return target.read_bytes()


def _common_protos() -> list[str]:
    """Where `google/type` and the like are, if they are installed."""
    import importlib.util

    spec = importlib.util.find_spec("google.type")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [str(Path(place).parents[1]) for place in places]


def descriptor_of(text: str) -> bytes | None:
    """The FileDescriptorProto that some registries keep in base64 instead of text; None for anything else."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    if re.fullmatch(r"[A-Za-z0-9+/\s]+=*\s*", text) is None:
        return None
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(raw)
    except (binascii.Error, ValueError, DecodeError):
        return None
    return raw if descriptor.message_type else None


def read_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """The path of message indexes in front of a body, and where the body begins. EOFError if they are cut, BadIndex if invalid."""
    walk = Walk(body, 0)
    try:
        count = walk.long()
        if count == 0:
            return (0,), walk.at
        if not 0 < count <= MOST_INDEXES:
            raise BadIndex(f"{count} message indexes")
        return tuple(walk.long() for _ in range(count)), walk.at
    except BodyError as error:
        if error.status == TRUNCATED:
            raise EOFError from None
        raise BadIndex("a message index is too long") from None


def to_json(message: Any, body: bytes) -> str:
    """A body as ProtoJSON with the field names of the schema. Inside `Any` are messages of the same schema; one that cannot be read has
    its bytes in `value`. ValueError if it is not such a message, or a time is out of range.
    """
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    value = message()
    try:
        value.ParseFromString(body)
        pool = value.DESCRIPTOR.file.pool
        is_whole = not _wrap_unknown(value) if _may_hold_any(value.DESCRIPTOR) else True
        shown = MessageToDict(value, preserving_proto_field_name=True, descriptor_pool=pool)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not is_whole:
        _unwrap(shown)
    return line_of(shown)


#: The type that an Any is given whose own is not known; protobuf takes what follows the last slash.
_WRAPPED = "//google.protobuf.BytesValue"


@lru_cache(maxsize=1024)
def _may_hold_any(descriptor: Any) -> bool:
    """Whether a message may hold an Any."""
    seen, left = set(), [descriptor]
    while left:
        message = left.pop()
        if message.full_name == "google.protobuf.Any":
            return True
        if message.full_name not in seen:
            seen.add(message.full_name)
            left += [field.message_type for field in message.fields if field.message_type is not None]
    return False


def _wrap_unknown(message: Any) -> bool:
    """Turn every Any that cannot be read into one of bytes; whether there is one."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        if not message.ListFields():
            return False
        try:
            held = held_message(message)
        except (LookupError, ValueError):
            from google.protobuf.wrappers_pb2 import BytesValue

            message.value = BytesValue(value=message.value).SerializeToString()
            message.type_url += _WRAPPED
            return True
        is_changed = _wrap_unknown(held)
        if is_changed:
            message.value = held.SerializeToString()
        return is_changed
    is_changed = False
    for about, value in message.ListFields():
        if about.message_type is None:
            continue
        if about.message_type.GetOptions().map_entry:
            is_message = about.message_type.fields_by_name["value"].message_type is not None
            held = list(value.values()) if is_message else []
        else:
            held = list(value) if about.is_repeated else [value]
        for inner in held:
            is_changed |= _wrap_unknown(inner)
    return is_changed


def _unwrap(shown: Any) -> None:
    """Give every such Any its own type again."""
    for inner in shown.values() if isinstance(shown, dict) else shown if isinstance(shown, list) else ():
        _unwrap(inner)
    if isinstance(shown, dict) and str(shown.get("@type", "")).endswith(_WRAPPED):
        shown["@type"] = shown["@type"].removesuffix(_WRAPPED)


# Fields of Protobuf messages changed: protobuf reads a body, some of its fields are changed, and protobuf writes it again.


#: Bits of whole numbers.
_SIGNED = {INT64: 63, INT32: 31, SFIXED32: 31, SFIXED64: 63, SINT32: 31, SINT64: 63}
_UNSIGNED = {UINT64: 64, FIXED64: 64, FIXED32: 32, UINT32: 32}
_TYPE_NAMES = {
    DOUBLE: "double", FLOAT: "float", INT64: "int64", UINT64: "uint64", INT32: "int32", FIXED64: "fixed64", FIXED32: "fixed32",
    BOOL: "bool", STRING: "string", BYTES: "bytes", UINT32: "uint32", SFIXED32: "sfixed32", SFIXED64: "sfixed64", SINT32: "sint32",
    SINT64: "sint64",
}  # fmt: skip

_WELL_KNOWN = "google.protobuf."
_STRUCT, _VALUE, _LIST, _ANY = (f"{_WELL_KNOWN}{name}" for name in ("Struct", "Value", "ListValue", "Any"))
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
    if name.startswith(_WELL_KNOWN):
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
        return _edit_message(held, rest, edit) if field.type in (MESSAGE, GROUP) else False
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
        elif field.type in (MESSAGE, GROUP):
            has_field |= _edit_message(held[place], rest[1:], edit)
    return has_field


def _edit_map(held: Any, item: Any, steps: tuple[Step, ...], edit: Edit) -> bool:
    has_field = False
    for key in [name for name in held if (str(name).lower() if isinstance(name, bool) else str(name)) == str(steps[0])]:
        if steps[1:]:
            has_field |= item.type == MESSAGE and _edit_message(held[key], steps[1:], edit)
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
    elif field.type in (MESSAGE, GROUP):
        _mask_message(held, edit)
    else:
        setattr(message, field.name, _scalar(held, field, edit))


def _mask_item(held: Any, place: Any, field: Any, edit: Edit) -> None:
    if field.type in (MESSAGE, GROUP):
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
    if edit.rule.how != "digits" or (name.startswith(_WELL_KNOWN) and name not in _INSIDE):
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
    if type in (DOUBLE, FLOAT):
        return edit.floating(value, name, type == FLOAT)
    if type == BOOL:
        return edit.truth(value, name)
    if type == ENUM:
        numbers = {symbol.name: symbol.number for symbol in field.enum_type.values}
        names = {symbol.number: symbol.name for symbol in field.enum_type.values}
        return numbers[edit.symbol(names.get(value, str(value)), name, list(numbers))]
    return edit.of_bytes(value) or b"" if type == BYTES else edit.text(value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _field_type(field: Any) -> str:
    """A field's type as its schema calls it."""
    if _is_map(field):
        return "map"
    if field.type in (MESSAGE, GROUP):
        name = f"message {field.message_type.full_name}"
    else:
        name = f"enum {field.enum_type.full_name}" if field.type == ENUM else _TYPE_NAMES[field.type]
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
        if name.startswith(_WELL_KNOWN) and name != _ANY:
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
