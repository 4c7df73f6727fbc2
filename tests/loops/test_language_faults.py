"""What the token loop does about faults (the rows of the faults table that it meets)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from etude.core.batches import TokenLogProbs
from etude.core.episodes import Problem, Segment, StopReason
from etude.core.errors import ConfigError, DataError, EnvironmentFault, EtudeError, NonFiniteError
from etude.core.rows import to_batch
from etude.core.slots import TokenObjective
from etude.core.streams import Stream
from etude.core.task import SingleTurn, StepResult
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.tasks.language.files import DataFile
from language_toys import Toy, gradients, make_loop, random_policy

small = grpo.replace(problems=3, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))


def world(step: Callable[[int, int, Segment], Any], first: str = "go:") -> Any:
    """An environment class whose answer is `step(number, turn, segment)`; number counts the episodes of the run."""
    made: list[Any] = []

    class World(SingleTurn):
        def __init__(self, task: Any) -> None:
            super().__init__(task)
            self.number, self.turn = len(made), 0
            made.append(self)

        def reset(self, problem: Problem, seed: int) -> list[Segment]:
            if first == "raise" and self.number % 4 == 0:
                raise RuntimeError("cannot start")
            return [Segment("user", first)]

        def step(self, segment: Segment) -> Any:
            self.turn += 1
            return step(self.number, self.turn, segment)

    return World


def fine(number: int, turn: int, segment: Segment) -> StepResult:
    return StepResult([Segment("user", "ok")], reward=0.25 * (number % 3), terminated=turn == 2)


# Rows 12, 17, 18: rewards that teach nothing, prompts without room, completions that are cut


def test_equal_rewards_in_a_group_teach_exactly_nothing() -> None:
    loop = make_loop(small, Toy(scoring=lambda problem, said: 1.0))
    before = [p.clone() for p in loop.policy.parameters()]
    metrics = loop.step().metrics
    assert metrics["zero_advantage"] == 1.0 == metrics["rows_skipped"]
    assert all(torch.equal(a, b) for a, b in zip(before, loop.policy.parameters()))


@pytest.mark.slow
def test_prompts_that_fill_the_context_are_counted_and_said_once() -> None:
    task = Toy(prompts=("short", "x" * 40, "mid"))
    loop = make_loop(small, task, random_policy(context=32))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        metrics = [loop.step().metrics for _ in range(3)]
    (sentence,) = [str(w.message) for w in said]
    assert sentence.startswith(
        "4 of 12 episodes were left out because their prompt fills the model's context of 32 tokens, the first for "
        "problem 'train-1'; later ones are counted in the metrics as context_overflow."
    )
    assert [(m["rows"], m["context_overflow"]) for m in metrics] == [(8.0, 4.0)] * 3


def test_a_file_says_before_training_which_prompts_do_not_fit(tmp_path: Any) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "2+2=", "answer": "4"}\n{"prompt": "' + "x" * 60 + '", "answer": "1"}\n')
    task = DataFile(str(path), test_fraction=0.0, max_tokens=8)
    with pytest.warns(UserWarning, match=r"1 of 2 prompts are longer than 24 tokens; .* has 60\. They were left out"):
        loop = make_loop(small, task, random_policy(context=32))
    assert [p.prompt for p in loop.gatherer.pool] == ["2+2="]
    with pytest.raises(DataError, match="1 of 2 prompts are longer than 10 tokens"):
        make_loop(small, task.replace(prompt_limit=10, on_long_prompt="error"), random_policy(context=32))


def test_when_no_prompt_fits_the_run_stops() -> None:
    with pytest.raises(EnvironmentFault, match="every prompt fills the context"), pytest.warns(UserWarning):
        make_loop(small, Toy(prompts=("x" * 40,)), random_policy(context=32)).step()


def test_an_empty_prompt_is_a_sentence() -> None:
    with pytest.raises(DataError, match="Problem 'train-0' has an empty prompt"):
        make_loop(small, Toy(prompts=("",))).step()


def test_why_a_completion_ended_is_data() -> None:
    policy = random_policy()
    loop = make_loop(small, Toy(max_tokens=6), policy)
    report = loop.step()
    stops = {e["stop"] for e in report.episodes}
    assert stops <= {"max_tokens", "terminated"}
    cut = sum(e["stop"] == "max_tokens" for e in report.episodes) / len(report.episodes)
    assert cut == report.metrics["cut"] > 0 == report.metrics["truncated"]
    endless = type("Endless", (type(policy),), {"end_ids": property(lambda self: list(range(307)))})
    policy.__class__ = endless
    report = loop.step()
    assert {e["stop"] for e in report.episodes} == {"terminated"} and report.metrics["cut"] == 0


@pytest.mark.parametrize("stop", list(StopReason))
def test_cut_is_not_truncated_and_truncated_is_not_terminated(stop: StopReason) -> None:
    assert stop.cut == (stop in ("max_tokens", "context_overflow"))
    assert stop.truncated == (stop in ("max_turns", "truncated"))


# Rows 20 and 21: environments that raise, and ones that leave their space


@pytest.mark.slow
def test_a_lost_episode_is_discarded_and_counted() -> None:
    def sometimes(number: int, turn: int, segment: Segment) -> StepResult:
        if number % 4 == 1:
            raise KeyError("lost")
        return fine(number, turn, segment)

    loop = make_loop(small, Toy(world=world(sometimes), max_turns=3))
    for _ in range(3):
        report = loop.step()
        assert (report.metrics["lost_episodes"], report.metrics["rows"]) == (3.0, 9.0)
        assert len(report.episodes) == 9


def test_an_environment_that_cannot_start_now_and_then() -> None:
    metrics = make_loop(small, Toy(world=world(fine, "raise"), max_turns=3)).step().metrics
    assert (metrics["lost_episodes"], metrics["rows"]) == (3.0, 9.0), "three in all, but not in a row"


def test_three_lost_episodes_in_a_row_stop_the_run() -> None:
    def broken(number: int, turn: int, segment: Segment) -> StepResult:
        if number in (5, 6, 7):
            raise KeyError("gone")
        return fine(number, turn, segment)

    with pytest.raises(EnvironmentFault, match=r"failed in 3 episodes in a row; .*'train-\d': KeyError: 'gone'"):
        make_loop(small, Toy(world=world(broken), max_turns=3)).step()


def test_two_in_a_row_twice_do_not() -> None:
    def shaky(number: int, turn: int, segment: Segment) -> StepResult:
        if number in (1, 2, 4, 5):
            raise KeyError("gone")
        return fine(number, turn, segment)

    assert make_loop(small, Toy(world=world(shaky), max_turns=3)).step().metrics["lost_episodes"] == 4.0


@pytest.mark.first
@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda: StepResult([], reward=float("nan")), "returned the reward nan; a reward must be a finite number"),
        (lambda: StepResult([], reward=float("-inf")), "returned the reward -inf"),
        (lambda: StepResult([], reward="1.0"), "returned the reward '1.0'"),  # type: ignore[arg-type]
        (lambda: StepResult([], reward=None), "returned the reward None"),  # type: ignore[arg-type]
        (lambda: StepResult([Segment("user", 5)]), "returned the observation 5; it must be a Segment with text"),  # type: ignore[arg-type]
        (lambda: StepResult(["hello"]), "returned the observation 'hello'"),  # type: ignore[list-item]
        (lambda: StepResult(None), "returned None instead of a list of Segments"),  # type: ignore[arg-type]
        (lambda: ("obs", 1.0, True), r"returned \('obs', 1.0, True\); a step must return a StepResult"),
    ],
)
def test_what_an_environment_may_not_return(answer: Callable[[], Any], sentence: str) -> None:
    def later(number: int, turn: int, segment: Segment) -> Any:
        return answer() if (number, turn) == (4, 2) else StepResult([Segment("user", "ok")])

    with pytest.raises(EnvironmentFault, match=sentence) as caught:
        make_loop(small, Toy(world=world(later), max_turns=3)).step()
    assert "of task 'toy', for problem 'train-" in str(caught.value) and "at turn 2" in str(caught.value)


# Row 23: gradients that are not finite


class Poisoned(TokenObjective):
    """Minus the log-likelihood; not a number on the optimizer steps listed in `bad`."""

    bad: tuple[int, ...] = ()

    def initial_state(self) -> dict[str, Any]:
        return {"calls": 0}

    def __call__(self, batch: Any, policy: TokenLogProbs) -> torch.Tensor:
        self.state["calls"] += 1
        return -policy.logp * (float("nan") if self.state["calls"] - 1 in self.bad else 1.0)


def test_a_step_without_a_finite_gradient_is_skipped() -> None:
    loop = make_loop(small.replace(objective=Poisoned(bad=(1, 2))))
    assert "skipped_steps" not in loop.step().metrics
    weights = [p.clone() for p in loop.policy.parameters()]
    moments = {i: {k: v.clone() for k, v in s.items()} for i, s in loop.updater.stepper.moments().items()}
    for _ in range(2):
        assert loop.step().metrics["skipped_steps"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(weights, loop.policy.parameters()))
    for i, s in loop.updater.stepper.moments().items():
        assert all(torch.equal(v, moments[i][k]) for k, v in s.items())
    loop.step()
    assert not all(torch.equal(a, b) for a, b in zip(weights, loop.policy.parameters()))
    assert loop.updater.stepper.failures == 0


@pytest.mark.slow
def test_skipped_steps_are_counted_within_a_batch() -> None:
    loop = make_loop(small.replace(objective=Poisoned(bad=(0, 2)), epochs=4))
    metrics = loop.step().metrics
    assert metrics["skipped_steps"] == 2.0


@pytest.mark.slow
def test_three_in_a_row_stop_and_leave_the_batch() -> None:
    loop = make_loop(small.replace(objective=Poisoned(bad=(1, 2, 3))))
    for _ in range(3):
        loop.step()
    with pytest.raises(NonFiniteError, match=r"not finite in 3 optimizer steps in a row \(step 3\)") as caught:
        loop.step()
    assert caught.value.batch.keys() >= {"tokens", "action_mask", "rewards", "advantages", "behaviour_logp"}
    assert caught.value.batch["tokens"].shape[0] == 12


# Row 24: out of memory


def out_of_memory(loop: LanguageLoop, calls: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training forward run out of memory at the given calls."""
    inner, seen = loop.policy.evaluate, [0]

    def evaluate(*args: Any) -> TokenLogProbs:
        seen[0] += 1
        if seen[0] - 1 in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(*args)

    monkeypatch.setattr(loop.policy, "evaluate", evaluate)


