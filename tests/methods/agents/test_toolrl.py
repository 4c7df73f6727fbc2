"""ToolRL: what calls are worth, on the paper's own cases, and in what bounds."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.methods.agents.toolrl import (
    CallFormat,
    CallMatches,
    Calls,
    ExactCalls,
    StrictMatches,
    ThoughtLength,
    WholeCalls,
    well_formed,
)
from etude.tasks.agents.tool_dsl import ToolDSL, tool_dsl
from etude.tasks.language.sums import Sums

TOOLRL: Any = get_method("toolrl")
THOUGHT = "<think>well</think>\n"
GOLD = [("add", {"a": 1, "b": 2}), ("neg", {"x": 3}), ("now", {})]


def block(calls: Any) -> str:
    return "<tool_call>\n" + "\n".join(json.dumps({"name": n, "parameters": p}) for n, p in calls) + "\n</tool_call>"


def worth(said: str, answer: str = block(GOLD), step: int = 0, rewards: Any = TOOLRL.rewards) -> float:
    episode = Episode(Problem("1", "?", answer), [Segment("assistant", said)])
    context = Context(None, None, Stream(0), step)
    return float(sum(part.score([episode], context)[0] for part in rewards))


def test_the_wanted_calls_are_worth_four_in_any_order() -> None:
    for order in itertools.permutations(GOLD):
        assert worth(THOUGHT + block(order)) == pytest.approx(4.0, abs=1e-12)
        assert worth(block(order)) == pytest.approx(3.0, abs=1e-12), "without a thought"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (THOUGHT + "<tool_call>\n\n</tool_call>", -2.0),  # an empty body is an error of JSON
        (THOUGHT + "<tool_call>\n[]\n</tool_call>", -2.0),
        (THOUGHT + '<tool_call>\n{"name": "add"}\n</tool_call>', -2.0),
        (THOUGHT + block([("sub", {})]), -2.0),  # score 0
        ("<tool_call>", -3.0),
        ("nothing", -3.0),
        (block(GOLD).removesuffix("</tool_call>"), 3.0),  # read to its end
        # names: 1 of 3; both keys, one value; S_max = 1 + 3 + 2 + 1
        (THOUGHT + block([("add", {"a": 1, "b": 9})]), 1 + 6 * (1 / 3 + 1 + 1) / 7 - 3),
        # names: 1 of 4; of two calls of one name the better one serves, the other one nothing
        (THOUGHT + block([("add", {"c": 0}), ("add", {"a": 1})]), 1 + 6 * (1 / 4 + 1 / 2 + 1) / 7 - 3),
        (THOUGHT + block([*GOLD, ("now", {})]), 1 + 6 * (3 / 4 + 3 + 2 + 1) / 7 - 3),
        (THOUGHT + block([("add", {"a": "1", "b": 2}), *GOLD[1:]]), 1 + 6 * 6 / 7 - 3),  # "1" is not 1
    ],
)
def test_what_is_partly_right(said: str, expected: float) -> None:
    assert worth(said) == pytest.approx(expected, abs=1e-12)


def test_an_answer_without_calls_pays_for_its_shape_alone() -> None:
    response = "<response>no</response>"
    assert worth(THOUGHT + response, response) == 1.0 and worth(THOUGHT + block(GOLD), response) == 0.0
    assert worth("<think></think>", "") == 1.0 and worth(THOUGHT + response, "") == 0.0


def test_shapes() -> None:
    both = block(GOLD) + "\n<response>so</response>"
    assert well_formed(THOUGHT + both, both) and not well_formed(THOUGHT + block(GOLD), both)
    assert not well_formed(THOUGHT + both, block(GOLD)), "a response that was not wanted"
    assert well_formed("<think><think></think>" + THOUGHT + block(GOLD), block(GOLD)), "thoughts are not counted"
    for wrong in (block(GOLD), THOUGHT.strip() + block(GOLD), f"{THOUGHT}{block(GOLD)}\n", THOUGHT + block(GOLD) * 2):
        assert not well_formed(wrong, block(GOLD))


def some_calls(source: random.Random) -> str:
    calls = [
        (source.choice("abc"), {k: source.randrange(3) for k in source.sample("xyz", source.randrange(4))})
        for _ in range(source.randrange(1, 4))
    ]
    return block(calls)


def test_bounds_and_what_rewards_agree_on() -> None:
    source, kinds = random.Random(0), (CallMatches(), StrictMatches(), WholeCalls(), ExactCalls())
    for _ in range(300):
        gold, said = some_calls(source), some_calls(source)
        assert -3 <= worth(said, gold) <= 3 and -2 <= worth(THOUGHT + said, gold) <= 4
        fine, strict, whole, exact = (worth(said, gold, rewards=[kind]) for kind in kinds)
        assert -3 <= exact <= whole <= 3 and exact <= strict <= 3 and exact <= fine <= 3
    for part in kinds:
        assert worth(block(GOLD), rewards=[part]) == 3.0 and worth("{", rewards=[part]) == -3.0
        assert worth(block(GOLD), rewards=[part.replace(scale=1.0)]) == 1.0


def test_how_the_study_s_rewards_differ() -> None:
    said = block([GOLD[1], GOLD[0], ("now", {"z": 1})])
    found = [worth(said, rewards=[part]) for part in (CallMatches(), StrictMatches(), WholeCalls(), ExactCalls())]
    # names agree; all is right but the keys of `now`, 0 of 1; two calls of three are whole
    assert found == pytest.approx([6 * 6 / 7 - 3, 6 * 6 / 7 - 3, 6 * 2 / 3 - 3, -3.0], abs=1e-12)
    one = block([("add", {"a": 1, "b": 2, "c": 3})])
    wanted = block(GOLD[:1])
    assert worth(one, wanted, rewards=[CallMatches()]) == pytest.approx(6 * (1 + 2 / 3 + 2) / 4 - 3)
    assert worth(one, wanted, rewards=[StrictMatches()]) == pytest.approx(6 * (1 + 0 + 2) / 4 - 3)


def test_schedules() -> None:
    line = CallFormat(scale=2.0, later=1.0, until=150)
    assert [worth(THOUGHT + block(GOLD), step=s, rewards=[line]) for s in (0, 75, 150, 300)] == [2.0, 1.5, 1.0, 1.0]
    switch = CallMatches(scale=1.0, later=3.0, switch=30)
    assert [worth(block(GOLD), step=s, rewards=[switch]) for s in (29, 30)] == [1.0, 3.0]
    long = ThoughtLength(words=2, later=4, until=10)
    assert [worth("<think>a b c</think>", step=s, rewards=[long]) for s in (0, 5, 10, 99)] == [1.0, 1.0, 0.75, 0.75]
    for wrong in ({"later": 1.0}, {"until": 3}, {"later": 1.0, "until": 3, "switch": 3}):
        with pytest.raises(ConfigError, match=r"CallMatches\.later is the size from step"):
            CallMatches(**wrong)


def test_tasks_without_such_answers_are_refused() -> None:
    part: Calls = CallMatches()
    assert part.lacks(tool_dsl) is None
    assert "a text with <tool_call>, and task 'sums' has" in str(part.lacks(Sums()))


# The task


@pytest.mark.slow
def test_worked_answers_are_right_and_combinations_are_new() -> None:
    seen: dict[str, set[str]] = {}
    for split in ("train", "test"):
        pool = tool_dsl.problems(split)
        for problem in pool[:300]:
            demonstration = str(tool_dsl.demonstration(problem))
            assert tool_dsl.score(problem, demonstration) == 1.0 and worth(demonstration, problem.answer) == 4.0
            seen.setdefault(split, set()).add(" ".join(sorted(problem.info["tools"])))
            assert all(f"{name}(" in problem.prompt for name in problem.info["tools"])
    assert not seen["train"] & seen["test"] and all(" " in names for names in seen["test"])
    assert pool[3] == tool_dsl.problems("test")[3] and pool[3].prompt != ToolDSL(seed=1).problems("test")[3].prompt
    with pytest.raises(ConfigError, match=r"ToolDSL.calls must have an entry of at least 2"):
        ToolDSL(calls=(1,))


@pytest.mark.slow
def test_its_words_are_tokens() -> None:
    from etude.policies.loading import load_tokenizer

    words = load_tokenizer("blank:1x16@tools")
    for problem in tool_dsl.problems("train")[:50]:
        text = str(problem.prompt) + str(tool_dsl.demonstration(problem))
        tokens = words.encode(text)
        assert words.unk_token_id not in tokens and words.decode(tokens) == text
        assert len(words.encode(str(tool_dsl.demonstration(problem)))) < tool_dsl.max_tokens
    assert words.decode(words.encode("fly é")) == "fly <|unknown|>"
    with pytest.raises(ConfigError, match=r"tols.*Did you mean 'tools'"):
        load_tokenizer("blank:1x16@tols")


# Learning


class Few(ToolDSL):
    """Three requests for one call, of which worked answers show the right value and a wrong one."""

    def problems(self, split: str) -> list[Problem]:
        found = []
        for name, value in (("anna", "ben"), ("clara", "hugo"), ("emma", "felix")):
            prompt = f"send_mail(person)\nwrite {name}\n"
            for said in (name, value) if split == "shown" else (name,):
                worked = THOUGHT.replace("well", "send_mail") + block([("send_mail", {"person": said})])
                right = block([("send_mail", {"person": name})])
                found.append(Problem(f"{prompt}{said}", prompt, right, info={"demonstration": worked}))
        return found


class Shown(Few):
    def problems(self, split: str) -> list[Problem]:
        return super().problems("shown")


@pytest.mark.slow
def test_a_small_model_learns_which_value_is_right() -> None:
    from etude.experience.groups import Groups
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load("blank:1x32@tools", device="cpu")
    sft: Any = get_method("sft").replace(problems=6)
    warm = LanguageLoop(sft.replace(optimizer=sft.optimizer.replace(lr=2e-2)), Shown(), policy, seed=0, steps=60)
    for _ in range(60):
        warm.step()
    method = TOOLRL.replace(problems=3, experience=Groups(size=8), optimizer=TOOLRL.optimizer.replace(lr=3e-3))
    loop = LanguageLoop(method, Few(), policy, seed=0, steps=12)

    def right() -> float:
        context = Context(Few(), policy, Stream(7), max_tokens=40)
        episodes = Groups(size=32).collect(Few().problems("train"), context)
        return sum(e.reward for e in episodes) / len(episodes)

    before = right()
    for _ in range(12):
        loop.step()
    assert 0.2 < before < 0.8
    assert right() > before + 0.1
