"""`--where`: an SQL expression over a table's columns, parsed by sqlglot and evaluated by Arrow.

Text compares with binary columns as UTF-8, and ISO 8601 text with timestamps. `value.user.name` is a field of a JSON value,
`headers.trace` a header: they are text, and numbers next to a number. What cannot be translated is an OptionError that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rawlog.model.errors import OptionError
from rawlog.model.table import HEADERS, has_fields
from rawlog.model.text import is_text, parse_time
from rawlog.reading.fields import field_of

if TYPE_CHECKING:
    from rawlog.model.table import Step, Table


@lru_cache(maxsize=32)
def _parse(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    if not is_text(text):
        raise OptionError(f"--where {text!r}: not UTF-8; bytes are written as x'ff00'")
    try:
        return sqlglot.parse_one(text, into=sqlglot.exp.Condition, read="spark")
    except SqlglotError:
        pass
    try:
        sqlglot.parse_one(text, read="spark")
        problem = "not a condition"
    except SqlglotError as error:  # this says more than a parser that was asked for a condition
        problem = _complaint(error)
    raise OptionError(f"--where {text!r}: {problem}")


def _complaint(error: Any) -> str:
    """What a parser found wrong and where, without its own names for things."""
    for detail in getattr(error, "errors", ()):
        if detail.get("description") and "<class" not in detail["description"]:
            at = f" at column {detail['col']}" if detail.get("col") else ""
            near = f", near {detail['highlight']!r}" if detail.get("highlight") else ""
            return f"not an expression: {detail['description'].rstrip('.')}{at}{near}"
    return "not an expression; see `rawlog cat --help`"


def columns_of(text: str, table: Table) -> list[str]:
    """The columns that an expression looks at; OptionError for one that the table has not."""
    from sqlglot import exp

    return list(dict.fromkeys(_column(column, table) for column in _parse(text).find_all(exp.Column)))


def texts_of(text: str) -> list[str]:
    """The texts that an expression compares columns with for equality."""
    from sqlglot import exp

    literals = [literal for node in _parse(text).find_all(exp.EQ, exp.In) for literal in node.find_all(exp.Literal)]
    return list(dict.fromkeys(literal.this for literal in literals if literal.is_string))


def check(text: str, table: Table) -> None:
    """OptionError if an expression is invalid, before there is a row to test."""
    columns_of(text, table)
    evaluate(text, pa.RecordBatch.from_pylist([], schema=table.schema), table)


def _column(node: Any, table: Table) -> str:
    """The name of the column that a name is of, alone, after its table's own name, or with fields of it after it."""
    return _path(node, table)[0]


def _path(node: Any, table: Table) -> tuple[str, tuple[Step, ...]]:
    """A column, and the steps from there to a field; none if the column itself is meant."""
    from sqlglot import exp

    if isinstance(node, exp.Dot):
        name, steps = _path(node.this, table)
        return name, (*steps, node.expression.name)
    if isinstance(node, exp.Bracket):
        name, steps = _path(node.this, table)
        if table.column(name).type == HEADERS:
            raise OptionError(f"--where: {node.sql()!r}: a header has a name, such as headers.trace")
        return name, (*steps, *(int(index.this) for index in node.expressions))
    parts = [part.name for part in node.parts]
    if len(parts) > 1 and parts[0] == table.name.rsplit(".", 1)[-1] and parts[0] not in table.names:
        parts = parts[1:]
    column = table.column(parts[0])
    if len(parts) > 1 and not has_fields(column):
        raise OptionError(f"--where: {node.sql()!r}: neither {table.name} nor its columns have such a part")
    return column.name, tuple(parts[1:])


def _is_path(node: Any) -> bool:
    """Whether an expression is a column or a field of one."""
    from sqlglot import exp

    while isinstance(node, exp.Dot | exp.Bracket):
        if isinstance(node, exp.Bracket) and not all(
            isinstance(index, exp.Literal) and not index.is_string and index.this.isdecimal()
            for index in node.expressions
        ):
            return False
        node = node.this
    return isinstance(node, exp.Column)


