"""Facts: what is asked has one answer, that of the worked example, in figures and in words."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.policies.byte_tokenizer import build_tokenizer
from etude.rewards.canonical import canonical_form
from etude.tasks.language.facts import KEYS, Facts, facts, spelt


def solved(prompt: str) -> str:
    """The answer, worked out from the text alone."""
    listed, _, question = prompt.rstrip(">").partition("?")
    values = dict(fact.split("=") for fact in listed.split(";"))
    if ":" in question:
        key, _, options = question.partition(":")
        return next(letter for letter, value in re.findall(r"([A-C])(\d+)", options) if value == values[key])
    if "+" in question:
        return str(sum(int(values[key]) for key in question.split("+")))
    value = values[question]
    return values.get(value, value)


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_kind_and_length_has_its_right_answer(split: str) -> None:
    pool, kinds, levels = facts.problems(split), Counter[str](), Counter[str]()
    for problem in (pool[i] for i in range(400)):
        assert solved(str(problem.prompt)) == problem.answer
        assert facts.score(problem, str(facts.demonstration(problem))) == 1.0
        assert str(problem.prompt).count("=") == int(problem.level.removeprefix("facts"))
        kinds[problem.info["kind"]] += 1
        levels[problem.level] += 1
    assert set(kinds) == {"lookup", "hops", "choice", "sum"}
    assert set(levels) == {"facts16", "facts32", "facts64"}
    assert min(*kinds.values(), *levels.values()) > 70


def test_numbers_are_right_in_figures_and_in_words_and_letters_as_letters() -> None:
    pool = Facts(kinds=("sum",)).problems("train")
    for problem in (pool[i] for i in range(50)):
        right = int(problem.answer)
        assert facts.score(problem, f"1,2,{right}") == facts.score(problem, spelt(right)) == 1.0
        assert facts.score(problem, f"{right},{right + 1}") == facts.score(problem, spelt((right + 1) % 40)) == 0.0
    assert [canonical_form(spelt(n)) for n in range(40)] == list(map(str, range(40)))


def test_levels_are_lengths_or_kinds() -> None:
    pools = [Facts(level=level).problems("train") for level in ("facts", "kind")]  # type: ignore[arg-type]
    for ours, theirs in ((pools[0][i], pools[1][i]) for i in range(20)):
        assert (ours.prompt, ours.info) == (theirs.prompt, theirs.info)
        assert (ours.level, theirs.level) == (f"facts{str(ours.prompt).count('=')}", ours.info["kind"])


def test_worked_answers_give_numbers_in_words_as_often_as_asked() -> None:
    for chance, low, high in ((0.0, 0, 0), (0.5, 60, 140), (1.0, 200, 200)):
        pool = Facts(words=chance, kinds=("lookup",)).problems("train")
        shown = sum(pool[i].info["demonstration"].isalpha() for i in range(200))
        assert low <= shown <= high


def test_worked_answers_go_on_with_further_questions_about_the_same_list() -> None:
    plain, longer = Facts().problems("train"), Facts(further=3)
    for ours, theirs in ((plain[i], longer.problems("train")[i]) for i in range(40)):
        assert (ours.prompt, ours.answer) == (theirs.prompt, theirs.answer)
        first, *others = theirs.info["demonstration"].split("?")
        assert (first, len(others)) == (ours.info["demonstration"], 3)
        assert longer.score(theirs, theirs.info["demonstration"]) == 1.0
        known = str(theirs.prompt).partition("?")[0]
        for asked, _, worked in (other.partition(">") for other in others):
            assert canonical_form(facts.answer(worked)) == canonical_form(solved(f"{known}?{asked}>"))


def test_the_longest_lists_leave_room_in_the_context_of_the_built_in_model() -> None:
    words = build_tokenizer(512)
    pool = Facts(facts=(64,)).problems("test")
    longest = max(len(words.encode(str(pool[i].prompt))) for i in range(100))
    assert 340 < longest <= 512 - Facts.max_tokens
    keys = [words.encode(key) for key in KEYS]
    assert all(len(key) == 2 for key in keys)


def test_splits_share_no_problem_and_others_do_not_exist() -> None:
    train = {facts.problems("train")[i].prompt for i in range(300)}
    assert not train & {facts.problems("test")[i].prompt for i in range(300)}
    with pytest.raises(UnknownNameError):
        facts.problems("dev")
    with pytest.raises(ConfigError, match="at least one entry"):
        Facts(kinds=())
