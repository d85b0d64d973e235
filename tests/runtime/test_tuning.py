"""`compile(..., tune=True)`, and the short way of tiny and of short layers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from unstride import openvino, threads
from unstride.errors import AttributeValueError, DTypeError, ShapeError
from unstride.runtime import pool, tuning
from unstride.runtime.execute import Layer
from unstride.runtime.program import program

RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, (1, 64, 24, 24)).astype(np.float32)
W = RNG.integers(-3, 4, (64, 64, 4, 4)).astype(np.float32)
UP = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1])


def test_a_tuned_layer_computes_the_same() -> None:
    plain, tuned = UP.compile(W), UP.compile(W, tune=True)
    assert np.array_equal(tuned(X), plain(X))  # integers are exact with every kernel
    winograd = [f"winograd F(3,2)xF({outputs},2){form}" for outputs in (3, 4) for form in ("", " of whole maps")]
    assert tuned.algorithm(X.shape) in ("direct", "direct, in bands", "direct, clipped", *winograd)


def test_the_winner_is_kept_and_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[list[str]] = []

    def slowest_first(weights: object, problem: object, threads: int, kinds: list[str]) -> str:
        timed.append(kinds)
        return "direct"

    monkeypatch.setattr(tuning, "_fastest", slowest_first)
    odd = RNG.standard_normal((1, 64, 23, 25)).astype(np.float32)
    first = UP.compile(W, tune=True)
    first(odd)
    first(odd)
    assert len(timed) <= 1  # none, if an earlier run on this machine left its answer
    first._weights.program.kinds.clear()
    first._weights.program._steps.clear()
    again = UP.compile(W, tune=True)
    again(odd)
    assert len(timed) <= 1


def choosing(monkeypatch: pytest.MonkeyPatch, fastest: Callable[[int], str]) -> Layer:
    """A layer that tries two kernels when it meets a size; `fastest` is told the number of threads."""
    monkeypatch.setattr(tuning, "_candidates", lambda *_: ["direct", "winograd"])
    monkeypatch.setattr(tuning, "_remembered", lambda *_: None)
    monkeypatch.setattr(tuning, "_fastest", lambda weights, problem, threads, kinds: fastest(threads))
    program.cache_clear()
    return UP.compile(W, tune=True)


def test_of_two_threads_that_tune_at_once_the_first_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the bits of a result would depend on the number of threads, or change from call to call."""
    both, done = threading.Barrier(2), threading.Event()

    def fastest(threads: int) -> str:
        both.wait(10)
        if threads == 2:
            done.wait(10)
        return "direct" if threads == 1 else "winograd"

    layer = choosing(monkeypatch, fastest)

    def work(count: int) -> None:
        with threads(count):
            layer(X)
        done.set()

    workers = [threading.Thread(target=work, args=(count,)) for count in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {step.kernel.plan.algorithm for step in layer._known[X.shape].steps.values()} == {"direct"}
    assert len(layer._known[X.shape].steps) == 2


def test_who_asks_first_for_the_algorithm_gets_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = choosing(monkeypatch, lambda _: "direct")
    assert UP.compile(W).algorithm(X.shape).startswith("winograd")
    assert layer.algorithm(X.shape) == "direct"
    layer(X)
    assert layer.algorithm(X.shape) == "direct"


def test_others_are_not_changed_by_it() -> None:
    tuned, plain = UP.compile(W, tune=True), UP.compile(W)
    assert tuned._weights.program is not plain._weights.program


@pytest.mark.parametrize("value", [1, "yes", None])
def test_tune_is_true_or_false(value: object) -> None:
    with pytest.raises(AttributeValueError, match="tune"):
        UP.compile(W, tune=value)  # type: ignore[arg-type]


class TestTinyLayers:
    """The first call prepares, the second takes the short way."""

    w = RNG.integers(-3, 4, (16, 3, 3)).astype(np.float32)
    x = RNG.integers(-3, 4, (2, 16, 5)).astype(np.float32)
    layer = openvino.ConvolutionBackpropData([1], [1], [1]).compile(w)
    y = layer(x)

    def test_is_taken_and_agrees(self) -> None:
        assert self.x.shape in self.layer._quick
        assert np.array_equal(self.layer(self.x), self.y)
        out = np.full_like(self.y, np.nan)
        assert self.layer(self.x, out=out) is out
        assert np.array_equal(out, self.y)

    def test_other_strides_and_types_get_the_long_way(self) -> None:
        assert np.array_equal(self.layer(np.asfortranarray(self.x)), self.y)
        wide = np.full((*self.y.shape[:-1], 2 * self.y.shape[-1]), np.nan, np.float32)
        self.layer(self.x, out=wide[..., ::2])
        assert np.array_equal(wide[..., ::2], self.y)
        assert np.isnan(wide[..., 1::2]).all()
        with pytest.raises(DTypeError):
            self.layer(self.x.astype(np.float64))

    def test_bad_out_is_refused_as_ever(self) -> None:
        with pytest.raises(ShapeError):
            self.layer(self.x, out=np.empty((2, 3, 6), np.float32))
        with pytest.raises(DTypeError):
            self.layer(self.x, out=np.empty(self.y.shape, np.float64))
        frozen = np.empty_like(self.y)
        frozen.flags.writeable = False
        with pytest.raises(AttributeValueError, match="read-only"):
            self.layer(self.x, out=frozen)
        room = np.zeros(self.x.size, np.float32)
        with pytest.raises(AttributeValueError, match="memory of an input"):
            self.layer(room.reshape(self.x.shape), out=room[: self.y.size].reshape(self.y.shape))

    def test_many_threads_at_once(self) -> None:
        wrong: list[int] = []

        def work() -> None:
            wrong.extend(1 for _ in range(500) if not np.array_equal(self.layer(self.x), self.y))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestShortLayers:
    """So short that several threads pay off and preparing a call does not."""

    w = RNG.integers(-3, 4, (64, 1, 4, 4)).astype(np.float32)
    x = RNG.integers(-3, 4, (1, 64, 14, 14)).astype(np.float32)
    layer = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1]).compile(w)

    def test_the_short_way_belongs_to_a_number_of_threads(self) -> None:
        with pool.threads(2):
            y = self.layer(self.x)
            quick = self.layer._quick[self.x.shape]
            assert quick.threads == 2
            with mock.patch.object(quick, "run", wraps=quick.run) as taken:
                assert np.array_equal(self.layer(self.x), y)
                assert taken.call_count == 1
                with pool.threads(1):
                    assert np.array_equal(self.layer(self.x), y)
                assert taken.call_count == 1

    def test_not_on_threads_of_another_library(self) -> None:
        asked: list[int] = []

        def team(task: int, job: int, tasks: int, threads: int, short: bool) -> None:
            asked.append(tasks)
            with pool.borrowed(None):
                pool.parallel(task, job, tasks, threads, short)

        with pool.threads(2):
            y = self.layer(self.x)
            with pool.borrowed(team):
                assert np.array_equal(self.layer(self.x), y)
        assert len(asked) == 1
