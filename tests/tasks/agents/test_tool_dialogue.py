"""Tool-dialogue: places in dialogues, of which a fifth has a wrong call that is repaired."""

from __future__ import annotations

from collections import Counter

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.policies.loading import load_tokenizer
from etude.policies.service_words import SERVICES
from etude.rewards.tool_matches import calls_in
from etude.tasks.agents.tool_dialogue import ToolDialogue, tool_dialogue


def test_tools_have_names_of_two_or_three_tokens_that_begin_alike() -> None:
    assert len(SERVICES) == 24 and {len(name) for name in SERVICES} == {2, 3}
    assert all(any(other[0] == name[0] for other in SERVICES if other != name) for name in SERVICES)
    assert all(1 <= len(s.needs) <= 3 and not {*s.needs} & {*s.may} for s in SERVICES.values())


def test_a_fifth_of_the_dialogues_has_one_place_more() -> None:
    assert len(tool_dialogue.problems("train")) == 2 * 1217 + 243
    assert len(ToolDialogue(dialogues=7, calls=3, errors=1.0).problems("train")) == 28
    assert len(ToolDialogue(dialogues=7, calls=4, errors=0.0).problems("train")) == 28


@pytest.mark.slow
def test_places_follow_each_other() -> None:
    task = ToolDialogue(dialogues=40, calls=3, errors=0.5)
    before, levels = None, Counter[str]()
    for problem in task.problems("train"):
        info, level = problem.info, problem.level
        levels[level] += 1
        failed = "error:" in (info["reply"] or "")
        assert task.score(problem, problem.answer) == 1.0
        assert task.score(problem, info["demonstration"]) == float(not failed)
        if before is not None and before.info["dialogue"] == info["dialogue"]:
            assert problem.prompt == f"{before.prompt}{before.info['demonstration']}\n{before.info['reply']}\n"
            assert (level == "repair") == ("error:" in before.info["reply"])
            assert level != "repair" or problem.answer == before.answer
        else:
            assert level == "call1" and (before is None or before.info["reply"] is None), "the last has no reply"
        before = problem
    assert levels == {"call1": 40, "call2": 40, "call3": 40, "repair": 20}


@pytest.mark.slow
def test_right_calls_are_of_listed_tools_and_wrong_ones_cannot_be_done() -> None:
    kinds = Counter[str]()
    for problem in ToolDialogue(dialogues=60, errors=1.0).problems("train"):
        tools, (right,) = problem.info["signatures"], calls_in(problem.answer) or ()
        service = SERVICES[next(n for n in SERVICES if "".join(n) == right["name"])]
        assert {*service.needs} <= {*right["parameters"]} <= {*tools[right["name"]]}
        if "error:" not in (problem.info["reply"] or ""):
            continue
        (said,) = calls_in(problem.info["demonstration"]) or ()
        kind = problem.info["reply"].split()[1]
        kinds[kind] += 1
        if kind == "unknown":
            assert said["name"] not in tools and said["name"].split("_")[0] == right["name"].split("_")[0]
        elif kind == "unexpected":
            assert len({*said["parameters"]} - {*tools[said["name"]]}) == 1
        else:
            assert {*service.needs} - {*said["parameters"]} == {problem.info["reply"].split()[-1]}
    assert sum(kinds.values()) == 60 and min(kinds.values()) > 8 and len(kinds) == 3


@pytest.mark.slow
def test_no_set_of_tools_is_needed_in_both_splits_and_words_are_tokens() -> None:
    words = load_tokenizer("blank:1x16@services")
    needed: dict[str, set[frozenset[str]]] = {"train": set(), "test": set()}
    for split in needed:
        together: dict[int, set[str]] = {}
        for problem in tool_dialogue.problems(split)[:150]:
            text = f"{problem.prompt}{problem.info['demonstration']}"
            tokens = words.encode(text)
            assert words.unk_token_id not in tokens and words.decode(tokens) == text
            assert len(words.encode(problem.answer)) < tool_dialogue.max_tokens
            together.setdefault(problem.info["dialogue"], set()).add((calls_in(problem.answer) or [{}])[0]["name"])
        needed[split] |= {frozenset(names) for names in together.values() if len(names) == 2}
    assert len(needed["test"]) > 20 and not needed["train"] & needed["test"]


@pytest.mark.slow
def test_what_a_call_was_answered_with_is_asked_for_by_that() -> None:
    found = 0
    for problem in ToolDialogue(errors=0.0).problems("train")[:300]:
        if problem.level == "call2" and " that" in str(problem.prompt).splitlines()[1]:
            replies = str(problem.prompt).splitlines()[-1].strip()
            (right,) = calls_in(problem.answer) or ()
            assert replies in map(str, right["parameters"].values())
            found += 1
    assert found > 5


def test_seeds_and_settings() -> None:
    assert tool_dialogue.problems("test")[3] == ToolDialogue().problems("test")[3]
    assert tool_dialogue.problems("test")[3].prompt != ToolDialogue(seed=1).problems("test")[3].prompt
    with pytest.raises(UnknownNameError, match="split of tool-dialogue"):
        tool_dialogue.problems("tset")
    with pytest.raises(ConfigError, match=r"ToolDialogue.calls must be 2, 3 or 4, got 1"):
        ToolDialogue(calls=1)
    with pytest.raises(ConfigError, match=r"ToolDialogue.others must be at most 22, the tools that are left, got 23"):
        ToolDialogue(others=23)
