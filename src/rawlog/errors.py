"""The errors that rawlog raises, for `except rawlog.errors.RawlogError`. `rawlog.core.errors` defines them."""

from rawlog.core.errors import (
    AccessError,
    CorruptError,
    DataError,
    EncodeError,
    LimitError,
    OptionError,
    RawlogError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
)

__all__ = [
    "AccessError",
    "CorruptError",
    "DataError",
    "EncodeError",
    "LimitError",
    "OptionError",
    "RawlogError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
]
