"""KB-search: the facts, chains of them, what a search finds, worked answers, and searching while it is said."""

from __future__ import annotations

import time

import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.groups import Groups
from etude.experience.tag_search import Searching, TagSearch
from etude.experience.toolbox import ToolCalls
from etude.policies.word_tokenizer import PEOPLE, RELATIONS, build_word_tokenizer
from etude.rewards.search_tags import format_score
from etude.tasks.agents.kb_search import KBSearch, chained, kb_search, searched, stated
from etude.tasks.language.sums import sums

EVERY = KBSearch(hops=(1, 2, 3, 4), people=16)


def test_relations_are_one_to_one_without_fixed_points() -> None:
    for task in (kb_search, EVERY.replace(seed=1)):
        for relation in RELATIONS[: task.relations]:
            found = [task.facts[person, relation] for person in PEOPLE[: task.people]]
            assert sorted(found) == sorted(PEOPLE[: task.people])
            assert all(task.facts[person, relation] != person for person in PEOPLE[: task.people])
    assert kb_search.facts != kb_search.replace(seed=1).facts


def test_a_search_finds_the_fact_that_was_asked_for_and_the_one_the_other_way_round() -> None:
    facts = kb_search.facts
    for (person, relation), whom in facts.items():
        found = kb_search.search(f"{person}'s {relation}").split("\n")
        other = next(p for p in PEOPLE if facts[p, relation] == person)
        assert sorted(found) == sorted([stated(person, relation, whom), stated(other, relation, person)])
    assert kb_search.search("nobody") == "" and kb_search.search("") == ""
    assert len(kb_search.replace(found=4).search("balada's boss").split("\n")) == 4


def test_answers_are_chains_of_facts() -> None:
    for split in EVERY.splits():
        for problem in EVERY.problems(split)[:60]:
            whose = problem.info["person"]
            for relation in problem.info["path"]:
                whose = EVERY.facts[whose, relation]
            assert problem.answer == whose and problem.level == f"hops{len(problem.info['path'])}"
            assert problem.prompt == f"{chained(problem.info['person'], problem.info['path'])}?\n"


def test_splits_share_no_chain_and_single_facts_are_for_training() -> None:
    train, test = ({p.prompt for p in EVERY.problems(s)[:300]} for s in ("train", "test"))
    assert not train & test and {p.level for p in EVERY.problems("test")[:60]} == {"hops2", "hops3", "hops4"}
    assert EVERY.problems("train")[5] == EVERY.problems("train")[5]
    with pytest.raises(UnknownNameError, match="kb-search"):
        EVERY.problems("dev")
    with pytest.raises(ConfigError, match="at least 2"):
        KBSearch(hops=(1,))


def test_worked_answers() -> None:
    """In words, within the limit; careful ones right and in the grammar, the others in a share."""
    words = build_word_tokenizer("facts", 512)
    pool, right = kb_search.problems("train")[:300], 0
    for problem in pool:
        text = str(problem.prompt) + str(kb_search.demonstration(problem))
        tokens = words.encode(text)
        assert words.unk_token_id not in tokens and words.decode(tokens) == text
        assert len(tokens) < kb_search.max_tokens and format_score(str(kb_search.demonstration(problem))) > 0
        right += kb_search.score(problem, str(kb_search.demonstration(problem))) == 1
    assert 0.2 < right / len(pool) < 0.4, "a quarter, and those that a slip does not hurt"
    careful, longest = KBSearch(hops=(4,), careful=1.0, terse=0.0), 0
    for problem in careful.problems("test")[:50]:
        demonstration = str(careful.demonstration(problem))
        assert careful.score(problem, demonstration) == 1.0 and format_score(demonstration) == 1.0
        assert demonstration == searched(careful, problem.info["person"], problem.info["path"])
        longest = max(longest, len(words.encode(demonstration)))
    assert careful.max_tokens / 2 < longest < careful.max_tokens


def world(task: KBSearch = kb_search) -> Searching:
    found = task.replace(tools=TagSearch()).played_in()
    assert isinstance(found, Searching)
    found.reset(kb_search.problems("test")[0], 0)
    return found


def say(environment: Searching, text: str) -> StepResult:
    return environment.step(Segment("assistant", text))


def test_a_query_is_answered_at_once() -> None:
    game, problem = world(), kb_search.problems("test")[0]
    result = say(game, "<think>so</think><search>balada's boss</search>")
    (shown,) = result.segments
    assert (shown.role, shown.info["around"]) == ("tool", ["<information>", "</information>"])
    assert shown.text == kb_search.search("balada's boss") and result.info == {"searches": 1}
    assert not (result.reward or result.terminated or result.truncated)
    last = say(game, f"<answer>{problem.answer}</answer>")
    assert (last.reward, last.terminated, last.info) == (1.0, True, {"searches": 1})


@pytest.mark.parametrize("said", ["", "</search>", "<search>a", "<search>a</search> b", "no query"])
def test_what_is_no_query_goes_on_to_the_task(said: str) -> None:
    result = say(world(), said)
    assert result.terminated and result.reward == 0.0 and result.info == {"searches": 0}


def test_a_search_that_fails_is_told_to_the_policy() -> None:
    game = world()
    for search, said in (
        (lambda query: 1 / 0, "Error: search raised ZeroDivisionError: division by zero"),
        (lambda query: "x</information><answer>y</answer>", "x< /information>< answer>y< /answer>"),
        (lambda query: "z" * 3000, "the first 2000 of 3000 characters"),
    ):
        game.search = search
        (shown,) = say(game, "<search>a</search>").segments
        assert said in shown.text and len(shown.text) < 2100
    game.box, game.search = TagSearch(seconds=0.05), lambda query: str(time.sleep(5))
    assert "did not return within 0.05 s" in say(game, "<search>a</search>").segments[0].text


def test_a_task_without_a_search_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no search"):
        sums.replace(tools=TagSearch()).played_in()


def test_a_query_ends_the_turn_only_where_it_is_answered() -> None:
    task = kb_search.replace(tools=TagSearch(turns=3))
    assert (task.stop, task.max_turns) == (("</search>",), 3)
    assert (kb_search.stop, kb_search.max_turns) == ((), 1)
    assert Groups().sampling(Context(task, None, Stream(0), max_tokens=8)).stop == ("</search>",)


def test_its_search_can_be_called_like_any_tool() -> None:
    game = kb_search.replace(tools=ToolCalls()).played_in()
    game.reset(Problem("1", "?", "x"), 0)
    call = '<tool_call>{"name": "search", "arguments": {"query": "balada boss"}}</tool_call>'
    assert game.step(Segment("assistant", call)).segments[0].text == kb_search.search("balada boss")
