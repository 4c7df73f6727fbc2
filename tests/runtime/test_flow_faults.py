"""The whole table of faults under random schedules, on a simulated clock: up to 64 workers, many kills.

What holds whatever happens: every row once for every task, none over the bound, no field before it was produced, groups
whole but for rows that failed, and an end.
"""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from etude.core.errors import WorkerError
from etude.runtime.flow import Flow
from etude.runtime.orders import Learn, Load, Order, Sample, Score
from etude.runtime.simulation import Fault, Laws
from flow_toys import Watched, crew, drop_some, scheduler_of, uniform, values

OF = {
    Sample: (Fault.DIES, Fault.HANGS, Fault.SLOW, Fault.FAILS),
    Score: (Fault.DIES, Fault.HANGS, Fault.SLOW, Fault.FAILS),
    Load: (Fault.DIES, Fault.HANGS, Fault.SLOW, Fault.FAILS, Fault.OTHER_WEIGHTS),
    Learn: (Fault.DIES, Fault.HANGS, Fault.FAILS),
}


def faulty(seed: int, share: float, life: int) -> Laws:
    """Laws by which a share of the orders of every kind goes wrong; `life`: which life of the process it is."""

    def fault(order: Order) -> Fault | None:
        address = (seed, life, type(order).__name__, order.ticket)
        if uniform("fault", *address) >= (share / 4 if isinstance(order, Learn) else share):
            return None
        choices = OF[type(order)]  # type: ignore[index]
        return choices[int(uniform("which", *address) * len(choices))]

    def seconds(kind: str, mean: float, order: Order) -> float:
        return mean * (0.05 + 8 * uniform(kind, seed, life, order.ticket) ** 4)

    return Laws(
        sample=lambda o: seconds("sample", 1.0, o), score=lambda o: seconds("score", 0.1, o),
        learn=lambda o: seconds("learn", 1.0, o), values=values, load=0.3 * uniform("load", seed), launch=1.0,
        fault=fault,
    )  # fmt: skip


FLOWS = st.builds(
    Flow, steps=st.integers(1, 5), groups=st.integers(1, 4), size=st.integers(1, 4), bound=st.integers(0, 3),
    extra=st.integers(0, 3), rounds=st.integers(1, 5), row_seconds=st.just(6.0), score_seconds=st.just(3.0),
    patience=st.sampled_from([6.0, 20.0]), restarts=st.just(1 << 30),
)  # fmt: skip
PLAIN = st.builds(
    Flow, steps=st.integers(1, 4), groups=st.integers(1, 4), size=st.integers(1, 4), bound=st.integers(0, 2),
    rounds=st.integers(1, 5), streaming=st.just(False), row_seconds=st.just(6.0), score_seconds=st.just(3.0),
    patience=st.just(20.0), restarts=st.just(1 << 30),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    st.one_of(FLOWS, PLAIN), st.integers(0, 1 << 20), st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([0.0, 0.4]),
    st.sampled_from([1, 2, 7, 64]), st.integers(1, 3), st.integers(0, 4), st.lists(st.integers(1, 60), max_size=3),
)  # fmt: skip
def test_whatever_happens(
    flow: Flow, seed: int, share: float, dropped: float, samplers: int, slots: int, scorers: int, kills: list[int]
) -> None:
    """Kills of the whole run, at the n-th event of each life, go on from a checkpoint some events before."""
    workers = crew(samplers, slots, scorers, score_slots=slots)
    run = Watched(scheduler_of(flow, workers, drop_some(dropped)), faulty(seed, share, 0))
    checkpoint = run.saved()
    for life in range(200):
        try:
            while not run.scheduler.done:
                assert run.events < 20_000, f"no end: {run.scheduler.ledger.counts}"
                if uniform("save", seed, life, run.events) < 0.2:
                    checkpoint = run.saved()
                if life < len(kills) and run.events >= kills[life]:
                    break
                run.step()
            else:
                break
        except WorkerError:  # the learner is gone: what was reported until then is saved
            checkpoint = run.saved()
        workers = crew(1 + (samplers + life) % 9, slots, scorers, score_slots=1)  # fewer or more than before
        run = run.resumed(workers, checkpoint)
        run.simulated.laws = faulty(seed, share, life + 1)
    event(f"lives: {min(life, 5)}")
    assert run.scheduler.done
    run.check()
