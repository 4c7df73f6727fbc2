"""Rows from prompts to updates on a simulated clock: the order, the bound, the counts and the throughput."""

from __future__ import annotations

import itertools
import json
import math
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError, InvariantError, WorkerError
from etude.runtime.clock import VirtualClock, WallClock, drive
from etude.runtime.crew import LEARN, SAMPLE, Worker
from etude.runtime.flow import Flow, Reason, RowState
from etude.runtime.orders import Done, Learn, Load, Order, Sample, Score
from etude.runtime.scheduler import Scheduler
from etude.runtime.simulation import Fault, Laws, Simulated
from flow_toys import Watched, answer_of, crew, drop_some, scheduler_of, uniform, values


def laws(**changes: Any) -> Laws:
    """Rows of very different lengths, and a little time for everything else."""
    usual = dict(
        sample=lambda order: 0.1 + 10 * uniform("length", order.row) ** 4, score=lambda order: 0.02,
        learn=lambda order: 1.5, values=values, load=0.1, launch=1.0,
    )  # fmt: skip
    return Laws(**{**usual, **changes})


def fixed(generate: float, update: float) -> Laws:
    """A rollout and an update that always take as long, and nothing else."""
    return laws(sample=lambda order: generate, learn=lambda order: update, load=0.0, launch=0.0)


# AsyncFlow


def plain_loop(flow: Flow, judge: Any) -> list[list[int]]:
    """The groups that each step of the plain loop learns from: gather, score, filter, gather what is missing."""
    steps, number = [], 0
    for _ in range(flow.steps):
        kept: list[int] = []
        for _ in range(flow.rounds):
            drawn = range(number, number + flow.groups - len(kept))
            number = drawn.stop
            kept += [g for g in drawn if judge(g)]
        steps.append(kept)
    return steps


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.4]), st.integers(1, 3))
def test_bound_zero_is_the_plain_loop(samplers: int, slots: int, groups: int, share: float, rounds: int) -> None:
    """Whoever works, and however fast: the same rows in the same order, made with the newest weights."""
    flow = Flow(steps=3, groups=groups, size=3, rounds=rounds, streaming=False)
    judge = drop_some(share)
    run = Watched(scheduler_of(flow, crew(samplers, slots, scorers=2), judge), laws()).run()
    wanted = plain_loop(flow, lambda g: uniform("group", g) >= share)
    got = {order.step: order for order in run.seen.learned}
    for step, kept in enumerate(wanted):
        rows = [row for g in kept for row in range(3 * g, 3 * g + 3)]
        assert (got[step].rows if step in got else []) == rows
        assert step not in got or set(got[step].values["trained"]) == {step}
    assert run.scheduler.events["empty_steps"] == sum(not kept for kept in wanted)
    run.check()


@pytest.mark.parametrize("samplers", [1, 5])
def test_bound_zero_learns_what_the_synchronous_loop_learns(samplers: int) -> None:
    """A policy of three numbers, sampled from and learned with rows in any order: the same to the last bit."""

    def said(weights: list[float], row: int) -> int:
        return max(range(3), key=lambda a: weights[a] - math.log(-math.log(uniform("gumbel", row, a))))

    def learned(weights: list[float], actions: list[int]) -> list[float]:
        total = sum(map(math.exp, weights))
        shares = [math.exp(w) / total for w in weights]
        mean = sum(float(a == 2) for a in actions) / len(actions)
        gradient = [sum((float(a == 2) - mean) * ((k == a) - shares[k]) for a in actions) for k in range(3)]
        return [w + 0.1 * g for w, g in zip(weights, gradient)]

    flow = Flow(steps=6, groups=4, size=4)
    alone = [[0.0, 0.0, 0.0]]
    for step in range(flow.steps):
        alone.append(learned(alone[-1], [said(alone[-1], row) for row in range(16 * step, 16 * step + 16)]))

    snapshots = [[0.0, 0.0, 0.0]]

    def real(order: Order) -> dict[str, Any]:
        if isinstance(order, Sample):
            return {"answer": answer_of(order.row), "action": said(snapshots[order.trained], order.row)}
        assert isinstance(order, Learn)
        snapshots.append(learned(snapshots[order.step], order.values["action"]))
        return {"fingerprint": repr(snapshots[-1])}

    scheduler = Scheduler(
        flow, crew(samplers, slots=3), scores={}, judged=(), learned=("answer", "action"),
        judge=lambda taken: [1.0] * len(taken.rows), tokens=lambda group: 1.0,
    )  # fmt: skip
    Watched(scheduler, laws(values=real)).run().check()
    assert snapshots == alone
    assert alone[-1] != alone[0]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 4), st.integers(1, 64), st.integers(1, 3))