def evaluate(text: str, batch: pa.RecordBatch, table: Table) -> pa.Array:
    """For each row whether the expression holds (null where SQL says unknown)."""
    try:
        result = _Evaluator(text, batch, table).value(_parse(text))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError(f"--where {text!r}: {_explain_mismatch(str(error))}") from None
    except OverflowError:
        raise OptionError(f"--where {text!r}: a number that is larger than any column holds") from None
    except pa.ArrowInvalid as error:
        raise OptionError(f"--where {text!r}: {str(error).splitlines()[0]}") from None
    if isinstance(result, pa.Scalar):
        result = pa.repeat(result, batch.num_rows)
    if pa.types.is_null(result.type):
        result = result.cast(pa.bool_())
    if not pa.types.is_boolean(result.type):
        raise OptionError(f"--where {text!r}: a condition expected, this is of type {result.type}")
    return result


def _explain_mismatch(message: str) -> str:
    """What Arrow says of operands that do not go together, in SQL's words."""
    match = re.search(r"Function '(\w+)' has no kernel matching input types \((.*)\)", message)
    if match is None:
        return message.splitlines()[0]
    name = _WORDS.get(match[1], match[1].removesuffix("_checked"))
    types = " and ".join(_type_words(match[2]))
    return f"{name} cannot be used with {types}"


