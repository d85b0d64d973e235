"""How many parts an ONNX message has, counted on the wire before protobuf builds an object for each of them.

Two bytes can stand for an empty message that takes a hundred in memory; a bound on their number keeps files small.
"""

from __future__ import annotations

from unstride.errors import FormatError

__all__ = ["MAX_FIELDS", "check_size"]

MAX_FIELDS = 400_000

Schema = dict[int, "Schema"]

# Field numbers of onnx.proto that lead to messages which can hold many others; all other fields count as one each.
_DIMENSION: Schema = {}
_SHAPE: Schema = {1: _DIMENSION}
_TENSOR_TYPE: Schema = {2: _SHAPE}
_TYPE: Schema = {1: _TENSOR_TYPE}
_VALUE_INFO: Schema = {2: _TYPE}
_TENSOR: Schema = {13: {}}
_GRAPH: Schema = {5: _TENSOR, 11: _VALUE_INFO, 12: _VALUE_INFO, 13: _VALUE_INFO, 14: {}}
_ATTRIBUTE: Schema = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH}
_NODE: Schema = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE
_FUNCTION: Schema = {7: _NODE, 11: _ATTRIBUTE}
_MODEL: Schema = {7: _GRAPH, 8: {}, 14: {}, 20: {1: _GRAPH, 2: _GRAPH}, 25: _FUNCTION}


def check_size(data: bytes, file: str) -> None:
    """A FormatError if the message has more than MAX_FIELDS fields; a broken one is left for the parser to name."""
    pending: list[tuple[int, int, Schema]] = [(0, len(data), _MODEL)]
    count = 0
    while pending:
        position, end, schema = pending.pop()
        while position < end:
            count += 1
            if count > MAX_FIELDS:
                raise FormatError(file, f"more than {MAX_FIELDS} fields", "is larger than any model that is read")
            # Nearly all numbers are one byte, and a call for each would take most of the time.
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = _varint(data, position - 1, end)
            kind = tag & 7
            if kind == 2:
                size = data[position] if position < end else 0x80
                if size < 0x80:
                    position += 1
                else:
                    size, position = _varint(data, position, end)
                inner = schema.get(tag >> 3)
                if inner is not None and 0 < size <= end - position:
                    pending.append((position, position + size, inner))
                position += size
            elif kind == 0:
                _, position = _varint(data, position, end)
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
            else:
                return


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """(value, position behind it); at the end of the data the value is 0."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, position
