"""Judges that are shown all answers at once: names, failures, and what their scores pay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, RewardError
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.rewards.judges import Case, Duel
from etude.rewards.lists import ListwiseJudge, RankedByJudge, drawn_order
from etude.rewards.pair_judges import SimulatedJudge
from language_toys import Toy, random_policy

ASKED = Problem("p/1", "how much?", "2")


def run(step: int = 0) -> Any:
    task = SimpleNamespace(score=lambda p, text: float(text or 0))
    return SimpleNamespace(task=task, policy=SimpleNamespace(work=Counter()), stream=Stream(0).split("train", step))


def answers_of(shown: str) -> list[str]:
    """What stands behind the names."""
    return [line.partition(":")[2] for line in shown.splitlines()[1:]]


def verdict(scores: Sequence[object]) -> str:
    return json.dumps({"scores": {chr(ord("A") + i): s for i, s in enumerate(scores)}})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What judges were asked, who then score every answer by the number that it is."""
    found: list[str] = []
    by_number = lambda text: verdict([float(x) for x in answers_of(text)])  # noqa: E731
    answered(monkeypatch, found, by_number)
    return found


def answered(monkeypatch: pytest.MonkeyPatch, found: list[str], by: Callable[[str], str | None]) -> None:
    def says(judge: ListwiseJudge, texts: Sequence[str], context: Any) -> list[str | None]:
        found.extend(texts)
        return [by(text) for text in texts]

    monkeypatch.setattr(ListwiseJudge, "_verdicts", says)


def rows(*texts: str, group: Sequence[int]) -> TokenBatch:
    problems = [Problem(f"p/{g}", "how much?", "2") for g in group]
    episodes = [Episode(p, [Segment("assistant", t, [5], [1], [0.0])], g) for p, t, g in zip(problems, texts, group)]
    found: Any = SimpleNamespace(episodes=episodes, group=torch.tensor(group), once=lambda: None)
    found.scores = torch.full((len(texts),), 0.25, dtype=torch.float64)
    return found  # type: ignore[no-any-return]


# What a judge says


def test_scores_go_back_to_whose_they_are_whatever_the_names(asked: list[str]) -> None:
    judge = ListwiseJudge(model="RUN", asked="by number, {prompt}").bind()
    lists = [(ASKED, ["1", "5", "3", "2"])] * 40
    found = judge.rank(lists, run())
    assert found == [[0.0, 1.0, 0.5, 0.25]] * 40
    orders = Counter(tuple(answers_of(text)) for text in asked)
    assert len(orders) > 15  # of 24
    assert {text.splitlines()[0] for text in asked} == {"by number, how much?"}


def test_names_are_those_of_the_step_and_of_how_often_it_met_the_problem(asked: list[str]) -> None:
    judge = ListwiseJudge(model="RUN").bind()
    judge.rank([(ASKED, list("1234"))] * 2, run(3))
    judge.rank([(ASKED, list("1234"))] * 2, run(3))
    assert asked[:2] == asked[2:]
    assert [drawn_order(ASKED, n, 4, run(3)) for n in (0, 1)] == [
        [list("1234").index(x) for x in answers_of(text)] for text in asked[:2]
    ]