def _type_words(text: str) -> list[str]:
    """Arrow's types of operands as a person calls them."""
    while (flat := re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", text)) != text:  # what they consist of
        text = flat
    return [_TYPES.get(word, f"the type {word}") for word in text.split(", ")]


class _Evaluator:
    def __init__(self, text: str, batch: pa.RecordBatch, table: Table) -> None:
        self.text, self.batch, self.table = text, batch, table
        #: Fields of values that were looked up: text, unless they are compared with numbers.
        self.fields: list[Any] = []

    def value(self, node: Any) -> Any:
        from sqlglot import exp

        if _is_path(node):
            return self._field(*_path(node, self.table))
        # A part that is not looked at (a negation, a subquery) would change the meaning in silence.
        if any(node.args[name] for name in node.args.keys() - _PARTS.get(type(node).__name__, {"this", "expression"})):
            raise self.unsupported(node)
        if isinstance(node, exp.Paren):
            return self.value(node.this)
        if isinstance(node, exp.Literal):
            return pa.scalar(node.this) if node.is_string else _number(node.this)
        if isinstance(node, exp.Boolean):
            return pa.scalar(bool(node.this))
        if isinstance(node, exp.Null):
            return pa.scalar(None)
        if isinstance(node, exp.Neg):
            return pc.negate(self.value(node.this))
        if isinstance(node, exp.Not):
            return pc.invert(self.value(node.this))
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Between):
            this = self.value(node.this)
            low = self.compare(pc.greater_equal, this, self.value(node.args["low"]))
            return pc.and_kleene(low, self.compare(pc.less_equal, this, self.value(node.args["high"])))
        if isinstance(node, exp.Like | exp.ILike):
            ignore_case = isinstance(node, exp.ILike)
            matches = pc.match_like(self.value(node.this), self.text_of(node.expression), ignore_case=ignore_case)
            return pc.invert(matches) if node.args.get("negate") else matches
        if isinstance(node, exp.Length):
            return pc.binary_length(self.value(node.this))
        pattern = _PATTERNS.get(type(node).__name__)
        if pattern is not None:
            return pattern(self.value(node.this), self.text_of(node.expression))
        if isinstance(node, exp.HexString):
            return pa.scalar(_hex(node.this), pa.binary())
        binary = _BINARY.get(type(node).__name__)
        if binary is not None:
            return binary(self, self.value(node.this), self.value(node.expression))
        raise self.unsupported(node)

    def _field(self, name: str, steps: tuple[Step, ...]) -> Any:
        column = self.batch.column(name)
        if not steps:
            return column
        values = field_of(column, steps)
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            self.fields.append(values)
        return values

    def numbers(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Two operands; a field next to a number, a truth value or another field in arithmetic is what its text says."""
        is_field = [any(each is field for field in self.fields) for each in (left, right)]
        if is_field[0] and not is_field[1]:
            return _like(left, right.type), right
        if is_field[1] and not is_field[0]:
            return left, _like(right, left.type)
        return left, right

    def unsupported(self, node: Any) -> OptionError:
        supported = "comparison, and, or, not, in, between, like, rlike, is null, contains(), startswith(), endswith(), length(), + - * / %"
        return OptionError(f"--where {self.text!r}: {node.sql()!r} is not supported; these are: {supported}")

    def text_of(self, node: Any) -> str:
        """A pattern: text that is in the expression itself."""
        from sqlglot import exp

        if not isinstance(node, exp.Literal) or not node.is_string:
            raise OptionError(f"--where {self.text!r}: {node.sql()!r}: text in quotes expected")
        return str(node.this)

    def _is(self, node: Any) -> Any:
        from sqlglot import exp

        if isinstance(node.expression, exp.Null):
            return pc.is_null(self.value(node.this))
        if not isinstance(node.expression, exp.Boolean):
            raise self.unsupported(node)
        return pc.fill_null(pc.equal(self.value(node.this), self.value(node.expression)), False)

    def _in(self, node: Any) -> Any:
        this = self.value(node.this)
        result = pa.repeat(pa.scalar(False), self.batch.num_rows)
        for option in node.expressions:
            result = pc.or_kleene(result, self.compare(pc.equal, this, self.value(option)))
        return result

    def compare(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        for number, field in ((left, right), (right, left)):
            if _is_large(number) and any(field is each for each in self.fields):
                exact = _whole_numbers(field)
                near, large = _like(field, pa.float64()), pa.scalar(float(number.as_py()))
                if number is left:
                    return pc.if_else(exact.is_valid(), function(number.cast(LARGE), exact), function(large, near))
                return pc.if_else(exact.is_valid(), function(exact, number.cast(LARGE)), function(near, large))
        if LARGE in (left.type, right.type):
            raise OverflowError
        return function(*_alike(*self.numbers(left, right)))


def _like(field: Any, type: pa.DataType) -> Any:
    """A field as a value of a type: where its text is no number, it is null next to numbers."""
    if pa.types.is_boolean(type):
        return pc.if_else(
            pc.is_in(field, pa.array(["true", "false"])), pc.equal(field, "true"), pa.scalar(None, pa.bool_())
        )
    if not (pa.types.is_integer(type) or pa.types.is_floating(type)):
        return field
    text = field.cast(pa.string()) if pa.types.is_binary(field.type) else field
    return pc.if_else(pc.match_substring_regex(text, _NUMBER), text, pa.scalar(None, pa.string())).cast(pa.float64())


def _is_large(number: Any) -> bool:
    """Whether an operand is a whole number that a float does not hold exactly."""
    is_number = isinstance(number, pa.Scalar) and (pa.types.is_integer(number.type) or number.type == LARGE)
    return is_number and number.is_valid and abs(number.as_py()) >= EXACT


def _whole_numbers(field: Any) -> Any:
    """A field as large whole numbers; null where its text is anything else."""
    text = field.cast(pa.string()) if pa.types.is_binary(field.type) else field
    is_whole = pc.match_substring_regex(text, r"^-?[0-9]{1,38}$")
    return pc.if_else(is_whole, text, pa.scalar(None, pa.string())).cast(LARGE)


#: Whole numbers below this one are exact as floats; others are compared as decimals.
EXACT, LARGE = 1 << 53, pa.decimal128(38, 0)
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


def _number(text: str) -> pa.Scalar:
    try:
        number = int(text)
    except ValueError:
        return pa.scalar(float(text))
    if number >= 10**LARGE.precision:
        raise OverflowError
    return pa.scalar(number) if number < 1 << 63 else pa.scalar(Decimal(number), LARGE)


def _hex(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
    except ValueError:
        raise OptionError(f"--where: x'{digits}': hexadecimal digits expected") from None


def _remainder(left: Any, right: Any) -> Any:
    """What division leaves, with the sign of the dividend as in SQL."""
    return pc.subtract_checked(
        left, pc.multiply_checked(pc.trunc(pc.divide_checked(left, right)).cast(left.type), right)
    )


def _quotient(left: Any, right: Any) -> Any:
    """A quotient with its fraction, as Spark's `/` gives it."""
    return pc.divide_checked(left.cast(pa.float64()), right.cast(pa.float64()))


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands of types that Arrow compares: text becomes bytes next to a binary, an instant next to a timestamp."""
    if pa.types.is_string(right.type) and isinstance(right, pa.Scalar):
        if pa.types.is_binary(left.type):
            return left, pa.scalar(right.as_py().encode(), left.type)
        if pa.types.is_timestamp(left.type):
            return left, pa.scalar(parse_time(right.as_py()), pa.int64()).cast(left.type)
    elif isinstance(left, pa.Scalar) and pa.types.is_string(left.type):
        second, first = _alike(right, left)
        return first, second
    return left, right


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[_Evaluator, Any, Any], Any]:
    return lambda evaluator, left, right: evaluator.compare(function, left, right)


def _plain(function: Callable[[Any, Any], Any]) -> Callable[[_Evaluator, Any, Any], Any]:
    return lambda evaluator, left, right: function(*evaluator.numbers(left, right))


_WORDS = {
    "equal": "=",
    "not_equal": "<>",
    "greater": ">",
    "greater_equal": ">=",
    "less": "<",
    "less_equal": "<=",
    "add_checked": "+",
    "subtract_checked": "-",
    "multiply_checked": "*",
    "divide_checked": "/",
    "negate": "-",
    "and_kleene": "AND",
    "or_kleene": "OR",
    "invert": "NOT",
    "binary_length": "length()",
    "match_like": "LIKE",
    "match_substring": "contains()",
    "match_substring_regex": "RLIKE",
    "starts_with": "startswith()",
    "ends_with": "endswith()",
}
_TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float", "double"), "a number"),
    **dict.fromkeys(("string", "large_string"), "text"),
    **dict.fromkeys(("binary", "large_binary"), "bytes"),
    "bool": "a truth value",
    "timestamp": "a time",
    "list": "a list",
    "map": "a map",
    "struct": "a structure",
    "null": "NULL",
}

_PARTS = {
    "Column": {"this", "table"},
    "Literal": {"this", "is_string"},
    "In": {"this", "expressions"},
    "Between": {"this", "low", "high"},
    "Like": {"this", "expression", "negate"},
    "ILike": {"this", "expression", "negate"},
    "Div": {"this", "expression", "typed", "safe"},
}

_PATTERNS: dict[str, Callable[[Any, str], Any]] = {
    "Contains": pc.match_substring,
    "StartsWith": pc.starts_with,
    "EndsWith": pc.ends_with,
    "RegexpLike": pc.match_substring_regex,
}

_BINARY: dict[str, Callable[[_Evaluator, Any, Any], Any]] = {
    "EQ": _comparison(pc.equal),
    "NEQ": _comparison(pc.not_equal),
    "GT": _comparison(pc.greater),
    "GTE": _comparison(pc.greater_equal),
    "LT": _comparison(pc.less),
    "LTE": _comparison(pc.less_equal),
    "And": _plain(pc.and_kleene),
    "Or": _plain(pc.or_kleene),
    "Add": _plain(pc.add_checked),
    "Sub": _plain(pc.subtract_checked),
    "Mul": _plain(pc.multiply_checked),
    "Div": _plain(_quotient),
    "Mod": _plain(_remainder),
}
