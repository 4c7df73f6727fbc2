"""Several rewards with weights, as users give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.edit import set_values
from etude.core.errors import CheckpointError, ConfigError, RewardError, UnknownNameError
from etude.core.slots import Reward
from etude.rewards.function import CallableReward, FunctionReward
from etude.rewards.several import names, only_python, reward_parts, text
from etude.runs.training import compose_method


class Plain(Reward):
    """Nothing to set."""


def shown(given: Any) -> list[tuple[str, float, str]]:
    return [(str(p.fields()["function"]), p.fields()["weight"], p.fields()["column"]) for p in reward_parts(given)]


def test_one_function_is_as_it_was() -> None:
    assert reward_parts("m.py:score") == (FunctionReward("m.py:score"),)
    assert shown("m.py:score=0.5") == [("m.py:score", 0.5, "")]
    assert shown(("m.py:score", 2)) == shown(["m.py:score=2"]) == [("m.py:score", 2.0, "")]


def test_several_have_weights_and_columns() -> None:
    both = [("a.py:right", 1.0, "right"), ("pack.b:form", 0.2, "form")]
    assert shown(["a.py:right=1.0", "pack.b:form=0.2"]) == both
    assert shown([("a.py:right", 1.0), ("pack.b:form", 0.2)]) == both
    assert shown(("a.py:right", "pack.b:form=2e-1")) == both


def test_functions_of_one_name_are_told_apart() -> None:
    assert [c for *_, c in shown(["a.py:f", "d/b.py:f", "b.py:f", "c.py:g"])] == ["a.f", "b.f", "b.f-2", "g"]


def test_functions_and_parts_have_weights() -> None:
    def form(completions: list[str]) -> list[float]:
        return [0.0 for _ in completions]

    first, second = reward_parts([(form, 0.5), CallableReward(form, column="mine")])
    assert (first, second) == (CallableReward(form, weight=0.5), CallableReward(form, column="mine"))
    with pytest.raises(ConfigError, match=r"Plain has no weight: give it as it is, without 0.5"):
        reward_parts([(Plain(), 0.5)])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("m.py:score=much", r"The weight of a reward is a number, as in m.py:score=0.2; got 'much'"),
        ([], r"reward is an empty list: name a function"),
        ([("m.py:f", "0.2")], r"A reward with its weight is a pair, as in \(score, 0.2\); got \('m.py:f', '0.2'\)"),
        (3, r"A reward is a function, the name of one, or a part; got 3"),
        ("m.py:f=nan", r"FunctionReward.weight must be a number, got nan"),
        ("m.py", r"FunctionReward.function must be 'module:name' or 'path/to/file.py:name', such as 'm.py:score'"),
    ],
)
def test_what_is_no_reward(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        reward_parts(given)


def test_what_a_run_records() -> None:
    assert text(None) is None
    assert text("m.py:f=0.2") == "m.py:f=0.2"
    assert text([("m.py:f", 0.2), (shown, 2), len]) == ["m.py:f=0.2", f"{__name__}:shown=2.0", "builtins:len"]
    assert text(lambda completions: [0.0]) == "<test_what_a_run_records.<locals>.<lambda>>"
    assert names(["m.py:f=0.2", "n:g"]) == ["m.py:f", "n:g"]
    assert only_python(["m.py:f=0.2", "<g>"]) == "<g>" and only_python("m.py:f") is only_python(None) is None


def test_fields_are_set_for_all_or_by_column() -> None:
    method = compose_method("grpo", reward=["a.py:right", "b.py:form=0.2"])
    both = set_values(method, {"rewards.function-reward.timeout": 60}).slots()["rewards"]
    assert [p.timeout for p in both] == [60.0, 60.0]
    one = set_values(method, {"rewards.form.on_bad_reward": "zero", "rewards.0.bad_share": 0.5}).slots()["rewards"]
    assert [(p.on_bad_reward, p.bad_share) for p in one] == [("stop", 0.5), ("zero", 0.01)]
    with pytest.raises(UnknownNameError, match=r"'fomr'. Did you mean 'form'.* It holds: right, form"):
        set_values(method, {"rewards.fomr.timeout": 60})


def test_a_lone_function_is_set_by_its_name_too() -> None:
    alone = compose_method("grpo", reward="a.py:right")
    for path in ("rewards.right.timeout", "rewards.function-reward.timeout", "rewards.0.timeout"):
        assert [p.timeout for p in set_values(alone, {path: 60}).slots()["rewards"]] == [60.0]
    with pytest.raises(UnknownNameError, match=r"'rihgt'. Did you mean 'right'.* It holds: right"):
        set_values(alone, {"rewards.rihgt.timeout": 60})


REWARDS = """
def right(completions, answers):
    return [float(c.rpartition(":")[2].strip() == a) for c, a in zip(completions, answers)]

