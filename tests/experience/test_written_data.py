"""Rows from data: what is learned, how it is closed, what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import pytest

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.data import Demonstrations, Pairs
from etude.experience.tag_search import TagSearch
from etude.experience.toolbox import ToolCalls
from etude.experience.views import LastTurns, SummaryAt
from etude.policies.byte_tokenizer import build_tokenizer
from etude.tasks.agents.attr_20q import Attr20Q, scripted_episode
from etude.tasks.agents.kb_search import KBSearch
from etude.tasks.language.compose import compose
from etude.tasks.language.preferences import preferences


class Tokens:
    """As much of a policy as written data needs."""

    def __init__(self, context: int = 512) -> None:
        self.tokenizer, self.context = build_tokenizer(512), context

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class Games(Attr20Q):
    """Twenty questions with a scripted player."""

    def script(self, problem: Problem, stream: Stream):
        return scripted_episode(self, problem, stream)


class Plain(LanguageTask):
    """A task of single problems."""

    def score(self, problem: Problem, completion: str) -> float:
        return 0.0


def collect(
    experience: Demonstrations | Pairs, task: LanguageTask, problems: list[Problem], policy=None
) -> list[Episode]:
    return experience.collect(problems, Context(task, policy or Tokens(), Stream(0)))


def learned(episode: Episode) -> list[int]:
    return [t for s in episode.segments for t, m in zip(s.tokens, s.action_mask) if m]


def test_a_demonstration_is_the_prompt_then_the_answer_and_the_end_token() -> None:
    problem, policy = compose.problems("train")[0], Tokens()
    (episode,) = collect(Demonstrations(), compose, [problem], policy)
    answer = [*policy.encode(problem.info["demonstration"]), policy.tokenizer.eos_token_id]
    assert episode.tokens == policy.encode(problem.prompt) + answer
    assert learned(episode) == answer
    assert [p for s in episode.segments for p in s.behaviour_logp] == [0.0] * len(episode.tokens)
    assert (episode.group, episode.stop.truncated) == (0, False)


def test_pairs_are_chosen_then_rejected_in_one_group() -> None:
    problems, policy = [preferences.problems("train")[i] for i in range(3)], Tokens()
    episodes = collect(Pairs(), preferences, problems, policy)
    assert [e.group for e in episodes] == [0, 0, 1, 1, 2, 2]
    assert [e.reward for e in episodes] == [1.0, 0.0] * 3
    for k, problem in enumerate(problems):
        said = [policy.decode(learned(e)) for e in episodes[2 * k : 2 * k + 2]]
        assert said == [problem.info["chosen"], problem.info["rejected"]]


def test_every_turn_of_a_script_is_learned_and_what_the_world_says_is_not() -> None:
    task, policy = Games(), Tokens()
    problem = task.problems("train")[0]
    (episode,) = collect(Demonstrations(), task, [problem], policy)
    turns = [s for s in episode.segments if s.role == "assistant"]
    assert len(turns) > 1
    assert learned(episode) == [t for s in turns for t in [*policy.encode(s.text), policy.tokenizer.eos_token_id]]
    assert "".join(s.text for s in episode.segments if s.role == "user") == policy.decode(
        [t for s in episode.segments for t, m in zip(s.tokens, s.action_mask) if not m]
    )
    again = collect(Demonstrations(), task, [problem], policy)
    assert again[0].tokens == episode.tokens


def test_a_script_is_learned_in_the_view_that_it_will_be_played_in() -> None:
    """A row for each turn: the opening, the turn before with its answer, and the turn, which alone is learned."""
    task, policy = Games(), Tokens()
    problem, end = task.problems("train")[0], policy.tokenizer.eos_token_id
    (whole,) = collect(Demonstrations(), task, [problem], policy)
    (episode,) = collect(Demonstrations(view=LastTurns(turns=1)), task, [problem], policy)
    assert episode.tokens == whole.tokens and not whole.views
    texts = [(s.role, s.text) for s in whole.segments]
    turns = [n for n, (role, _) in enumerate(texts) if role == "assistant"]
    expected, marks = [], []
    for n, place in enumerate(turns):
        before = texts[: turns[0]] + (texts[turns[n - 1] : place] if n else [])
        shown = [t for role, s in before for t in [*policy.encode(s), *[end] * (role == "assistant")]]
        said = [*policy.encode(texts[place][1]), end]
        expected.append(shown + said)
        marks.append([0] * len(shown) + [1] * len(said))
    expected[0:2] = [expected[1]]  # the second view goes on from the first
    marks[0:2] = [[max(a, b) for a, b in zip_longest(marks[0], marks[1], fillvalue=0)]]
    rows = episode.rows
    assert len(turns) > 2 and [row.tokens for row in rows] == expected
    assert [[m for s in row.segments for m in s.action_mask] for row in rows] == marks


def test_a_script_that_is_longer_than_the_context_fits_in_a_view() -> None:
    task, view = Games(), LastTurns(turns=1)
    problem = task.problems("train")[0]
    (long,) = collect(Demonstrations(view=view), task, [problem], Tokens())
    room = max(len(row.tokens) for row in long.rows)
    assert room < len(long.tokens)
    (kept,) = collect(Demonstrations(view=view), task, [problem], Tokens(room))
    assert kept.tokens == long.tokens
    with pytest.warns(UserWarning, match=f"have {room} tokens, more than the {room - 1}"):
        (left,) = collect(Demonstrations(view=view), task, [problem], Tokens(room - 1))
    assert not left.segments


def test_a_view_is_refused_where_nobody_wrote_its_summaries_and_of_one_turn() -> None:
    games, policy = Games(), Tokens()
    (episode,) = collect(Demonstrations(), games, [games.problems("train")[0]], policy)
    for turns in (1, 2):  # that fit, in one row
        limit = sum(len(s.tokens) for s in episode.segments[: 2 * turns])
        sentence = rf"Turn {turns + 1} of the worked answer .* no room in SummaryAt .* choose another view"
        with pytest.raises(DataError, match=sentence):
            collect(Demonstrations(view=SummaryAt(limit=limit)), games, [games.problems("train")[0]], policy)
    found = Demonstrations(view=LastTurns(turns=1)).lacks(compose)
    assert found and "has one turn: set experience.view=full-history" in found
    assert Demonstrations(view=LastTurns(turns=1)).lacks(games) is None


def test_tools_of_the_task_s_own_environment_are_in_reach_where_it_shows_how() -> None:
    """What is shown before a worked answer is what the policy is shown before it samples."""
    problem, policy = KBSearch().problems("train")[0], Tokens(1024)
    (plain,) = collect(Demonstrations(), KBSearch(), [problem], policy)
    (searching,) = collect(Demonstrations(), KBSearch(tools=TagSearch()), [problem], policy)
    assert searching.tokens == plain.tokens
    (calling,) = collect(Demonstrations(), KBSearch(tools=ToolCalls()), [problem], policy)
    told = policy.decode([t for s in calling.segments for t, m in zip(s.tokens, s.action_mask) if not m])
    assert "search" in told and told.endswith(problem.prompt) and learned(calling) == learned(plain)


def test_conversations_go_through_the_chat_template() -> None:
    policy = Tokens()
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    problem = Problem("1", prompt, info={"demonstration": "A", "chosen": "A", "rejected": "B"})
    with pytest.raises(ConfigError, match="chat template"):
        collect(Demonstrations(), Plain(), [problem], policy)
    policy.tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (episode,) = collect(Demonstrations(), Plain(), [problem], policy)
    assert policy.decode(episode.tokens) == "<system>S<user>U<assistant>A"
    assert policy.decode(learned(episode)) == "A"
    assert policy.decode(collect(Pairs(), Plain(), [problem], policy)[1].tokens) == "<system>S<user>U<assistant>B"


@pytest.mark.parametrize(("experience", "missing"), [(Demonstrations(), "demonstration"), (Pairs(), "'chosen'")])
def test_a_task_without_what_is_needed_is_refused_in_a_sentence(experience, missing: str) -> None:
    with pytest.raises(DataError, match=rf"Problem 'p7' of task 'Plain' has no {missing}"):
        collect(experience, Plain(), [Problem("p7", "x")])


@pytest.mark.parametrize("experience", [Demonstrations(), Pairs()])
def test_what_does_not_fit_the_context_is_left_out_whole(experience) -> None:
    problem = preferences.problems("train")[0]
    long = replace(problem, info={**problem.info, "demonstration": "x" * 90, "rejected": "x" * 90})
    with pytest.warns(UserWarning, match="left out"):
        episodes = collect(experience, preferences, [long, problem], Tokens(context=60))
    rows = experience.rows_per_problem
    assert [bool(e.action_count) for e in episodes] == [False] * rows + [True] * rows
