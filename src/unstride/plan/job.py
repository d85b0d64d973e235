"""The layout of the integer tables that a plan hands to generated code.

Machine code is generated once per family; what differs from layer to layer and from size to size is data. Each
table is a run of 64-bit integers; this file is the only place that says which integer means what, and both sides,
the planner that writes and the generator that reads, look here.
"""

from __future__ import annotations

from enum import IntEnum, auto, unique

__all__ = ["X_RANGES", "Job", "Outer", "Pack", "PackPanel", "Panel", "TapRange", "VRange", "XRange"]

X_RANGES = 3


class _Field(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


@unique
class Job(_Field):
    """One launch: pointers, then geometry. Offsets and strides count elements, OFFSET_* count bytes."""

    # addresses that differ from call to call come first, to be written in one stroke
    SOURCE = auto()
    RESULT = auto()
    SCRATCH = auto()
    FLAGS = auto()  # one integer per task: Winograd sets it for a unit it leaves, direct then runs only those; or 0
    WEIGHTS = auto()
    BIAS = auto()
    REST = auto()  # the padded bias after the activation: what a result without taps is
    SLOPE_BITS = auto()  # leaky_relu's slope, as the bits of a double
    EXACT_BITS = auto()  # likewise, up to which magnitude Winograd is exact on integers; infinite if weights are none
    SCRATCH_PER_SLOT = auto()
    PLAN = auto()  # address of the plan's tables
    SIZES = auto()  # address of the tables that depend on sizes
    # where tables start, in integers from PLAN
    PANELS = auto()
    INNER_TAPS = auto()
    OUTER_TAPS = auto()
    PLANES = auto()
    OUTER_PHASES = auto()
    # where tables start, in integers from SIZES
    X_RANGES = auto()
    V_RANGES = auto()
    OUTER_AXES = auto()
    PANEL_BLOCKS = auto()
    TAP_RANGES = auto()
    # the work grid
    IMAGES = auto()
    IMAGES_PER_UNIT = auto()
    N_BLOCKS = auto()
    P_BLOCKS = auto()
    V_UNIT = auto()  # at most
    V_BLOCKS = auto()
    V_STARTS = auto()  # where in the sizes the first positions of the blocks are, and the end
    X_LOW = auto()
    X_HIGH = auto()
    X_UNIT = auto()
    X_BLOCKS = auto()
    OUTER_COUNT = auto()
    OUTER_POSITIONS = auto()  # or blocks of them
    # the source side
    SOURCE_V_STEP = auto()
    SOURCE_X_STEP = auto()
    SOURCE_V_FIRST = auto()
    SOURCE_X_FIRST = auto()
    SOURCE_V_SPAN = auto()
    SOURCE_X_SPAN = auto()
    SOURCE_V_SIZE = auto()
    SOURCE_X_SIZE = auto()
    SOURCE_N_STRIDE = auto()
    SOURCE_V_STRIDE = auto()
    SOURCE_X_STRIDE = auto()
    SOURCE_C_STRIDE = auto()
    CHANNELS = auto()
    PIXEL_PITCH = auto()
    PLANE_COUNT = auto()
    IN_PLACE = auto()  # 1 if boxes without padding are read where they lie
    # the result side
    RESULT_V_STEP = auto()
    RESULT_X_STEP = auto()
    RESULT_V_REACH = auto()  # result rows, from a position's first on, that its phases can touch
    RESULT_X_REACH = auto()
    RESULT_V_BEGIN = auto()
    RESULT_X_BEGIN = auto()
    RESULT_V_SIZE = auto()
    RESULT_X_SIZE = auto()
    RESULT_N_STRIDE = auto()
    RESULT_V_STRIDE = auto()
    RESULT_X_STRIDE = auto()
    RESULT_C_STRIDE = auto()
    STREAM = auto()  # 1 if whole lines of the result go past the caches, which could not keep it
    # scratch of one slot
    OFFSET_STRIP = auto()
    OFFSET_OUT = auto()
    OFFSET_TAPS = auto()
    OFFSET_TRANSFORMED = auto()
    OFFSET_PRODUCTS = auto()
    RESIDUES_V = auto()  # Winograd: into how many planes the source falls, and how many of them have all taps
    RESIDUES_X = auto()
    FULL_V = auto()
    FULL_X = auto()
    TAP_STEP_V = auto()  # source elements from tap to tap, and from plane to plane
    TAP_STEP_X = auto()
    APART_V = auto()
    APART_X = auto()
    SPREAD_V = auto()  # positions from output to output of a tile
    SPREAD_X = auto()
    EXTRA_V = auto()  # source elements that tiles need beside TAP_STEP for every output
    EXTRA_X = auto()
    ALONE_V = auto()  # Winograd of whole maps: 1 if the last tile of a line holds one pixel, which needs two points
    ALONE_X = auto()
    FLAT = auto()  # across x: 1 if the rows of a box are one run of positions
    KERNEL_V = auto()  # overlap-add: the patch of a pixel
    KERNEL_X = auto()
    DILATION_V = auto()
    DILATION_X = auto()
    HOLES = auto()  # 1 if the out strip starts as REST, since not every element of it is computed
    STRIP_TILE_ROWS = auto()  # Winograd: rows of tiles that are filled and transformed at a time
    PANELS_AT_ONCE = auto()  # Winograd: panels whose products are kept at the same time; row by row: of a block
    TASKS_AHEAD = auto()  # how many tasks later the one comes whose source is fetched; 0 if it is not
    OFFSET_RING = auto()  # folded: the products of groups of source rows, and how many elements such a group takes
    RING_ROWS = auto()  # in overlap-add, too: source rows whose products are made at a time
    RING_GROUPS = auto()
    RING_PITCH = auto()
    FETCH_SHARE = auto()  # panels that share fetching what is filled in next, a power of two
    KERNEL_ROWS = auto()  # lines of products of a source row, and of each of its outer phases
    INSIDE_LOW = auto()  # row by row: positions along x whose taps and results all exist
    INSIDE_HIGH = auto()
    STAGE = auto()  # depthwise: positions whose results are stored elsewhere first and then streamed; 0 for none
    AHEAD = auto()  # row by row: 1 if lines of the result are fetched before they are written
    ROTATION = auto()  # spread: the phase of the first result element, where lines start with that and not with phase 0
    OUTER_UNIT = (
        auto()
    )  # spread: positions of the outer axes that a task visits one after the other; how many there are
    OUTER_END = auto()
    RING = auto()  # spread: planes that a channel's strip has room for, and how many of them are new at each position
    RING_STEP = auto()
    RECORD = auto()  # spread: integers that are noted of a position
    CHANNEL_BLOCKS = auto()  # products of tiles: blocks of channels of a pixel, and of one group of them
    GROUP_BLOCKS = auto()
    GROUP_CHANNELS = auto()


@unique
class Fill(_Field):
    """One filling of a result with a pattern that repeats; tasks are stretches of it."""

    RESULT = auto()
    COUNT = auto()
    PATTERN = auto()
    LENGTH = auto()  # elements of the pattern
    TURNS = auto()  # patterns of a task


@unique
class Pack(_Field):
    """One packing of weights; tasks are panels."""

    SOURCE = auto()
    PACKED = auto()
    PANELS = auto()  # addresses of tables
    STEPS = auto()
    COLUMNS = auto()
    NOT_FINITE = auto()  # one integer per panel, set to 1 if it holds an infinity or a NaN
    CHANNELS = auto()
    CHANNEL_STRIDE = auto()
    WINDOW = auto()  # products of tiles: pixels whose channels are taken together


@unique
class PackPanel(_Field):
    PACKED = auto()
    SOURCE = auto()
    STEPS_FIRST = auto()
    STEPS = auto()
    COLUMNS_FIRST = auto()
    COLUMNS = auto()
    WIDTH = auto()


@unique
class Panel(_Field):
    """A vertical slice of the packed weights: up to one tile's width of columns that share their taps."""

    WEIGHTS = auto()  # element offset in the packed weights
    INNER_FIRST = auto()
    INNER_COUNT = auto()
    OUTER_FIRST = auto()
    OUTER_COUNT = auto()
    RUN = auto()  # consecutive source elements per tap
    CHANNEL = auto()  # first source channel of the group
    COLUMN = auto()  # element offset of the first column from the position's own result element
    COLUMNS = auto()
    X_RANGE = auto()
    V_RANGE = auto()
    V_PHASES = auto()  # across x: how many v-phases, from V_RANGE on, are computed together
    OUTER_PHASE = auto()
    BIAS = auto()  # element offset in the padded bias
    VECTORS = auto()  # width of the tile in vectors
    GROUP_WIDTH = auto()  # columns of one pixel of the out strip
    START = auto()  # not 0 on the first panel that feeds the out strip: overlap-add, how many do
    FLUSH = auto()  # 1 on the last panel that feeds the out strip
    FLUSH_CHANNEL = auto()  # first result channel of the out strip
    FLUSH_WIDTH = auto()
    SHORT_V = auto()  # 1 if the panel's phase lacks the first tap along v (Winograd leaves out what vanishes)
    SHORT_X = auto()
    PRODUCTS = auto()  # overlap-add: elements between the products of two pixels


@unique
class XRange(_Field):
    """Positions [FIRST, LAST) at which a panel's columns [LOW, HIGH) live.

    Each panel has X_RANGES of them: the inside, where all columns live, and the two edges, often empty.
    """

    FIRST = auto()
    LAST = auto()
    LOW = auto()
    HIGH = auto()


@unique
class TapRange(_Field):
    """Positions at which an inner tap reads the source."""

    V_LOW = auto()
    V_HIGH = auto()
    X_LOW = auto()
    X_HIGH = auto()


@unique
class VRange(_Field):
    LOW = auto()
    HIGH = auto()
    PHASE = auto()


@unique
class Outer(_Field):
    """One outer axis (any but the last two)."""

    LOW = auto()
    COUNT = auto()
    SOURCE_STEP = auto()
    SOURCE_SIZE = auto()
    SOURCE_STRIDE = auto()
    SOURCE_SHIFT = auto()
    RESULT_STEP = auto()
    RESULT_BEGIN = auto()
    RESULT_SIZE = auto()
    RESULT_STRIDE = auto()