def test_each_row_once_and_never_older_than_the_bound(bound: int, extra: int, samplers: int, slots: int) -> None:
    flow = Flow(steps=5, groups=4, size=3, bound=bound, extra=extra, rounds=4)
    run = Watched(scheduler_of(flow, crew(samplers, slots, scorers=3), drop_some(0.3)), laws()).run()
    run.check()
    assert max(run.scheduler.lags) <= bound
    assert sum(run.scheduler.lags.values()) == 5 * 4 * 3
    assert (RowState.RUNNING, RowState.QUEUED) not in run.scheduler.ledger.transitions, "nobody died"


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(0, 3))
def test_a_step_takes_the_sum_alone_and_the_larger_with_a_bound(g: float, u: float, bound: int) -> None:
    """AsyncFlow (3), where rollouts take g and updates u: g + u with bound 0, max(g, u) with any other."""
    flow = Flow(steps=8, groups=2, size=2, bound=bound)
    ends = Watched(scheduler_of(flow, crew(1, slots=4)), fixed(g, u)).run().seen.finished_at
    taken = [b - a for a, b in itertools.pairwise(ends[3:])]
    assert taken == pytest.approx([g + u if bound == 0 else max(g, u)] * len(taken))


def test_weights_that_come_late_are_waited_for_only_as_the_bound_asks() -> None:
    """Rollouts and updates of 1 s, weights that take 0.9 s: 2.9 s a step, 2.9 s for two with bound 1, 1 s with 2."""
    slow = laws(sample=lambda order: 1.0, learn=lambda order: 1.0, load=0.9, launch=0.0)
    for bound, wanted in ((0, 2.9), (1, 1.45), (2, 1.0)):
        run = Watched(scheduler_of(Flow(steps=10, groups=2, size=2, bound=bound), crew(1, 4)), slow).run()
        run.check()
        assert (run.seen.finished_at[9] - run.seen.finished_at[1]) / 8 == pytest.approx(wanted)


# ROLL


def long_tail(order: Sample) -> float:
    """Seconds of a row whose length is log-normal (median 16 tokens, sigma 0.8), 4 to 64 of them, 5 ms each."""
    a, b = uniform("a", order.row), uniform("b", order.row)
    normal = math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b)
    return 0.005 * min(64.0, max(4.0, 16 * math.exp(0.8 * normal)))


def verifier(order: Score) -> float:
    return 0.005 + 0.025 * uniform("verifier", order.row)


def seconds_to_a_batch(flow: Flow, share: float = 0.4) -> float:
    """Mean time from the end of an update to a full accepted batch."""
    times = laws(sample=long_tail, score=verifier, learn=lambda order: 0.0, load=0.0, launch=0.0)
    run = Watched(scheduler_of(flow, crew(1, 32, scorers=8), drop_some(share)), times).run()
    run.check()
    assert run.scheduler.ledger.counts[RowState.ACCEPTED] == flow.steps * flow.groups * flow.size
    return run.seen.finished_at[-1] / flow.steps


@pytest.mark.slow
def test_streaming_is_faster_than_generate_score_refill() -> None:
    """ROLL's claim with its numbers: 16 groups of 8, 40 % dropped, verifiers of 5-30 ms, eight at a time."""
    plain = seconds_to_a_batch(Flow(steps=6, groups=16, size=8, rounds=20, streaming=False))
    streaming = seconds_to_a_batch(Flow(steps=6, groups=16, size=8, rounds=20))
    ahead = seconds_to_a_batch(Flow(steps=6, groups=16, size=8, rounds=20, extra=8))
    assert plain / ahead >= 1.5
    assert plain > streaming > ahead


def test_counts_of_states_and_transitions() -> None:
    flow = Flow(steps=4, groups=3, size=2, extra=2, rounds=10)
    run = Watched(scheduler_of(flow, crew(2, 3, scorers=1), drop_some(0.4)), laws()).run()
    run.check()
    ledger, opened = run.scheduler.ledger, run.scheduler.opened * 2
    assert ledger.counts[RowState.ACCEPTED] == 4 * 3 * 2
    assert ledger.reasons[Reason.FILTERED] and ledger.counts[RowState.ABORTED], "both happened"
    assert sum(n for (before, _), n in ledger.transitions.items() if before is RowState.QUEUED) <= opened
    for state in RowState:
        came = sum(n for (_, after), n in ledger.transitions.items() if after is state)
        left = sum(n for (before, _), n in ledger.transitions.items() if before is state)
        assert came + (opened if state is RowState.QUEUED else 0) - left == ledger.counts[state]


