"""Judges that compare: both orders, votes and ranks; simulated teachers and their errors; what views show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, RewardError
from etude.rewards.asked_judges import likelihoods
from etude.rewards.judged import AfterThinking, Beginning, JudgeReward, WholeCompletion
from etude.rewards.judges import Case, Contained, Duel
from etude.rewards.pair_judges import FunctionPairJudge, ModelPairJudge, PairJudge, SimulatedJudge
from etude.rewards.preferences import AgainstOneOther, ByJudge, Wins
from language_toys import random_policy

ASKED = Problem("p/1", "how much?", "2")


class Ordered(PairJudge):
    """Says what the table has of two answers in this order, else that the first is better by its number, and a bias."""

    table: ClassVar[dict[tuple[str, str], float | None]] = {}
    bias: float = 0.0

    def scores(self, cases: Sequence[Case], context: Any) -> list[float | None]:
        pairs = [(c.given, c.wanted[0]) for c in cases]
        return [self.table[p] if p in self.table else self._default(c) for p, c in zip(pairs, cases)]

    def _default(self, case: Case) -> float:
        return 1 / (1 + math.exp(-float(case.given) + float(case.wanted[0]) - self.bias))


def run() -> Any:
    task = SimpleNamespace(score=lambda p, text: float(text or 0), answer=str.strip)
    return SimpleNamespace(task=task, policy=SimpleNamespace(work=Counter()))


def said(*texts: str) -> list[Episode]:
    return [Episode(ASKED, [Segment("assistant", t, [5], [1], [0.0])], i) for i, t in enumerate(texts)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], float | None]:
    found: dict[tuple[str, str], float | None] = {}
    monkeypatch.setattr(Ordered, "table", found)
    return found


# Comparing


@pytest.mark.parametrize("bias", [0.0, 1.7, -30.0])
def test_chances_of_both_orders_add_up_to_one_whatever_place_is_favoured(bias: float) -> None:
    judge, pairs = Ordered(bias=bias).bind(), [("1", "2"), ("2", "1"), ("3", "3"), ("0.5", "0.1"), ("0.1", "0.5")]
    found = [o.chance for o in judge.compare([Duel(ASKED, *pair) for pair in pairs], run()) if o is not None]
    assert found[0] + found[1] == pytest.approx(1, abs=1e-15) and found[3] + found[4] == pytest.approx(1, abs=1e-15)
    assert found[2] == 0.5  # exactly, against itself
    once = Ordered(bias=bias, orders="given").bind().compare([Duel(ASKED, "3", "3")], run())[0]
    assert once is not None and (once.chance == 0.5) is (bias == 0)


def test_a_win_takes_both_orders_and_a_tie_is_none(table: dict[tuple[str, str], float | None]) -> None:
    table.update({("a", "b"): 0.9, ("b", "a"): 0.6, ("c", "d"): 0.9, ("d", "c"): 0.4, ("e", "f"): 0.5, ("f", "e"): 0.5})
    context = run()
    duels = [Duel(ASKED, *pair) for pair in ("ab", "cd", "ef")]
    found = Ordered().bind().compare(duels, context)
    assert [o and round(o.chance, 3) for o in found] == [0.65, 0.75, 0.5]
    assert [o and o.unanimous for o in found] == [False, True, False]
    assert context.policy.work["judge/ordered/disagreed"] == 1 and context.policy.work["judge/ordered/asked"] == 6


def test_no_answer_in_either_order_is_no_answer(table: dict[tuple[str, str], float | None]) -> None:
    table.update({("a", "b"): 0.9, ("b", "a"): None, ("c", "d"): 0.9, ("d", "c"): 0.4})
    judge = Ordered().bind()
    assert [o is None for o in judge.compare([Duel(ASKED, "a", "b"), Duel(ASKED, "c", "d")], run())] == [True, False]
    assert judge.rank([(ASKED, ["a", "b"]), (ASKED, ["c", "d"])], run())[0] is None


def test_what_is_no_chance_is_refused(table: dict[tuple[str, str], float | None]) -> None:
    table.update({("a", "b"): 7.0, ("b", "a"): 0.5})
    with pytest.raises(RewardError, match=r"Ordered must score from 0 to 1, got 7\.0 for the answer 'a'"):
        Ordered().bind().compare([Duel(ASKED, "a", "b")], run())


def test_ranks_are_mean_chances_against_the_others() -> None:
    judge = Ordered(bias=0.4).bind()
    found = judge.rank([(ASKED, ["1", "3", "2"]), (ASKED, ["5"])], run())
    assert found[1] == [0.5] and found[0] is not None
    assert sum(found[0]) == pytest.approx(1.5, abs=1e-14) and found[0][1] > found[0][2] > found[0][0]
    first = [judge.compare([Duel(ASKED, "1", other)], run())[0] for other in ("3", "2")]
    assert found[0][0] == pytest.approx(sum(o.chance for o in first if o) / 2, abs=1e-15)


def test_a_judge_of_single_answers_compares_by_its_scores() -> None:
    judge = Contained().bind()
    found = judge.compare([Duel(ASKED, "2", "7"), Duel(ASKED, "7", "2"), Duel(ASKED, "2", "it is 2")], run())
    assert [o and o.chance for o in found] == [1.0, 0.0, 0.5]
    assert judge.rank([(ASKED, ["2", "7"])], run()) == [[1.0, 0.0]]


def test_as_a_reward_a_pair_judge_pays_the_chance_against_the_problems_answer() -> None:
    part = JudgeReward(panel=(Ordered(bias=3.0),), sees=WholeCompletion(), pays="score").bind()
    assert part.score(said("2", "5"), run()) == pytest.approx([0.5, _averaged(5, 2, 3.0)], abs=1e-15)


def _averaged(one: float, other: float, bias: float) -> float:
    forth, back = 1 / (1 + math.exp(other - one - bias)), 1 / (1 + math.exp(one - other - bias))
    return (forth + 1 - back) / 2


# Teachers


def test_a_simulated_teacher_errs_as_it_is_told() -> None:
    duels = [Duel(ASKED, *pair) for pair in (("3", "1"), ("2", "1.5"), ("-1", "-3"))]

    def chances(**fields: Any) -> list[float | None]:
        found = SimulatedJudge(**fields).bind().compare(duels, run())
        return [None if o is None else round(o.chance, 12) for o in found]

    def sigmoid(x: float) -> float:
        return round(1 / (1 + math.exp(-x)), 12)

    assert chances(beta=2.0) == [sigmoid(4), sigmoid(1), sigmoid(4)]
    assert chances(beta=None) == [1.0, 1.0, 1.0]
    assert chances(beta=None, mistakes=0.1) == [0.9, 0.9, 0.9]
    assert chances(beta=None, equal=0.6) == [1.0, 0.5, 1.0]
    assert chances(beta=None, skip=0.0) == [1.0, 1.0, None]
    assert chances(beta=1.0, bias=5.0)[1] == round(_averaged(2, 1.5, 5.0), 12)
    with pytest.raises(ConfigError, match="set beta"):
        SimulatedJudge(beta=None, bias=1.0)
    with pytest.raises(RewardError, match="nobody says which problem"):
        SimulatedJudge().bind().scores([Case("how much?", "3", ("1",))], run())


def test_a_myopic_teacher_sees_the_end_and_one_that_is_not_sees_the_whole() -> None:
    context = run()
    context.task.score = lambda p, text: 2.0 * text.count("a") - text.count("b")
    myopic, whole = SimulatedJudge(gamma=0.5).bind(), SimulatedJudge().bind()
    assert myopic.worth(ASKED, "aab", context) == 0.25 * 2 + 0.5 * 2 - 1
    assert whole.worth(ASKED, "aab", context) == 3 == SimulatedJudge(gamma=1.0).bind().worth(ASKED, "baa", context)
    assert SimulatedJudge(gamma=1 - 1e-12).bind().worth(ASKED, "aab", context) == pytest.approx(3, abs=1e-10)


@pytest.mark.slow
def test_a_model_is_asked_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chance is that of two verdicts, read by teacher forcing; a comparison that was made is remembered."""
    policy = random_policy(seed=3)
    monkeypatch.setattr("etude.policies.language.LanguagePolicy.load", lambda *args, **options: policy)
    judge = ModelPairJudge(model="tiny", question="{prompt}{given}|{wanted}?", yes="a", no="b").bind()
    context = run()
    (found,) = judge.compare([Duel(ASKED, "c", "d")], context)
    assert found is not None
    for order, chance in ((("c", "d"), found.straight), (("d", "c"), 1 - found.turned)):
        text = "how much?{}|{}?".format(*order)
        rows = [judge._reply(0, Case("how much?", order[0], (order[1],)), reply, policy) for reply in "ab"]
        assert rows[0].segments[0].text == text
        assert chance == pytest.approx(
            float(likelihoods(policy, rows).softmax(0)[0]), abs=1e-5
        )  # read in another batch
    assert found.straight != 1 - found.turned  # it favours a place
    turned = judge.compare([Duel(ASKED, "d", "c")], context)[0]
    assert turned == pytest.approx((1 - found.turned, 1 - found.straight), abs=1e-15)
    assert context.policy.work["judge/model-pair-judge/cached"] == 2


