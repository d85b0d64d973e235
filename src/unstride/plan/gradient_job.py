"""The layout of the integer tables behind a weight gradient: what the planner writes and generated code reads.

Offsets and strides count elements, OFFSET_* and *_BYTES count bytes, table starts count integers from TABLES.
"""

from __future__ import annotations

from enum import IntEnum, auto, unique

__all__ = ["BiasJob", "Block", "Finish", "GradientJob", "Item", "RowAxis", "Segment", "StripPanel", "VectorPanel"]


class _Field(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


@unique
class GradientJob(_Field):
    """One launch."""

    # addresses that differ from call to call come first, to be written in one stroke
    SMALL = auto()
    LARGE = auto()
    RESULT = auto()
    SCRATCH = auto()  # partial sums of all chunks, then one slot per thread
    TABLES = auto()
    SLOT_BYTES = auto()
    PARTIAL_BYTES = auto()
    # one slot: the strip of the small side comes first
    OFFSET_LARGE = auto()
    OFFSET_SUMS = auto()
    OFFSET_ROWS = auto()
    # the work grid
    CHUNKS = auto()  # parts of the positions with sums of their own, added in order at the end
    SUMS = auto()  # elements of one chunk's sums
    BOXES = auto()
    X_BLOCKS = auto()
    X_UNIT = auto()
    ROW_UNIT = auto()
    X_SIZE = auto()
    ROWS = auto()  # rows of positions, over all images
    ROWS_PER_IMAGE = auto()
    SMALL_PIXELS = auto()  # what a strip has room for
    LARGE_PIXELS = auto()
    # the small side: rows come in segments without a gap
    SEGMENT_ROWS = auto()
    SEGMENT_STRIDE = auto()
    SMALL_X_STRIDE = auto()
    SMALL_C_STRIDE = auto()
    # the large side
    LARGE_N_STRIDE = auto()
    LARGE_X_STRIDE = auto()
    LARGE_C_STRIDE = auto()
    LARGE_X_SIZE = auto()
    X_STEP = auto()  # pixels of the large side from one position to the next
    STRIP_STEP = auto()  # the same in its strip
    STRIP_ROW = auto()  # pixels of one row of its strip
    PLACED = auto()  # 1 if a table tells where pixels go in the strip, else they keep their order
    PLACES = auto()
    X_BEGIN = auto()
    X_SPAN = auto()  # pixels that the taps of one position span
    # tables
    ROW_AXES = auto()
    ROW_AXIS_COUNT = auto()
    ROW_TAPS = auto()  # for each tap of the row axes, its shift along each of them
    BLOCKS = auto()
    # the inner loop
    VECTOR_IS_LARGE = auto()  # 1 if vectors run over channels of the large side
    ROW_STEP = auto()  # depthwise: elements of the strip from one tap to the next
    # the end
    FINISH = auto()
    PARTS = auto()
    RESULT_T = auto()
    RESULT_A = auto()
    RESULT_B = auto()


@unique
class Block(_Field):
    """A part of the result: sums[tap][a][b], b along vectors, a along the rows of the inner loop."""

    SMALL_CHANNEL = auto()
    LARGE_CHANNEL = auto()
    SMALL_PANELS = auto()
    SMALL_COUNT = auto()
    LARGE_PANELS = auto()
    LARGE_COUNT = auto()
    VECTOR_PANELS = auto()
    VECTOR_COUNT = auto()
    ITEMS = auto()
    ITEM_COUNT = auto()
    FIRST_TAP = auto()  # taps of the row axes
    LAST_TAP = auto()
    TAPS = auto()  # taps of all axes
    A = auto()
    B = auto()
    PITCH = auto()  # elements from one row of sums to the next
    ROWS_PER_ROW_TAP = auto()
    SUMS = auto()  # where its sums start among those of a chunk
    RESULT = auto()


@unique
class StripPanel(_Field):
    """Channels that lie together in a strip: PITCH elements per pixel, all pixels after those of earlier panels."""

    CHANNEL = auto()
    WIDTH = auto()
    PITCH = auto()
    START = auto()  # the pitches of all earlier panels


@unique
class VectorPanel(_Field):
    START = auto()
    PITCH = auto()
    VECTORS = auto()
    COLUMN = auto()  # first b
    ROW_START = auto()  # added to an item's ROW_START: where depthwise finds the same channels of the other side


@unique
class Item(_Field):
    """Rows of one register tile, for any vector panel."""

    VECTOR_SHIFT = auto()  # pixels
    ROW_START = auto()
    ROW_PITCH = auto()
    ROW_SHIFT = auto()
    ROWS = auto()
    SUMS_ROW = auto()
    SEGMENTS = auto()
    SEGMENT_COUNT = auto()


@unique
class Segment(_Field):
    """Positions at which the same rows of an item exist: those of the taps that fall inside the large side."""

    LOW = auto()
    HIGH = auto()
    ROW = auto()
    ROWS = auto()


@unique
class RowAxis(_Field):
    """An axis other than the last."""

    SIZE = auto()
    STEP = auto()
    LARGE_SIZE = auto()
    LARGE_STRIDE = auto()


@unique
class Finish(_Field):
    """Which axis of the sums [tap][a][b] becomes the innermost one of the result."""

    COPY = auto()
    TAPS_INNERMOST = auto()
    A_INNERMOST = auto()


@unique
class BiasJob(_Field):
    """One sum over all pixels of each channel, see `codegen.gradient_bias`."""

    SOURCE = auto()
    PARTIAL = auto()
    LINE = auto()
    LINES = auto()  # of one task
    TOTAL = auto()
    COUNT = auto()
    SEGMENTS = auto()