def test_every_step_may_try_as_often_as_the_first() -> None:
    """A fifth of the groups is dropped, and a step may try twice what it needs: none is short."""
    flow = Flow(steps=10, groups=4, size=1, rounds=2)
    run = Watched(scheduler_of(flow, crew(), lambda taken: [float(taken.groups[0] % 5 != 4)]), laws()).run()
    run.check()
    assert [len(order.rows) for order in run.seen.learned] == [4] * 10


def test_a_step_that_tried_often_enough_goes_on_with_what_it_has() -> None:
    flow = Flow(steps=2, groups=4, size=1, rounds=2)
    run = Watched(scheduler_of(flow, crew(), lambda taken: [float(taken.groups[0] % 4 == 0)]), laws()).run()
    run.check()
    assert [order.rows for order in run.seen.learned] == [[0, 4], [8, 12]]


def test_a_step_without_rows_sends_no_weights() -> None:
    """What the first step learned from nothing need not be brought anywhere."""
    flow = Flow(steps=2, groups=2, size=1)
    run = Watched(scheduler_of(flow, crew(), lambda taken: [float(taken.groups[0] > 1)]), laws()).run()
    run.check()
    assert [order.rows for order in run.seen.learned] == [[2, 3]] and run.scheduler.events["empty_steps"] == 1
    assert all(span.order.launch for span in run.simulated.spans if isinstance(span.order, Load))


def test_who_has_the_fewest_tokens_outstanding_is_asked() -> None:
    """Groups of 5, 1, 1 and 1 tokens a row: whoever has the first row of a step gets none of the next three."""
    scheduler = scheduler_of(Flow(steps=2, groups=4, size=1), crew(2, 4))
    scheduler.tokens = lambda group: 5.0 if group % 4 == 0 else 1.0
    run = Watched(scheduler, laws(load=0.0)).run()
    first, *others = [order.worker for order in run.begun if order.step == 1]
    assert {first, *others} == {"sampler 0", "sampler 1"} and first not in others


def test_what_cannot_be_learned_from_is_not_made() -> None:
    """With bound 1 and rows that take three updates, who would be too old is left at once."""
    slow = laws(sample=lambda order: 50.0 if order.row == 0 else 1.0, learn=lambda order: 1.0)
    flow = Flow(steps=8, groups=2, size=1, bound=1)
    run = Watched(scheduler_of(flow, crew(1, 4)), slow).run()
    run.check()
    assert run.seen.dropped[0] is Reason.STALE
    assert run.seen.finished_at[-1] < 50, "nobody waited for it"


def test_rows_that_nobody_has_begun_do_not_grow_old() -> None:
    """One slot for two steps of rows: what waits for it will be made with the newest weights."""
    flow = Flow(steps=5, groups=3, size=2, bound=1)
    run = Watched(scheduler_of(flow, crew(1, 1)), fixed(1.0, 0.1)).run()
    run.check()
    assert not run.scheduler.ledger.reasons and run.scheduler.opened == 5 * 3


# Faults, one by one


def fault_at(fault: Fault, *tickets: int, kind: type = Sample) -> Any:
    """A law by which the n-th order of a kind goes wrong."""
    count = 0

    def law(order: Order) -> Fault | None:
        nonlocal count
        count += isinstance(order, kind)
        return fault if isinstance(order, kind) and count - 1 in tickets else None

    return law


def test_a_row_whose_worker_died_is_made_anew_and_counted_once() -> None:
    flow = Flow(steps=2, groups=2, size=2)
    run = Watched(scheduler_of(flow, crew(2, 2)), laws(fault=fault_at(Fault.DIES, 1))).run()
    run.check()
    assert run.scheduler.ledger.transitions[RowState.RUNNING, RowState.QUEUED] >= 1
    assert [order.rows for order in run.seen.learned] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_worker_that_dies_too_often_stops_the_run_saved() -> None:
    flow = Flow(steps=2, groups=2, size=2, restarts=2)
    dying = laws(fault=lambda order: Fault.DIES if order.worker == "sampler 0" and isinstance(order, Sample) else None)
    run = Watched(scheduler_of(flow, crew(1, 2)), dying)
    with pytest.raises(WorkerError, match=r"sampler 0 failed 3 times.*restarts") as caught:
        run.run()
    assert caught.value.intact
    again = run.resumed(crew(1, 2), run.saved())
    again.simulated.laws = laws()
    again.run().check()