@pytest.mark.slow
def test_a_function_says_which_is_better(tmp_path: Any) -> None:
    code = "def longer(prompt, given, wanted):\n    return len(given) > len(wanted[0])\n"
    (tmp_path / "mine.py").write_text(code)
    judge = FunctionPairJudge(function=f"{tmp_path / 'mine.py'}:longer").bind()
    try:
        found = judge.compare([Duel(ASKED, "long", "no"), Duel(ASKED, "a", "b")], run())
    finally:
        judge.close()
    assert [o and (o.chance, o.unanimous) for o in found] == [(1.0, True), (0.5, False)]


@pytest.mark.slow
def test_a_function_that_says_it_in_words_is_told_what_it_said(tmp_path: Any) -> None:
    (tmp_path / "mine.py").write_text("def better(prompt, given, wanted):\n    return 'yes'\n")
    judge = FunctionPairJudge(function=f"{tmp_path / 'mine.py'}:better").bind()
    try:
        with pytest.raises(RewardError, match="FunctionPairJudge must score from 0 to 1, got 'yes' for the answer 'a'"):
            judge.compare([Duel(ASKED, "a", "b")], run())
    finally:
        judge.close()


def test_a_pair_judge_that_loses_an_order_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ordered, "scores", lambda self, cases, context: [0.5] * (len(cases) - 1))
    with pytest.raises(RewardError, match="Ordered gave 3 scores for 4 cases"):  # two duels in both orders
        Ordered().bind().compare([Duel(ASKED, "a", "b"), Duel(ASKED, "c", "d")], run())