def form(completions):
    return [{"short": float(len(c) < 9), "never": 0.0} for c in completions]
"""
SMALL = {"problems": 4, "experience.size": 4, "optimizer.lr": 1e-3}
TIMED = ("seconds", "tokens_per_second", "seconds/experience", "seconds/update")


def plain(run: etude.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in run.metrics]


@pytest.mark.slow
def test_a_run_of_two_rewards_is_repeated_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)
    both = ["mine.py:right", "mine.py:form=0.25"]
    with pytest.warns(UserWarning, match=r"The component 'form/never' of the reward is inert: in the first 3 steps"):
        done = etude.train("grpo", reward=both, out="a", steps=3, evaluate=0, set=SMALL, quiet=True)
    for line in done.metrics:
        assert line["reward/form"] == pytest.approx(0.25 * line["reward/form/short"])
        assert line["reward"] == pytest.approx(line["reward/right"] + line["reward/form"], abs=1e-6)
    with pytest.warns(UserWarning, match="inert"):
        again = etude.train(config="a/run.toml", out="b", quiet=True)
    assert plain(done) == plain(again)
    monkeypatch.chdir("/")  # the run's files are found from anywhere
    assert "reward" in etude.evaluate(tmp_path / "a", problems=4, k=(1,), split="test")["test"]


@pytest.mark.slow
def test_rewards_that_only_live_in_python_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(REWARDS)

    def short(completions: list[str]) -> list[float]:
        return [float(len(c) < 9) for c in completions]

    def vowels(completions: list[str]) -> list[float]:
        return [c.count("a") / 9 for c in completions]

    given: Any = ["mine.py:right", (short, 0.5), (vowels, 0.25)]
    told: dict[str, Any] = {"evaluate": 0, "set": SMALL, "quiet": True}
    whole = etude.train("grpo", reward=given, out="whole", steps=2, **told)
    etude.train("grpo", reward=given, out="half", steps=1, **told)
    with pytest.raises(CheckpointError, match=r"which only lived in Python: give it again, as in etude.resume"):
        etude.resume("half", steps=2, quiet=True)
    with pytest.raises(ConfigError, match=r"The run had 2 rewards that only lived in Python, and was given 1"):
        etude.resume("half", steps=2, reward=short, accept_changes=True, quiet=True)
    assert plain(etude.resume("half", steps=2, reward=given, quiet=True)) == plain(whole)


FAILING = """
def right(completions, answers, ids):
    if BAD and open({log!r}, "a").write("x") and len(open({log!r}).read()) > 6:
        raise ValueError("the judge is gone")
    return [float(c.rpartition(":")[2].strip() == a) for c, a in zip(completions, answers)]
"""


@pytest.mark.slow
def test_a_reward_that_raises_leaves_a_checkpoint_of_the_steps_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five good steps, then a failure; mended, the run goes on to the numbers of one that never failed.

    The reward's first call is asked twice: one completion is scored again.
    """
    monkeypatch.chdir(tmp_path)
    source = FAILING.format(log=str(tmp_path / "calls"))
    whole = {"steps": 8, "evaluate": 0, "set": SMALL, "quiet": True, "reward": "judge.py:right"}
    Path("judge.py").write_text("BAD = False\n" + source)
    good = etude.train("kimi-k1-5", out="good", **whole)
    Path("judge.py").write_text("BAD = True\n" + source)
    with pytest.raises(RewardError, match=r"judge is gone[\s\S]*The run is safe at step 5 \(bad/checkpoints/step-5"):
        etude.train("kimi-k1-5", out="bad", **whole)
    Path("judge.py").write_text("BAD = False\n" + source)
    assert plain(etude.resume("bad", accept_changes=True, quiet=True)) == plain(good)
