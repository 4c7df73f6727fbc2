"""RLPT: the judge's identities as it pays them, lambda, and the chain as it is trained."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import etude
from etude.advantages.group import GroupAdvantage
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, RewardError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.rlpt import ScaledLevel, rlpt, rlpt_text
from etude.rewards.judged import JudgeReward, Predicted, View
from etude.rewards.judges import Case, SegmentPrefix
from etude.runs.train import resume
from etude.tasks.language.derivations import derivations
from language_toys import Toy, gradients, make_loop, random_episodes

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = ("7+5,*2,-3:", "7+5=12;", "12*2=24;", "24-3=21;")
RUN: Any = SimpleNamespace(task=derivations, policy=None)


def paid(*completions: str, **fields: Any) -> list[float]:
    problem = Problem("d/1", TEXT[0] + "?", info={"following": TEXT[1:]})
    part = JudgeReward(sees=Predicted(), **{"panel": (SegmentPrefix(),), **fields}).bind()
    return list(part.score([Episode(problem, [Segment("assistant", c)]) for c in completions], RUN))


def test_the_first_segments_are_paid_however_many_and_wrong_ones_are_not() -> None:
    """Identity 1."""
    first = [f"[{''.join(TEXT[1 : 1 + j])}]" for j in (1, 2, 3)]
    assert paid(*first) == [1.0, 1.0, 1.0]
    assert paid(*(text[:-1] + "9+9=18;]" for text in first)) == [0.0, 0.0, 0.0]
    assert paid(*first, panel=(SegmentPrefix(most=1),)) == [1.0, 0.0, 0.0]
    assert paid(*first) == [derivations.score(Problem("d", "", info={"following": TEXT[1:]}), text) for text in first]


def test_what_is_thought_is_not_judged_and_without_marks_nothing_is_paid() -> None:
    assert paid("[9+9=18;] no: [7+5=12;]", "7+5=12;", "[7+5=12;", "7+5=12;]", "[]", "") == [
        1.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]


def test_a_problem_that_does_not_say_what_follows_is_refused() -> None:
    part = JudgeReward(panel=(SegmentPrefix(),), sees=Predicted()).bind()
    problem = derivations.problems("train")[0]
    with pytest.raises(RewardError, match=r"does not say which segments follow.*asks=next,middle"):
        part.score([Episode(problem, [Segment("assistant", "[1]")])], RUN)


class Levels(Toy):
    """Every other problem is a middle one."""

    def problems(self, split: str) -> list[Problem]:
        return [Problem(p.id, p.prompt, level=("next", "middle")[i % 2]) for i, p in enumerate(super().problems(split))]


def gradient(factor: float, only: str = "") -> dict[str, torch.Tensor]:
    """Of one step on the same four problems, two of each kind; `only`: the others count nothing."""
    task = Levels(prompts=("one:", "two:", "x=", "y="))
    advantages = ScaledLevel(factor=factor)
    if only:
        advantages = ScaledLevel(level={"next": "middle", "middle": "next"}[only], factor=0.0)
    optimizer = grpo.optimizer.replace(clip_norm=None)
    loop = make_loop(
        grpo.replace(problems=4, experience=Groups(size=4), advantages=advantages, optimizer=optimizer), task
    )
    loop.step()
    return gradients(loop.policy)


@pytest.mark.slow
def test_the_gradient_is_linear_in_lambda() -> None:
    """Identity 2: E_next + lambda E_middle; at 0 that of the next segments alone."""
    following, middle = gradient(1.0, only="next"), gradient(1.0, only="middle")
    assert max(float(g.abs().max()) for g in middle.values()) > 1e-4
    for factor in (0.0, 0.25, 1.0, 3.0):
        for name, found in gradient(factor).items():
            wanted = following[name] + factor * middle[name]
            torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-4)


def test_only_the_level_that_is_named_counts_differently() -> None:
    batch = to_batch(random_episodes((2, 2, 2)), 0, 1.0, torch.device("cpu"))
    batch.scores[:] = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    for episode, level in zip(batch.episodes, ("next", "next", "middle", "middle", "steps3", "steps3")):
        episode.problem = Problem("p", "?", level=level)
    whole, scaled = GroupAdvantage()(batch), ScaledLevel(factor=0.25)(batch)
    ratios = (scaled.sum(1) / whole.sum(1)).tolist()
    assert ratios == [1.0, 1.0, 0.25, 0.25, 1.0, 1.0]
    assert torch.equal(ScaledLevel(factor=1.0)(batch), whole)


def levelled(*levels: str) -> Any:
    return SimpleNamespace(episodes=[SimpleNamespace(problem=SimpleNamespace(level=name)) for name in levels])


def test_a_level_that_does_not_exist_is_refused_with_those_there_are() -> None:
    """After 1,024 completions, not before: a level may be rare."""
    part, right = ScaledLevel(level="midle").bind(), ScaledLevel(level="middle").bind()
    for _ in range(2):
        for each in (part, right):
            each.before_update(levelled(*["next", "middle"] * 255))  # 510 of them
    words = r"ScaledLevel.level is 'midle', and none of the first 1024 .*there are \['middle', 'next'\]: set advantages"
    with pytest.raises(ConfigError, match=words):
        part.before_update(levelled(*["next"] * 4))
    right.before_update(levelled(*["next"] * 4))


@pytest.mark.slow
def test_a_run_is_stopped_that_scales_a_level_that_no_problem_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.methods.rlvr.rlpt.ENOUGH", 24)
    method = grpo.replace(problems=4, experience=Groups(size=4), advantages=ScaledLevel(level="midle"))
    loop = make_loop(method, Levels(prompts=("one:", "two:", "x=", "y=")))
    loop.step()  # 16 completions
    with pytest.raises(ConfigError, match="none of the first 32 completions"):
        loop.step()


def test_what_differs_from_grpo() -> None:
    assert {path.partition(".")[0] for path in rlpt_text.diff(grpo)} == {"rewards", "advantages"}
    assert get_method("rlpt").runs == rlpt.runs  # type: ignore[attr-defined]


def small(**changes: Any) -> Any:
    few = ("experience.size=4", "problems=2")
    runs = (rlpt.runs[0].replace(steps=2, set=(*rlpt.runs[0].set, *few)), rlpt.runs[1].replace(steps=2, set=few))
    return rlpt.replace(id="small", runs=runs, **changes)


@pytest.mark.slow
def test_text_comes_first_and_then_answers_and_it_resumes(tmp_path: Path) -> None:
    made = etude.train(small(), "derivations", seed=2, out=tmp_path / "run", evaluate=0, quiet=True)
    kinds = []
    for run in ("01-text", "02-answers"):
        lines = (made.folder / run / "episodes.jsonl").read_text().splitlines()
        kinds.append({json.loads(line)["level"] for line in lines})
    assert kinds[0] <= {"next", "middle"}
    assert kinds[1] <= {"steps3", "steps4"}
    assert made.metrics[0]["judge/segment-prefix/asked"] <= 8
    cut = etude.train(small(), "derivations", seed=2, out=tmp_path / "cut", evaluate=0, quiet=True, until=1)
    again = resume(cut.folder, quiet=True)
    for ours, theirs in zip(made.metrics, again.metrics, strict=True):
        assert {k: v for k, v in ours.items() if "second" not in k} == {
            k: v for k, v in theirs.items() if "second" not in k
        }


class Begun(View):
    """What begins with a small letter says x, the first of what follows; all else says nothing that does."""

    def case(self, episode: Episode, context: Any) -> Case:
        return Case("?", "x" if episode.completion[:1].islower() else "y", ("x", "y"))


@pytest.mark.slow
def test_a_toy_policy_learns_what_the_judge_takes_for_what_follows() -> None:
    reward = rlpt_text.rewards[0].replace(sees=Begun())  # type: ignore[union-attr]
    optimizer = rlpt_text.optimizer.replace(lr=2e-2)
    loop = make_loop(rlpt_text.replace(problems=3, rewards=(reward,), optimizer=optimizer), Toy(), steps=8)
    found = [loop.step().metrics["reward"] for _ in range(8)]
    assert sum(found[-3:]) / 3 > found[0] + 0.1, found