# What they see


def test_the_thought_is_not_shown_and_a_prefix_is_all_that_is() -> None:
    whole, thinking, bare = said("so 7</think>2", "7 so 7</think>", "7")
    assert [v.case(thinking, None) for v in (AfterThinking(), AfterThinking(strict=True))] == [None, None]
    found = [
        AfterThinking().case(whole, None),
        AfterThinking().case(bare, None),
        Beginning(share=0.3).case(whole, None),
    ]
    assert [case and case.given for case in found] == ["2", "7", "so 7"]
    assert AfterThinking(strict=True).case(bare, None) is None
    with pytest.raises(ConfigError, match="must be what ends a thought"):
        AfterThinking(delimiter="")


# Rewards of comparisons


def rows(*texts: str) -> Any:
    group = torch.zeros(len(texts), dtype=torch.long)
    return SimpleNamespace(scores=torch.zeros(len(texts)), group=group, draw=torch.arange(len(texts)) + 11,
                           episodes=said(*texts), once=lambda: None)  # fmt: skip


def test_a_judge_is_an_oracle() -> None:
    batch, one, two = rows("1", "3", "3"), torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
    oracle = ByJudge(judge=SimulatedJudge(beta=1.0, bias=2.5)).bind()
    chances = oracle.chances(batch, one, two, run())
    assert float(chances[0] + chances[1]) == pytest.approx(1, abs=1e-6) and float(chances[2]) == 0.5
    assert oracle.prefers(batch, one, two, run()).tolist() == [False, False, False]  # a place counts for more
    assert ByJudge(judge=SimulatedJudge(beta=9.0)).bind().prefers(batch, one, two, run()).tolist() == [
        False,
        True,
        False,
    ]
    wins = Wins(oracle=ByJudge(judge=SimulatedJudge(beta=None))).bind().rescore_in(batch, run())
    assert wins[0] == 0 and wins.sum() == 3
    assert sorted(AgainstOneOther(oracle=oracle).bind().rescore_in(batch, run()).tolist()) == [-1, -1, 0]


def test_answers_that_differ_in_thought_alone_are_a_tie() -> None:
    """By a teacher who counts characters, so that whoever saw the thought would prefer the longer one."""
    batch, one, two = rows("00</think>3", "1</think>3", "9</think>33"), torch.tensor([0, 0]), torch.tensor([1, 2])
    context = run()
    context.task.score = lambda problem, text: float(len(text))
    behind = ByJudge(judge=SimulatedJudge(), sees=AfterThinking()).bind()
    assert behind.chances(batch, one, two, context).tolist() == pytest.approx([0.5, 1 / (1 + math.exp(1.0))], abs=1e-6)
    assert behind.prefers(batch, two, one, context).tolist() == [False, True]
    whole = ByJudge(judge=SimulatedJudge()).bind().chances(batch, one, two, context)
    assert float(whole[0]) == pytest.approx(1 / (1 + math.exp(-1.0)), abs=1e-6)


def test_a_judge_that_says_nothing_makes_a_tie_and_too_often_ends_the_run() -> None:
    batch, none = rows("-1", "-2"), SimulatedJudge(skip=0.0)
    oracle, one, two = ByJudge(judge=none).bind(), torch.zeros(99).long(), torch.ones(99).long()
    assert set(oracle.chances(batch, one, two, run()).tolist()) == {0.5}
    assert oracle.state == {"compared": 99, "failed": 99}
    with pytest.raises(RewardError, match=r"no answer in 100 of 100 comparisons, .* problem 'p/1'"):
        oracle.prefers(batch, one[:1], two[:1], run())
    ByJudge(judge=none, bad_share=1.0).bind().prefers(batch, one.repeat(2), two.repeat(2), run())
