"""Rewards that are none, or none that anything can be learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etude_museum import scoring
from etude_museum.tiny import SMALL, Letters, language

from etude.evaluation.exhibits import Exhibit, Report
from etude.rewards.function import CallableReward, FunctionReward

_now: dict[str, Callable[..., Any]] = {}
"""The reward function in force, by what it is called."""


def scored(completions: Sequence[str]) -> Any:
    """The reward function of the task."""
    return _now["reward"](completions)


class _Swapped:
    """The faulty function in the place of the good one, for a while."""

    def __init__(self, faulty: Callable[..., Any], name: str = "reward") -> None:
        self.faulty, self.name = faulty, name

    def __enter__(self) -> None:
        self.before, _now[self.name] = _now.get(self.name), self.faulty

    def __exit__(self, *_: object) -> None:
        _now.pop(self.name)
        if self.before is not None:
            _now[self.name] = self.before


def limited() -> Iterator[Mapping[str, float]]:
    """Three steps with room for an answer, or without."""
    task = Letters(max_tokens=_now["limit"]() if "limit" in _now else 20)
    with _Swapped(scoring.answered):
        yield from language(SMALL.replace(rewards=(CallableReward(function=scored),)), task=task)


def run(default: Callable[..., Any] = scoring.good) -> Iterator[Mapping[str, float]]:
    """Three steps with the reward function in force, called in this process."""
    if "reward" in _now:
        yield from language(SMALL.replace(rewards=(CallableReward(function=scored),)))
        return
    with _Swapped(default):
        yield from language(SMALL.replace(rewards=(CallableReward(function=scored),)))


def apart() -> Iterator[Mapping[str, float]]:
    """A step with the reward function in a process of its own, which has half a second."""
    name = _now["apart"].__name__ if "apart" in _now else "good"
    reward = FunctionReward(
        function=f"{Path(__file__).with_name('scoring.py')}:{name}", timeout=5.0 if name == "good" else 0.5
    )
    yield from language(SMALL.replace(rewards=(reward,)), steps=1)


exhibits = (
    Exhibit(
        id="one-reward-for-all",
        kind="rewards",
        report=Report(
            thread="huggingface/trl#6533",
            title="GRPO silently accepts a reward function that returns the wrong number of rewards",
        ),
        says="A reward function that returns one value had it broadcast to all completions: nothing was ever better "
        "than anything else.",
        mechanism="the function returns a list of one.",
        inject=lambda: _Swapped(scoring.one_for_all),
        run=run,
        expect=r"must return \d+ (?:rewards|floats), got list of 1",
    ),
    Exhibit(
        id="one-reward-is-nan",
        kind="rewards",
        report=Report(
            thread="modelscope/ms-swift#8123",
            title="GDPO (scale_rewards='gdpo') produces NaN advantages when any reward function returns None/NaN, "
            "causing silent training failure",
        ),
        says="One answer that could not be parsed made all advantages of the batch NaN: the run ended normally with "
        "loss 0.0, and had learned nothing.",
        mechanism="one completion of each batch is worth NaN.",
        inject=lambda: _Swapped(scoring.sometimes_nan),
        run=run,
        expect="returned nan",
    ),
    Exhibit(
        id="verifier-fails-as-zero",
        kind="rewards",
        report=Report(
            thread="verl-project/verl#5635",
            title="[reward] fix: disable signal.alarm() in math_verify to fix silent scoring failure in Ray workers",
            pull=True,
        ),
        says="Outside of the main thread the verifier could not set its alarm, and what it raised was caught and "
        "scored 0: every answer of every run was wrong.",
        mechanism="the reward function catches its own error for each completion, and returns 0.",
        inject=lambda: _Swapped(scoring.swallowed),
        run=run,
        expect="no two completions of one problem had different rewards",
    ),
    Exhibit(
        id="no-room-for-the-answer",
        kind="rewards",
        report=Report(
            thread="huggingface/trl#5697",
            title="Bug: GRPO quickstart `max_completion_length=256` default silently breaks training",
        ),
        says="Of what the first example in the README sampled, 97 % or more was cut before the answer: rewards, loss "
        "and gradient were 0 for everyone who began with it.",
        mechanism="completions end after one token, and the answer begins with the ninth character.",
        inject=lambda: _Swapped(lambda: 1, "limit"),
        run=limited,
        expect="no two completions of one problem had different rewards",
    ),
    Exhibit(
        id="format-reward-always-zero",
        kind="rewards",
        report=Report(thread="zli12321/Vision-SR1#14", title="Why format reward is always zero?"),
        says="One of two rewards was 0 for everything that was said, and the sum hid it: twenty steps went by before "
        "somebody looked at the parts.",
        mechanism="one component looks for a tag that no completion has.",
        inject=lambda: _Swapped(scoring.inert),
        run=lambda: run(scoring.two),
        expect="of the reward is inert",
    ),
    Exhibit(
        id="reward-depends-on-the-batch",
        kind="rewards",
        report=Report(
            thread="allenai/reward-bench#137", title="rewardbench.py results are different for different batch size"
        ),
        says="What a completion was worth depended on which others it was scored with: the same model scored 0.578 or "
        "0.596 by its batch size.",
        mechanism="rewards are divided by the best one of the batch.",
        inject=lambda: _Swapped(scoring.ranked),
        run=run,
        expect="it depends on chance, on the time, or on the other completions of the batch",
    ),
    Exhibit(
        id="scoring-that-hangs",
        kind="rewards",
        report=Report(
            thread="verl-project/verl#6673",
            title="[reward] fix: add optional per-sample compute_score timeout to NaiveRewardManager",
            pull=True,
        ),
        says="One degenerate completion kept the answer parser busy for ever: all GPUs idle, no error, and it looked "
        "like a deadlock of the engine.",
        mechanism="the reward function does not come back.",
        inject=lambda: _Swapped(scoring.stuck, "apart"),
        run=apart,
        expect="did not return within",
    ),
    Exhibit(
        id="exit-code-0-is-success",
        kind="security",
        report=Report(thread="PrimeIntellect-ai/prime-envs#692", title="Add HumanEval V1 environment", pull=True),
        says="Success was the exit code of the process that ran the tests: a completion that exits before them was "
        "paid in full.",
        mechanism="the completion ends the process that scores it, with exit code 0.",
        inject=lambda: _Swapped(scoring.leaves, "apart"),
        run=apart,
        expect="lost its process, which ended with exit code 0",
    ),
)
