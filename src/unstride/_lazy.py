"""A property that is computed when it is first asked for, and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["lazy"]

T = TypeVar("T")


class lazy(Generic[T]):  # a name like that of `property`
    """`functools.cached_property` without a lock.

    Before Python 3.12 that one holds a lock of all instances while it computes: a child forked meanwhile would wait for
    it for ever. Here, of two threads that compute at the same time, the first one's value is used by both.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | lazy[T]:
        if instance is None:
            return self
        value: T = vars(instance).setdefault(self._name, self._make(instance))
        return value