def test_two_are_shown_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge who always likes what is called A is of two minds about any two."""
    seen: list[str] = []
    answered(monkeypatch, seen, lambda text: verdict([5, 1]))
    said = ListwiseJudge(model="RUN").bind().compare([Duel(ASKED, "1", "2")], run())[0]
    assert said is not None and (said.straight, said.turned, said.chance, said.unanimous) == (1.0, 0.0, 0.5, False)
    assert [answers_of(text) for text in seen] == [["1", "2"], ["2", "1"]]


def test_the_better_one_wins_in_both_orders_and_one_alone_has_its_score(asked: list[str]) -> None:
    judge = ListwiseJudge(model="RUN").bind()
    said = judge.compare([Duel(ASKED, "4", "2"), Duel(ASKED, "2", "4"), Duel(ASKED, "3", "3")], run())
    assert [o and o.chance for o in said] == [1.0, 0.0, 0.5]
    context = run()
    assert judge.score([Case("how much?", "2", ("4",))], context) == [0.25]
    assert context.policy.work["judge/listwise-judge/asked"] == 1


@pytest.mark.parametrize("scores", [[1], [1, "good"], [1, 6], [0.5, 2], [1, None]])
def test_a_verdict_without_a_number_in_range_for_each_is_none(
    scores: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, [], lambda text: verdict(scores))
    context = run()
    assert ListwiseJudge(model="RUN").bind().rank([(ASKED, ["1", "2"])], context) == [None]
    assert context.policy.work["judge/listwise-judge/failed"] == context.policy.work["judge/listwise-judge/asked"] == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"worst": 5.0}, "worst must be below best, got 5 and 5"),
        ({"asked": "{given}"}, r"asked may have \{prompt\} in it"),
        ({"asked": "{"}, r"asked may have \{prompt\} in it"),
    ],
)
def test_what_cannot_be_asked_is_said(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ListwiseJudge(**fields)


def test_nobody_to_ask_is_said() -> None:
    assert "name a folder or a run" in str(ListwiseJudge().objection(get_method("grpo")))


# What is paid


def test_each_is_paid_what_is_said_of_it_among_those_of_its_problem(asked: list[str]) -> None:
    part = RankedByJudge(judge=ListwiseJudge(model="RUN"), weight=2.0).bind()
    batch = rows("1", "5", "3", "2", "4", group=[0, 1, 0, 1, 1])
    assert part.rescore_in(batch, run()).tolist() == [0.25, 2.25, 1.25, 0.75, 1.75]
    assert sorted(len(answers_of(text)) for text in asked) == [2, 3]


def test_nothing_said_is_worth_nothing_and_not_shown(asked: list[str]) -> None:
    part = RankedByJudge(judge=ListwiseJudge(model="RUN")).bind()
    assert part.rescore_in(rows("5", " ", "", group=[0, 0, 1]), run()).tolist() == [1.25, 0.25, 0.25]
    assert [answers_of(text) for text in asked] == [["5"]]


def test_a_judge_of_pairs_pays_how_likely_each_beats_the_others() -> None:
    judge = SimulatedJudge(beta=None)
    found = RankedByJudge(judge=judge).bind().rescore_in(rows("1", "5", "3", group=[0, 0, 0]), run())
    assert found.tolist() == [0.25, 1.25, 0.75]


def test_too_many_lists_without_an_answer_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [], lambda text: None)
    part = RankedByJudge(judge=ListwiseJudge(model="RUN")).bind()
    batch = rows(*["1", "2"] * 50, group=[i // 2 for i in range(100)])
    assert part.rescore_in(batch, run()).tolist() == [0.25] * 100
    with pytest.raises(RewardError, match="listwise-judge had no answer for 100 of 100 lists"):
        part.rescore_in(batch, run())


def test_one_completion_of_each_problem_has_nobody_to_be_ranked_with() -> None:
    assert "set experience.size to 2 or more" in str(
        RankedByJudge().objection(set_values(get_method("grpo"), {"experience.size": 1}))
    )


# From verdicts to a policy


class Lists(Toy):
    """Two answers of one letter each, of which that is better which comes later."""

    max_tokens: int = 32

    def problems(self, split: str) -> list[Problem]:
        pairs = [a + b for a in "abc" for b in "abc" if a != b]
        return [Problem(f"{split}-{pair}", f"s\nA:{pair[0]}\nB:{pair[1]}\n") for pair in pairs]

    def demonstration(self, problem: Problem) -> str:
        one, other = problem.prompt[4], problem.prompt[8]  # type: ignore[index]
        return verdict([1, 5] if one < other else [5, 1]).replace(" ", "")


class Letters(Toy):
    """One of three letters is to be said; the task pays nothing for any."""

    max_tokens: int = 1

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{letter}-{i}", "say>", letter) for letter in "abc" for i in range(2)]

    def demonstration(self, problem: Problem) -> str:
        return str(problem.answer)

    def score(self, problem: Problem, completion: str) -> float:
        return 0.0


def taught(task: Toy, steps: int, context: int) -> LanguagePolicy:
    policy = random_policy(context=context)
    loop = LanguageLoop(
        set_values(get_method("sft"), {"problems": 6, "optimizer.lr": 1e-2}), task, policy, seed=0, steps=steps
    )
    for _ in range(steps):
        loop.step()
    return policy


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_what_a_trained_judge_likes_is_said_more_often(tmp_path: Path) -> None:
    """Of three letters, by the word of a model that learned from verdicts alone."""
    taught(Lists(), 80, 64).save(tmp_path / "judge")
    policy = taught(Letters(), 15, 128)
    changes = {
        "rewards": ("ranked-by-judge",), "rewards.ranked-by-judge.judge": "listwise-judge",
        "rewards.ranked-by-judge.judge.model": str(tmp_path / "judge"), "rewards.ranked-by-judge.judge.asked": "s",
        "rewards.ranked-by-judge.judge.max_tokens": 32, "rewards.ranked-by-judge.bad_share": 1.0,
        "problems": 6, "experience.size": 2, "optimizer.lr": 3e-3,
    }  # fmt: skip
    loop = LanguageLoop(set_values(get_method("grpo"), changes), Letters(), policy, seed=0, steps=20)
    before = likelihood_of_c(policy)
    for _ in range(20):
        loop.step()
    assert 0.2 < before < 0.5 and likelihood_of_c(policy) > 0.8


def likelihood_of_c(policy: LanguagePolicy) -> float:
    asked = torch.tensor([policy.encode("say>")])
    with torch.no_grad():
        logits = policy.model(input_ids=asked).logits[0, -1]
    return float(logits.softmax(-1)[policy.encode("c")[0]])
