"""What the arguments of kernels are. Written as the annotations of a kernel, they are the signature it is compiled for.

`U8` is an array of uint8 that is only read, `OutU8` one that is written; `I64x2` has two dimensions. Items are next to each other unless
the name has `Any`: a kernel with such arguments is compiled twice, for arrays without gaps and for all others. A tuple of arrays
says how many it has: `Annotated[tuple[I64, ...], 13]`. To mypy everything is Any: kernels count in the numbers of the machine.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple


class Array(NamedTuple):
    """An array as a kernel takes it."""

    items: str
    dimensions: int = 1
    written: bool = False
    contiguous: bool = True


class Scalar(NamedTuple):
    """A number of 64 bits (code `i`) or a truth value (`b`)."""

    code: str


Int = Annotated[Any, Scalar("i")]
Bool = Annotated[Any, Scalar("b")]

U8 = Annotated[Any, Array("uint8")]
I8 = Annotated[Any, Array("int8")]
I16 = Annotated[Any, Array("int16")]
I32 = Annotated[Any, Array("int32")]
I64 = Annotated[Any, Array("int64")]
Bools = Annotated[Any, Array("bool")]
U8x2 = Annotated[Any, Array("uint8", 2)]
I64x2 = Annotated[Any, Array("int64", 2)]
AnyI64 = Annotated[Any, Array("int64", contiguous=False)]
AnyI64x2 = Annotated[Any, Array("int64", 2, contiguous=False)]

OutU8 = Annotated[Any, Array("uint8", written=True)]
OutI8 = Annotated[Any, Array("int8", written=True)]
OutI16 = Annotated[Any, Array("int16", written=True)]
OutI32 = Annotated[Any, Array("int32", written=True)]
OutI64 = Annotated[Any, Array("int64", written=True)]
OutBools = Annotated[Any, Array("bool", written=True)]
OutI64x2 = Annotated[Any, Array("int64", 2, written=True)]