def test_a_straggler_is_overtaken_and_the_first_answer_counts() -> None:
    flow = Flow(steps=2, groups=2, size=2, row_seconds=20)
    run = Watched(scheduler_of(flow, crew(2, 4)), laws(fault=fault_at(Fault.SLOW, 0))).run()
    run.check()
    assert run.scheduler.events["stragglers"] == 1
    assert run.scheduler.ledger.transitions[RowState.RUNNING, RowState.RUNNING] == 1
    assert len({order.worker for order in run.begun if order.row == 0}) == 2
    assert run.clock.now() < 100


def test_a_sampler_that_hangs_is_started_again() -> None:
    """There is no other to ask."""
    flow = Flow(steps=1, groups=1, size=2, row_seconds=20, patience=30)
    run = Watched(scheduler_of(flow, crew(1, 2)), laws(fault=fault_at(Fault.HANGS, 0))).run()
    run.check()
    assert run.scheduler.events["deaths"] == 1 and run.scheduler.crew.workers["sampler 0"].faults == 1
    assert run.clock.now() < 60


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.HANGS, Reason.SCORE_TIMED_OUT),
        (Fault.DIES, Reason.SCORE_FAILED),
        (Fault.FAILS, Reason.SCORE_FAILED),
    ],
)
def test_a_reward_that_does_not_come_is_never_zero(fault: Fault, reason: Reason) -> None:
    """Its row leaves the group, which goes on without it; whoever hung or died is started again."""
    flow = Flow(steps=1, groups=2, size=3, score_seconds=5, restarts=0)
    faulty = laws(fault=fault_at(fault, 0, kind=Score))
    run = Watched(scheduler_of(flow, crew(1, scorers=1)), faulty).run()
    run.check()
    assert run.scheduler.ledger.reasons == {reason: 1}
    assert len(run.seen.learned[0].rows) == 5


def test_what_else_a_scorer_was_doing_is_scored_again_when_one_row_hangs() -> None:
    flow = Flow(steps=1, groups=2, size=3, score_seconds=5)
    slow = laws(score=lambda order: 4.0, fault=fault_at(Fault.HANGS, 0, kind=Score))
    run = Watched(scheduler_of(flow, crew(1, scorers=1, score_slots=2)), slow).run()
    run.check()
    assert run.scheduler.ledger.reasons == {Reason.SCORE_TIMED_OUT: 1}


def test_other_weights_are_refused() -> None:
    """A worker goes on with those it has; if it never gets the right ones, the run says who it is and what it has."""
    flow = Flow(steps=3, groups=2, size=2, bound=1)
    seen = 0

    def once(order: Order) -> Fault | None:
        nonlocal seen
        loads = isinstance(order, Load) and not order.launch
        seen += loads
        return Fault.OTHER_WEIGHTS if loads and seen == 1 else None

    run = Watched(scheduler_of(flow, crew(1, 4)), laws(fault=once)).run()
    run.check()
    assert run.scheduler.crew.workers["sampler 0"].faults == 1
    always = laws(fault=lambda order: Fault.OTHER_WEIGHTS if isinstance(order, Load) and not order.launch else None)
    with pytest.raises(WorkerError, match=r"sampler 0 failed 4 times.*weights 'torn' of step 1 instead of 'weights 0'"):
        Watched(scheduler_of(flow, crew(1, 4)), always).run()


def test_a_learner_that_ends_stops_the_run_and_is_resumed_to_the_same_numbers() -> None:
    flow = Flow(steps=4, groups=2, size=2)
    whole = Watched(scheduler_of(flow, crew(2, 2)), laws()).run()
    run = Watched(scheduler_of(flow, crew(2, 2)), laws(fault=fault_at(Fault.DIES, 2, kind=Learn)))
    with pytest.raises(WorkerError, match="learner is gone"):
        run.run()
    again = run.resumed(crew(3, 1), run.saved())
    again.run().check()
    last = {order.step: order for order in again.seen.learned}
    assert [last[k]._replace(ticket=0) for k in range(4)] == [o._replace(ticket=0) for o in whole.seen.learned]


def test_an_answer_that_nobody_waits_for_is_left_aside() -> None:
    run = Watched(scheduler_of(Flow(steps=1, groups=1, size=1), crew()), laws())
    run.step()
    run.scheduler.report(Done(10_000, {"answer": "?"}), 0.0)
    run.run().check()
    assert run.scheduler.events["late_answers"] == 1


