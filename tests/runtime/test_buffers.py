"""Arrays at the door: views without copies, owners kept alive, clear refusals, safe results."""

from __future__ import annotations

import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

from unstride.errors import AttributeValueError, DTypeError, ShapeError, SizeLimitError
from unstride.runtime import buffers
from unstride.runtime.buffers import address, as_input, contiguous, dtype_name, numpy_dtype, result_buffer
from unstride.runtime.dlpack import view_of_dlpack

DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", DTYPES)
def test_names_of_types(name: str) -> None:
    array = np.zeros(2, DTYPES[name])
    assert dtype_name(array) == name
    assert numpy_dtype(name) == array.dtype


NAMELESS = [np.int32, np.complex64, np.bool_, object, "U1", "datetime64[s]", ml_dtypes.float8_e5m2, ">f4"]


@pytest.mark.parametrize("dtype", NAMELESS)
def test_types_without_a_name(dtype: object) -> None:
    with pytest.raises(DTypeError, match=r"^filter: .*float32"):
        dtype_name(np.zeros(2, dtype), "filter")  # type: ignore[call-overload]


def test_numpy_arrays_pass_as_they_are() -> None:
    for array in (np.zeros((2, 3)), np.zeros((2, 3))[::-1, ::2], np.broadcast_to(np.float32(1), (4, 4)), np.zeros(0)):
        assert as_input(array, "data") is array


def test_foreign_byte_order_is_copied() -> None:
    big = np.arange(6, dtype=">f4").reshape(2, 3)
    native = as_input(big, "data")
    assert native.dtype == np.float32
    assert (native == big).all()


def test_subclasses_become_plain_views() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    plain = as_input(matrix, "data")
    assert type(plain) is np.ndarray
    assert np.shares_memory(plain, matrix)


def test_the_array_interface() -> None:
    class Holder:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array
            self.__array_interface__ = array.__array_interface__

    array = np.arange(6.0)
    view = as_input(Holder(array), "data")
    assert np.shares_memory(view, array)


@pytest.mark.parametrize("thing", [[1.0, 2.0], 3.0, None, "text", b"bytes", range(3), np.float32(1), object()])
def test_things_that_are_no_arrays(thing: object) -> None:
    if isinstance(thing, np.generic):  # a NumPy scalar has the array interface: it is an array without axes
        assert as_input(thing, "data").shape == ()
        return
    with pytest.raises(DTypeError, match=r"^data: .*__dlpack__"):
        as_input(thing, "data")


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(DTypeError, match="mask"):
        as_input(np.ma.ones(3), "data")


# --- DLPack ---------------------------------------------------------------------------------------------------------


class Exporter:
    """A NumPy array that shows only its DLPack side, with or without versions."""

    def __init__(self, array: np.ndarray, versions: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.versions, self.device = array, versions, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: object) -> object:
        if options and not self.versions:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.int64, np.uint16])
def test_dlpack_views_share_memory(dtype: type, versions: bool) -> None:
    for array in (np.arange(24, dtype=dtype).reshape(2, 3, 4), np.arange(24, dtype=dtype).reshape(4, 6)[::2, ::-3]):
        view = as_input(Exporter(array, versions), "data")
        assert view.dtype == array.dtype
        assert view.strides == array.strides
        assert (view == array).all()
        assert address(view) == address(array)


def test_dlpack_of_empty_and_scalar() -> None:
    assert as_input(Exporter(np.zeros((0, 3), np.float32)), "data").shape == (0, 3)
    assert as_input(Exporter(np.array(2.5, np.float32)), "data") == 2.5


def test_dlpack_keeps_read_only() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert not as_input(Exporter(array), "data").flags.writeable
    with pytest.raises(DTypeError, match="refuses"):  # without versions there is no way to say read-only
        as_input(Exporter(array, versions=False), "data")


def test_a_view_keeps_its_owner_alive_and_only_as_long() -> None:
    class Tracked(np.ndarray):
        pass

    array = np.arange(1000.0).view(Tracked)
    gone = weakref.ref(array)
    view = view_of_dlpack(array, "data")
    part = view[10:20]
    del array, view
    gc.collect()
    assert gone() is not None
    assert part[0] == 10.0
    del part
    gc.collect()
    assert gone() is None


def test_many_views_leak_nothing() -> None:
    array = np.zeros(1 << 20, np.float32)
    references = sys.getrefcount(array)
    for _ in range(1000):
        as_input(Exporter(array), "data")
    assert sys.getrefcount(array) == references


def test_memory_of_another_device_is_refused() -> None:
    with pytest.raises(DTypeError, match="device"):
        as_input(Exporter(np.zeros(3, np.float32), device=(2, 0)), "data")


def test_types_dlpack_knows_and_numpy_does_not() -> None:
    with pytest.raises(DTypeError, match="type code"):
        as_input(Exporter(np.zeros(3, np.complex64)), "data")


