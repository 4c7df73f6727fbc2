"""Judges: what they accept, that they are asked once and only where it is needed, and that failing is not a zero."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError, RewardError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.rewards.asked_judges import FunctionJudge, ModelJudge
from etude.rewards.canonical import canonical_form, plain_form
from etude.rewards.judged import FAILED, JudgeReward, SecondOpinion, WholeCompletion
from etude.rewards.judges import Case, Contained, Judge, RememberingJudge, SameAnswer, SegmentPrefix
from etude.rewards.outcome import TaskReward
from etude.rewards.scoring import score
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Told(RememberingJudge):
    """Says of each answer what the table has, and notes what it was asked about."""

    table: ClassVar[dict[str, float | None]] = {}
    asked: ClassVar[list[str]] = []

    def scores(self, cases: Sequence[Case], context: Any) -> list[float | None]:
        self.asked.extend(c.given for c in cases)
        return [self.table.get(c.given, 0.0) for c in cases]


class Says(Judge):
    """The same score for all."""

    always: float = 0.0

    def scores(self, cases: Sequence[Case], context: Any) -> list[float]:
        return [self.always] * len(cases)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "table", {})
    monkeypatch.setattr(Told, "asked", [])


def run() -> Any:
    return SimpleNamespace(task=SimpleNamespace(answer=str.strip), policy=SimpleNamespace(work=Counter()))


def cases(*given: str, wanted: Sequence[str] = ("7",)) -> list[Case]:
    return [Case("2+5=", g, tuple(wanted)) for g in given]


def said(*completions: str, answer: object = "7", paid: float = 0.0) -> list[Episode]:
    return [Episode(Problem(f"p/{i}", "2+5=", answer), [Segment("assistant", text, [5], [1], [0.0], reward=paid)], i)
            for i, text in enumerate(completions)]  # fmt: skip


# One way of writing


@pytest.mark.parametrize(
    ("text", "form"),
    [("Forty-two", "42"), ("forty two", "42"), ("two three", "2 3"), ("ninety nine thousand and one", "99001"),
     ("three million and seven", "3000007"), ("two hundred and", "200 and"), ("x and seven", "x and 7"),
     ("twenty zero", "20 0"), ("Negative one hundred", "-100"), ("-0.50", "-0.5"), ("-0", "0"), ("007", "7"),
     ("+3", "3"), ("1,234,567", "1234567"), ("1,23", "1,23"), ("a=3", "a=3"), ("A house", "house"), ("zero", "0"),
     ("nineteen", "19"), ("**7**.", "7"), ("", "")],
)  # fmt: skip
def test_numbers_are_written_in_figures(text: str, form: str) -> None:
    assert canonical_form(text) == form
    assert canonical_form(form) == form


def test_every_number_below_a_thousand_is_read_back() -> None:
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    small = (ones + "seventeen eighteen nineteen").split()
    tens = ["x", "x", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

    def spelt(n: int) -> str:
        if n < 20:
            return small[n]
        if n < 100:
            return tens[n // 10] + (f"-{small[n % 10]}" if n % 10 else "")
        return f"{small[n // 100]} hundred" + (f" and {spelt(n % 100)}" if n % 100 else "")

    assert [canonical_form(spelt(n)) for n in range(1000)] == list(map(str, range(1000)))
    assert [canonical_form(f"{spelt(n)} thousand {spelt(n)}") for n in range(1, 1000)] == [
        str(1001 * n) for n in range(1, 1000)
    ]


def test_the_plain_form_leaves_words_for_numbers() -> None:
    assert plain_form("The Seven") == "seven"


# Rules


def test_containment_goes_both_ways_and_nothing_contains_nothing() -> None:
    judge = Contained().bind()
    found = judge.scores(cases("it is 7", "7", "17", "", "...", wanted=("7",)), None)
    assert found == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert judge.scores(cases("blue", "dark blue sea", wanted=("the dark blue",)), None) == [1.0, 1.0]
    assert judge.scores(cases("7", wanted=("",)), None) == [0.0]
    assert Contained(unit="character").bind().scores(cases("17"), None) == [1.0]


def test_the_prefix_judge_takes_the_first_segments_however_many_and_no_wrong_one() -> None:
    """Row rlpt, identity 1."""
    wanted = ("7+5=12;", "12*2=24;", "24-3=21;")
    prefixes = ["".join(wanted[:j]) for j in (1, 2, 3)]
    wrong = [p + "9+9=18;" for p in prefixes] + ["9+9=18;" + p for p in prefixes]
    assert SegmentPrefix().bind().scores(cases(*prefixes, wanted=wanted), None) == [1.0, 1.0, 1.0]
    assert SegmentPrefix().bind().scores(cases(*wrong, wanted=wanted), None) == [0.0] * 6
    assert SegmentPrefix(most=1).bind().scores(cases(*prefixes, wanted=wanted), None) == [1.0, 0.0, 0.0]
    parts = [prefixes[2][:n] for n in range(len(prefixes[2]) + 1)]
    whole = {p.rstrip(";") for p in prefixes}
    found = SegmentPrefix().bind().scores(cases(*parts, wanted=wanted), None)
    assert found == [float(p.rstrip(";") in whole) for p in parts]


# Asking


def test_equal_cases_are_asked_about_once_and_failures_again() -> None:
    Told.table = {"a": 1.0, "b": None, "c": 0.25}
    judge, context = Told().bind(), run()
    assert judge.score(cases("a", "b", "a", "c"), context) == [1.0, None, 1.0, 0.25]
    assert judge.score(cases("a", "b", "c"), context) == [1.0, None, 0.25]
    assert Told.asked == ["a", "b", "c", "b"]
    start = "judge/told/"
    assert context.policy.work == {start + "asked": 7, start + "cached": 3, start + "accepted": 3, start + "failed": 2}


def test_accepting_begins_at_least() -> None:
    Told.table = {"a": 0.5, "b": 0.49, "c": None}
    assert Told().bind().accept(cases("a", "b", "c"), run()) == [True, False, None]
    assert Told(least=0.4).bind().accept(cases("a", "b", "c"), run()) == [True, True, None]


def test_what_was_said_is_in_the_state_up_to_a_limit() -> None:
    Told.table = {"a": 1.0}
    judge = Told(remember=2).bind()
    judge.score(cases("a", "b", "c"), run())
    again = Told(remember=2).bind()
    again.state.update(json.loads(json.dumps(judge.state)))
    assert len(again.state["said"]) == 2
    again.score(cases("b", "c", "a"), run())
    assert Told.asked == ["a", "b", "c", "a"]


def test_what_a_case_is_counts_whole() -> None:
    keys = {
        c.key for c in (Case("p", "g", ("w",)), Case("pg", "", ("w",)), Case("p", "gw", ()), Case("p", "g", ("w", "")))
    }
    assert len(keys) == 4


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, math.inf])
def test_a_score_is_from_0_to_1(value: float) -> None:
    Told.table = {"a": value}
    with pytest.raises(RewardError, match="must score from 0 to 1"):
        Told().bind().score(cases("a"), run())


class Short(Judge):
    """Loses the last case."""

    def scores(self, cases: Sequence[Case], context: Any) -> list[float]:
        return [0.5] * (len(cases) - 1)


class ShortMemory(RememberingJudge, Short):
    """Loses the last of those that it is asked about."""


@pytest.mark.parametrize("judge", [Short(), ShortMemory()])
def test_a_score_for_each_case_is_asked_for(judge: Judge) -> None:
    with pytest.raises(
        RewardError, match=rf"{type(judge).__name__} gave 3 scores for 4 cases: its `scores` must .* None"
    ):
        judge.bind().score(cases("a", "b", "c", "d"), run())


def test_what_was_said_before_does_not_count_as_a_case() -> None:
    judge = ShortMemory().bind()
    judge.state["said"] = {case.key: 0.5 for case in cases("a", "b")}
    with pytest.raises(RewardError, match="ShortMemory gave 1 scores for 2 cases"):
        judge.score(cases("a", "b", "c", "d"), run())
    assert judge.score(cases("a", "b"), run()) == [0.5, 0.5]


class Worded(Judge):
    """Says it in words."""

    word: ClassVar[Any] = "yes"

    def scores(self, cases: Sequence[Case], context: Any) -> list[float]:
        return [self.word] * len(cases)


@pytest.mark.parametrize("value", ["yes", "0.5", [1.0]])
def test_what_is_no_number_is_named(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worded, "word", value)
    Told.table = {"a": value}
    for judge in (Told(), Worded()):
        with pytest.raises(RewardError) as refused:
            judge.bind().score(cases("a"), run())
        assert f"{type(judge).__name__} must score from 0 to 1, got {value!r} for the answer 'a'" in str(refused.value)


# The most of a rule and a judge


WORDS = ("7", "seven", "17", "it is 7", "")


def paid(*panel: Judge, episodes: Sequence[Episode] | None = None, **fields: Any) -> list[float]:
    part = JudgeReward(panel=panel, **fields).bind()
    return list(part.score(said(*WORDS) if episodes is None else episodes, run()))


def test_the_most_of_both_is_at_least_each() -> None:
    """Row qwenlong-l1, identity 2."""
    rule, judge, both = paid(Contained()), paid(SameAnswer()), paid(Contained(), SameAnswer())
    assert both == [max(pair) for pair in zip(rule, judge)] == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert rule != both != judge
    assert paid(Contained(), Contained()) == rule
    assert paid(Contained(), Says(always=0.0)) == rule
    assert paid(Contained(), Says(always=1.0)) == [1.0, 1.0, 1.0, 1.0, 0.0]  # nothing was said: nobody is asked


def test_the_judge_is_asked_only_where_the_rule_said_no() -> None:
    paid(Contained(), Told())
    assert Told.asked == ["seven", "17"]


def test_the_score_itself_can_be_paid() -> None:
    Told.table = {"17": 0.75, "seven": 0.25}
    assert paid(Contained(), Told(), pays="score", weight=2.0) == [2.0, 0.5, 1.5, 2.0, 0.0]
    assert paid(Contained(), Told()) == [1.0, 0.0, 1.0, 1.0, 0.0]


def test_what_was_cut_has_no_answer() -> None:
    whole, cut = said("7", "7")
    cut.stop = StopReason.MAX_TOKENS
    assert paid(SameAnswer(), episodes=[whole, cut]) == [1.0, 0.0]
    assert paid(SameAnswer(), episodes=[cut], sees=WholeCompletion()) == [1.0]


def test_a_second_opinion_makes_the_most_of_task_and_judge() -> None:
    episodes = said("7", paid=1.0) + said("17", paid=0.5) + said("seven") + said("eight")
    topped = SecondOpinion(panel=(Told(), SameAnswer())).bind().score(episodes, run())
    assert [e.reward + t for e, t in zip(episodes, topped)] == [1.0, 0.5, 1.0, 0.0]
    assert "7" not in Told.asked
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    parts = (TaskReward().bind(), SecondOpinion().bind())
    assert score(batch, parts, run()).scores.tolist() == [1.0, 0.5, 1.0, 0.0]


def test_a_second_opinion_needs_a_first_one() -> None:
    method = get_method("grpo")
    method.replace(rewards=(TaskReward(), SecondOpinion())).check()
    with pytest.raises(ConfigError, match="no task-reward is there"):
        method.replace(rewards=(SecondOpinion(),)).check()
    with pytest.raises(ConfigError, match="has nobody to ask"):
        method.replace(rewards=(JudgeReward(panel=()),)).check()


# A judge that fails is not a zero


def test_where_a_judge_failed_the_episode_has_no_reward() -> None:
    Told.table = {"17": None, "seven": 1.0}
    episodes = said("7", "17", "seven", "8")
    batch = score(
        to_batch(episodes, 0, 1.0, torch.device("cpu")), (JudgeReward(panel=(Contained(), Told())).bind(),), run()
    )
    assert [e.completion for e in batch.episodes] == ["7", "seven", "8"]
    assert batch.scores.tolist() == [1.0, 1.0, 0.0]
    assert [e.info.get("dropped") for e in episodes] == [None, FAILED, None, None]


def test_what_another_judge_accepted_needs_no_answer_of_the_failed_one() -> None:
    Told.table = {"seven": None}
    assert paid(Told(), SameAnswer(), episodes=said("seven")) == [1.0]
    assert math.isnan(paid(Told(), Says(always=0.75), episodes=said("seven"), pays="score")[0])


def test_a_failure_can_stop_the_run_and_many_do() -> None:
    Told.table = {"bad": None}
    with pytest.raises(RewardError, match=r"panel \(told\) had no answer for problem 'p/0'.*'bad'"):
        paid(Told(), episodes=said("bad"), on_failure="stop")
    part = JudgeReward(panel=(Told(),), bad_share=0.02).bind()
    part.score(said(*["good"] * 98, "bad", "bad"), run())
    with pytest.raises(RewardError, match=r"3 of 101 episodes, more than bad_share=0\.02"):
        part.score(said("bad"), run())


# Functions and models


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "my_judges.py"
    path.write_text(
        "import time\n"
        "def close(prompt, given, wanted):\n"
        "    if given == 'raise': raise ValueError('no')\n"
        "    if given == 'hang': time.sleep(60)\n"
        "    return None if given == 'none' else given[:1] == wanted[0][:1]\n"
        "def large(prompt, given, wanted): return 2\n"
        "def worded(prompt, given, wanted): return 'yes'\n"
    )
    return path


@pytest.mark.slow
def test_a_function_judges_and_fails_by_itself(functions: Path) -> None:
    judge, context = FunctionJudge(function=f"{functions}:close", timeout=1.0).bind(), run()
    assert judge.score(cases("71", "raise", "8", "none", "hang", "7"), context) == [1.0, None, 0.0, None, None, 1.0]
    assert context.policy.work["judge/function-judge/failed"] == 3
    part = JudgeReward(panel=(judge,), on_failure="stop").bind()
    with pytest.raises(RewardError, match=r"(?s)no answer for problem.*ValueError: no.*Mend the judge"):
        part.score(said("raise"), run())
    judge.close(), part.panel[0].close()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="nothing"):
        FunctionJudge(function=f"{functions}:nothing").bind()
    other = FunctionJudge(function=f"{functions}:large").bind()
    with pytest.raises(RewardError, match=r"must score from 0 to 1, got 2\.0"):
        other.score(cases("7"), run())
    other.close()
    worded = FunctionJudge(function=f"{functions}:worded").bind()
    with pytest.raises(RewardError, match="FunctionJudge must score from 0 to 1, got 'yes' for the answer '7'"):
        worded.score(cases("7"), run())
    worded.close()


def test_who_is_asked_must_be_named() -> None:
    method = get_method("grpo")
    for judge, words in ((FunctionJudge(), "no function to ask"), (ModelJudge(), "no model to ask")):
        with pytest.raises(ConfigError, match=words):
            method.replace(rewards=(JudgeReward(panel=(judge,)),)).check()
    with pytest.raises(ConfigError, match="two replies"):
        ModelJudge(no="yes")
    with pytest.raises(ConfigError, match=r"may have \{prompt\}"):
        ModelJudge(question="{answer}?")
    with pytest.raises(ConfigError, match=r"must be 'module:name'"):
        FunctionJudge(function="same")


def test_a_model_is_asked_for_the_likelihood_of_its_replies() -> None:
    model = random_policy(context=64)
    judge = ModelJudge(model="tiny", question="{given}={wanted}?", yes="yes", no="not").bind()
    judge.made["model"] = model
    given = ["seven", "7", "x" * 70, "17"]
    with pytest.warns(UserWarning, match="more than the 64"):
        found = judge.scores(cases(*given), run())
    assert found[2] is None
    for text, value in zip(given, found):
        if value is None:
            continue
        logp = []
        for reply in ("yes", "not"):
            asked, words = model.encode(f"{text}=7?"), [*model.encode(reply), 1]
            with torch.no_grad():
                logits = model.model(torch.tensor([asked + words])).logits[0].double().log_softmax(-1)
            logp.append(sum(float(logits[len(asked) - 1 + i, w]) for i, w in enumerate(words)))
        assert value == pytest.approx(1 / (1 + math.exp(logp[1] - logp[0])), rel=1e-5)


# In a run


def test_a_run_counts_whom_it_asked_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    method = get_method("grpo").replace(problems=2, rewards=(TaskReward(), OPINION))
    loop = make_loop(method, Toy(max_tokens=1), steps=3)
    first = loop.step().metrics
    asked, cached = first["judge/letter/asked"], first["judge/letter/cached"]
    assert asked > cached > 0
    assert first["judge/letter/accepted"] > 0 == first["judge/letter/failed"]
    loop.save(tmp_path)
    rest = [loop.step().metrics for _ in range(2)]
    other = make_loop(method, Toy(max_tokens=1), steps=3)
    other.load(tmp_path)
    for line in rest:
        again = other.step().metrics
        assert {k: v for k, v in again.items() if "second" not in k} == {
            k: v for k, v in line.items() if "second" not in k
        }


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if not k.startswith(("seconds", "tokens_per_second"))}


class Letter(RememberingJudge):
    """Accepts answers by the parity of their first letter."""

    def scores(self, cases: Sequence[Case], context: Any) -> list[float]:
        return [float(ord(c.given[0]) % 2) for c in cases]


OPINION = SecondOpinion(panel=(Letter(),), sees=WholeCompletion())