class Keeps(AdamW):
    """Remembers the gradients of each step instead of taking it too far."""

    def clip(self) -> float | None:
        return None


@pytest.mark.slow
def test_out_of_memory_once_halves_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for calls in (set(), {1}):
        loop = make_loop(small.replace(optimizer=Keeps(lr=1e-3)), policy=random_policy("gpt2", dtype=torch.float64))
        loop.updater.budget = 60
        out_of_memory(loop, calls, monkeypatch)
        metrics = loop.step().metrics
        found.append((loop.updater.budget, metrics, gradients(loop.policy)))
    (budget, plain, expected), (halved, after, grads) = found
    assert (budget, halved) == (60, 30)
    assert "out_of_memory" not in plain and after["out_of_memory"] == 1.0
    for name, value in expected.items():
        assert (grads[name] - value).norm() <= 1e-10 * value.norm(), name
    for name in ("loss", "gradient_norm", "logp_gap", "clip_fraction", "rows_skipped"):
        assert after[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-12), (
            "what the failed attempt saw is not counted"
        )


def test_out_of_memory_twice_stops_with_the_need(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(small)
    out_of_memory(loop, {0, 1}, monkeypatch)
    with pytest.raises(EtudeError, match=r"of 4096 tokens \(longest row: \d+\); set a smaller --micro-tokens"):
        loop.step()


# Row 32: contradictions before any work


def test_a_truncated_distribution_with_ratios_is_refused() -> None:
    with pytest.raises(ConfigError, match="Groups samples from a truncated distribution"):
        dataclasses.replace(small, experience=Groups(size=4, top_p=0.9)).check()


def test_masks_and_stops_reach_the_batch() -> None:
    """A completion that the limit of tokens cut is no row that the environment truncated."""
    from etude.core.slots import Context
    from etude.experience.rollout import fresh, rollout
    from etude.policies.sampling import Sampling

    policy, task = random_policy(), Toy(max_tokens=3)
    context = Context(task, policy, Stream(0))
    episodes = rollout(fresh(task.problems("train"), 1, Stream(0)), context, Sampling(max_tokens=3))
    batch = to_batch(episodes, 0, 1.0, policy.device)
    assert any(e.stop is StopReason.MAX_TOKENS for e in episodes) and not batch.truncated.any()
