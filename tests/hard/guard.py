"""Guard pages: random problems of every kernel family, arrays flush with the end and the start, 1, 2 and 7 threads.

Inputs are mapped read-only. Kernels that load or store one element off must die, every one of them.
"""

from __future__ import annotations

from tests.compiler import guard
from tests.hard.tally import Tally, main

PROBLEMS = (24, 5_000)
PLANTED = (1, 5)


def run(tally: Tally, full: bool) -> None:
    problems = PROBLEMS[full]
    runs = problems * 2 * len(guard.THREADS)
    tally.add_all("runs between walls", runs, guard.survey(problems, seed=17, few_kernels=not full))
    for plant in guard.PLANTS if full else guard.PLANTS[::2]:
        for index in range(PLANTED[full]):
            tally.add("planted errors", "" if guard.caught(plant, index) else f"{plant} {index} was not caught")


if __name__ == "__main__":
    main("guard", run, __doc__)
