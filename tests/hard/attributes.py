"""Hostile attributes: every attribute with every hostile value, then random combinations of several at once.

An operator is made, its call resolved, its shape inferred. Attributes are also left out and misspelled. The answer
must be a legal operator or an error of the package's own tree, within 50 ms of this thread's time (a busy machine must
not count).
"""

from __future__ import annotations

import inspect
import time
import warnings
from random import Random
from typing import Any

from tests.dialects.test_hostile_attributes import HOSTILE, LEGAL, shapes_for
from tests.hard.tally import Tally, main
from unstride.errors import AttributeNameError, RuleWarning, UnstrideError

SECONDS = 0.05
COMBINATIONS = (1_000, 20_000)
_NESTED = [[1, 1], [1, 1]]
VALUES = [*HOSTILE, (), "", [2] * 3, [2] * 40, [1] * 10**5, _NESTED, [[]], -(2**63), [2**64] * 2, float("-inf"), "nan"]


def fault(kind: Any, attributes: dict[str, Any], tries: int = 3) -> str:
    """What is wrong with the answer to these attributes; empty if nothing is. A core that is shared with another
    machine's work may be slow for a while, but not each of several times."""
    start = time.thread_time()
    try:
        operator = kind(**attributes)
        shapes = shapes_for(kind)
        operator.resolve(*shapes)
        operator.infer_shape(*shapes)
    except UnstrideError as error:
        if not str(error).isprintable():
            return f"{_call(kind, attributes)}: an error that cannot be printed"
    except Exception as error:
        return f"{_call(kind, attributes)}: {type(error).__name__}: {error}"
    seconds = time.thread_time() - start
    if seconds <= SECONDS:
        return ""
    return (
        fault(kind, attributes, tries - 1) if tries > 1 else f"{_call(kind, attributes)}: took {1e3 * seconds:.0f} ms"
    )


def unnamed(kind: Any, left: dict[str, Any], name: str, parameter: inspect.Parameter) -> str:
    """What is wrong with the answer to a call without one attribute, if that is required."""
    if parameter.default is not inspect.Parameter.empty:
        return ""
    try:
        kind(**left)
    except AttributeNameError as error:
        return "" if error.field == name and name in str(error) else f"{_call(kind, left)}: {error}"
    return f"{_call(kind, left)}: no error"


def _call(kind: Any, attributes: dict[str, Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}(**{attributes!r:.200})"


def run(tally: Tally, full: bool) -> None:
    warnings.simplefilter("ignore", RuleWarning)
    for kind, legal in LEGAL.items():
        for name, parameter in inspect.signature(kind).parameters.items():
            for value in VALUES:
                tally.add("single attributes", fault(kind, {**legal, name: value}))
            left = {k: v for k, v in legal.items() if k != name}
            tally.add("missing attributes", fault(kind, left) or unnamed(kind, left, name, parameter))
            tally.add("unknown attributes", fault(kind, {**legal, name.upper(): 1}))
    rng, kinds = Random(0), list(LEGAL)
    for _ in range(COMBINATIONS[full]):
        kind = rng.choice(kinds)
        names = list(inspect.signature(kind).parameters)
        chosen = rng.sample(names, rng.randint(2, min(5, len(names))))
        attributes = {**LEGAL[kind], **{name: rng.choice(VALUES) for name in chosen}}
        if rng.random() < 0.1:
            del attributes[rng.choice(list(attributes))]
        tally.add("combinations", fault(kind, attributes))


if __name__ == "__main__":
    main("attributes", run, __doc__)