def test_a_field_that_nobody_reports_stops_the_run() -> None:
    """Nothing waits for ever."""
    run = Watched(scheduler_of(Flow(steps=1, groups=1, size=1), crew()), laws(values=lambda order: {"other": 1}))
    with pytest.raises(InvariantError, match="Nothing is under way in step 0"):
        run.run()


# Checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0, 1])
def test_a_run_that_is_cut_at_any_event_goes_on_as_if_it_had_not(bound: int) -> None:
    """On the simulated clock everything is saved, what is under way included."""
    flow = Flow(steps=6, groups=3, size=2, bound=bound, extra=bound, rounds=2)
    judge = drop_some(0.7)  # more than may be replaced
    workers = crew(2, 2, scorers=1)
    whole = Watched(scheduler_of(flow, workers, judge), laws()).run()
    assert min(len(order.rows) for order in whole.seen.learned) < 6
    for cut in range(0, whole.events, 5):
        first = Watched(scheduler_of(flow, workers, judge), laws())
        for _ in range(cut):
            first.step()
        text = json.dumps([first.scheduler.state_dict(), first.clock.state_dict()])
        second = Watched(scheduler_of(flow, workers, judge), laws())
        second.seen = first.seen
        second.simulated.under_way, second.simulated.spans = first.simulated.under_way, first.simulated.spans
        state, clock = json.loads(text)
        second.scheduler.load_state_dict(state)
        second.clock.load_state_dict(clock)
        second.run().check()
        assert second.seen.learned == whole.seen.learned
        assert second.clock.now() == whole.clock.now()


def test_the_same_scheduler_drives_the_real_clock() -> None:
    """The same rows in the same steps; how long it takes is nobody's business here."""
    flow = Flow(steps=3, groups=2, size=2)
    quick = laws(sample=lambda order: 0.001 * (1 + order.row % 3), score=lambda order: 0.001,
                 learn=lambda order: 0.002, load=0.0, launch=0.001)  # fmt: skip
    learned: list[list[list[int]]] = []
    for clock in (VirtualClock(), WallClock()):
        scheduler, simulated = scheduler_of(flow, crew(2, 1, scorers=1)), Simulated(clock, quick)
        drive(scheduler, clock, simulated.do)
        learned.append([span.order.rows for span in simulated.spans if isinstance(span.order, Learn)])
    assert learned[0] == learned[1] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


# What is refused


def test_fields_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"Flow\.size must be a whole number of at least 1"):
        Flow(steps=1, groups=1, size=0)
    with pytest.raises(ConfigError, match="extra must be 0 without streaming"):
        Flow(steps=1, groups=1, size=1, extra=1, streaming=False)
    with pytest.raises(ConfigError, match="row_seconds must be at most the patience"):
        Flow(steps=1, groups=1, size=1, row_seconds=9, patience=8)
    flow, two = Flow(steps=1, groups=1, size=1), [Worker("a", SAMPLE), Worker("b", LEARN)]
    for workers in (two[:1], [*two, Worker("a", SAMPLE)], [*two, Worker("c", LEARN)], [*two, Worker("c", "rewards")]):
        with pytest.raises(ConfigError, match=r"different names for each of sample, learn, .*got a \(sample\)"):
            scheduler_of(flow, workers)
    with pytest.raises(ConfigError, match="for each of sample, reward, learn"):
        Scheduler(
            flow, two, scores={"reward": ("answer",)}, judged=(), learned=(), judge=len, tokens=float,  # type: ignore[arg-type]
        )  # fmt: skip


def test_reports_of_the_same_time_come_in_the_order_they_were_made() -> None:
    for clock in (VirtualClock(), WallClock()):
        for ticket in range(3):
            clock.report(Done(ticket, {}))
        assert [clock.wait(clock.now()) for _ in range(4)] == [Done(0, {}), Done(1, {}), Done(2, {}), None]


def test_the_real_clock_hears_of_what_other_threads_report() -> None:
    """Without asking again and again: who waits is woken."""
    clock = WallClock()
    assert clock.wait(clock.now()) is None
    clock.report(Done(2, {}), after=3600)
    thread = threading.Thread(target=clock.report, args=(Done(1, {"answer": 1}),))
    thread.start()
    assert clock.wait(clock.now() + 60) == Done(1, {"answer": 1})
    thread.join()
    assert clock.wait(clock.now()) is None