def test_a_capsule_that_is_none() -> None:
    class Liar:
        def __dlpack__(self, **options: object) -> object:
            return 42

    with pytest.raises(DTypeError, match="capsule"):
        as_input(Liar(), "data")


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    names = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64"}
    for dtype, name in names.items():
        tensor = torch.arange(12, dtype=dtype).reshape(3, 4).t()
        view = as_input(tensor, "data")
        assert dtype_name(view) == name
        assert view.tolist() == tensor.tolist()
        tensor[1, 2] = 77
        assert view[1, 2] == 77
    temporary = as_input(torch.full((1000,), 3.0, dtype=torch.bfloat16), "data")
    gc.collect()
    assert (temporary == 3).all()
    with pytest.raises(DTypeError, match=r"unstride\.bridges\.torch"):
        as_input(torch.ones(2, requires_grad=True), "data")


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    view = as_input(jnp.full((2, 3), 1.5, jnp.bfloat16), "data")
    assert dtype_name(view) == "bf16"
    assert (view == 1.5).all()


# --- addresses and copies -------------------------------------------------------------------------------------------


def test_addresses() -> None:
    base = np.zeros((4, 6), np.float32)
    views = base[1:, 2:], base[::-1], base.T, np.broadcast_to(base, (2, 4, 6))
    for array in (base, *views, np.zeros(0), base.astype(ml_dtypes.bfloat16)):
        assert address(array) == array.ctypes.data


def test_only_what_must_be_copied_is() -> None:
    array = np.arange(24.0).reshape(4, 6)
    assert contiguous(array) is array
    rows = array[1:3]
    assert contiguous(rows) is rows
    for odd in (array.T, array[:, ::2], array[::-1], np.broadcast_to(np.float64(1), (3, 3))):
        copy = contiguous(odd)
        assert copy.flags.c_contiguous
        assert not np.shares_memory(copy, odd)
        assert (copy == odd).all()
    shifted = np.frombuffer(bytearray(25), np.uint8)[1:].view(np.float64)
    assert contiguous(shifted).flags.aligned


# --- results --------------------------------------------------------------------------------------------------------


def test_a_result_is_made_or_taken() -> None:
    fresh = result_buffer((2, 3), "bf16", None, [])
    assert (fresh.shape, fresh.dtype) == ((2, 3), ml_dtypes.bfloat16)
    for out in (np.empty((2, 3), np.float32), np.empty((3, 2), np.float32).T, np.empty((4, 9), np.float32)[::-2, ::3]):
        assert result_buffer((2, 3), "f32", out, [np.zeros(5)]) is out


def _read_only() -> np.ndarray:
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ([[0.0] * 3] * 2, DTypeError),
        (np.ma.zeros((2, 3), np.float32), DTypeError),
        (np.zeros((2, 3), np.float64), DTypeError),
        (np.zeros((2, 3), ">f4"), DTypeError),
        (np.zeros((3, 2), np.float32), ShapeError),
        (np.zeros((2, 3, 1), np.float32), ShapeError),
        (_read_only(), AttributeValueError),
        (np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 3), (0, 4)), AttributeValueError),
        (np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 3), (8, 4)), AttributeValueError),
    ],
    ids=["list", "masked", "type", "byte order", "shape", "rank", "read-only", "stride 0", "overlapping rows"],
)
def test_results_that_do_not_fit(out: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^out: "):
        result_buffer((2, 3), "f32", out, [])


def test_a_result_must_not_touch_an_input() -> None:
    base = np.zeros(100, np.float32)
    x = base[:40]
    with pytest.raises(AttributeValueError, match=r"^out: .*memory of an input"):
        result_buffer((10,), "f32", base[30:40], [np.zeros(3), x])
    beside = base[40:50]
    assert result_buffer((10,), "f32", beside, [x]) is beside
    even, odd = base[::2], base[1::2]  # the bounds overlap, the elements do not
    assert result_buffer((50,), "f32", even, [odd]) is even
    with pytest.raises(AttributeValueError):
        result_buffer((50,), "f32", even, [base[::4]])
    empty = base[:0]
    assert result_buffer((0,), "f32", empty, [base]) is empty


def test_overlaps_too_hard_to_decide_count_as_overlaps() -> None:
    """The exact answer for these two takes minutes; the memory is never touched."""
    base = np.zeros(192_163_377, np.int8)
    one = np.lib.stride_tricks.as_strided(base, (1049, 1049, 1049), (36_674, 61_119, 85_569))
    other = np.lib.stride_tricks.as_strided(base[64_023_025:], (1049, 1049, 1), (12_223, 12_224, 1))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(one, other, max_work=buffers._OVERLAP_WORK)
    assert buffers._overlap(one, other)


@pytest.mark.parametrize("shape", [(2**40, 2**3), (2**31, 2**31, 2**10)])
def test_results_too_large(shape: tuple[int, ...]) -> None:
    with pytest.raises(SizeLimitError, match="bytes"):
        result_buffer(shape, "f64", None, [])


class _Meanwhile(str):
    """A name whose comparison lets another thread meet its first bfloat16 array."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if other == "f32":
            buffers.dtype_name(np.zeros(1, ml_dtypes.bfloat16))
        return str.__eq__(self, other)


def test_types_may_be_met_while_others_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_NAMES", {k: v for k, v in buffers._NAMES.items() if v != "bf16"})
    assert buffers.numpy_dtype.__wrapped__(_Meanwhile("f64")) == np.float64
