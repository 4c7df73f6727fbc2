"""The generated task of words with hidden importance: what answers are worth, and what the writer of the data does."""

from __future__ import annotations

from itertools import combinations

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.task import SingleTurn
from etude.policies.byte_tokenizer import build_tokenizer
from etude.tasks import resolve_task
from etude.tasks.language.digest import IMPORTANCE, VOCABULARY, Digest, best, digest, gold, words_of
from etude.tasks.pool import reserved


def by(importance: int) -> list[str]:
    return [w for w in VOCABULARY if IMPORTANCE[w] == importance]


@pytest.mark.slow
def test_forty_eight_words_of_four_importances_that_are_one_token_each() -> None:
    assert len(set(VOCABULARY)) == 48 and [len(by(k)) for k in range(4)] == [12] * 4
    tokenizer = build_tokenizer(256)
    assert all(len(tokenizer(w * 2 + ">")["input_ids"]) == 3 for w in VOCABULARY)
    problem = digest.problems("train")[0]
    assert len(tokenizer(str(problem.prompt))["input_ids"]) == 17


def test_the_gold_score() -> None:
    """Importance of each of the prompt's words once; 1/2 for repeats and words from elsewhere, 1/4 for every word."""
    (a, b, c), (x, y), (useless,) = by(3)[:3], by(1)[:2], by(0)[:1]
    prompt = a + b + x + useless
    assert gold(prompt, "") == 0
    assert gold(prompt, a) == 2.75 and gold(prompt, useless) == -0.25
    assert gold(prompt, a + b + x) == 7 - 0.75
    assert gold(prompt, a + a) == 3 - 0.5 - 0.5
    assert gold(prompt, c) == -0.75 and gold(prompt, y + y) == -1.5
    assert gold(prompt, a + "~") == 3 - 0.5 - 0.5  # no word of the task
    assert gold(prompt, a * 9) == 3 - 8 * 0.5 - 9 * 0.25


def test_the_best_answer_is_the_best_of_all() -> None:
    """Of all sets of a prompt's first eleven words, eight at most."""
    prompt = words_of(digest.problems("test")[3])[:11]
    every = (gold(prompt, "".join(some)) for size in range(9) for some in combinations(prompt, size))
    assert best(prompt) == max(every)


def test_problems() -> None:
    assert resolve_task("digest") == digest
    for split in digest.splits():
        for i in range(20):
            problem = digest.problems(split)[i]
            shown = words_of(problem)
            assert len(set(shown)) == 16 and set(shown) <= set(VOCABULARY)
            assert reserved("".join(sorted(shown))) == (split == "test")
            said = [problem.info[k] for k in ("demonstration", "chosen", "rejected")] + problem.info["responses"]
            assert all(1 <= len(text) <= 8 and len(set(text)) == len(text) and set(text) <= set(shown) for text in said)
            assert problem.info["scores"] == [gold(shown, text) for text in problem.info["responses"]]
            assert problem.info["best"] == best(shown) and len(problem.info["scores"]) == 4
    assert digest.problems("train")[7] == digest.problems("train")[7]
    with pytest.raises(UnknownNameError, match="split of digest"):
        digest.problems("heldout")
    with pytest.raises(ConfigError, match=r"Digest\.wrong must be"):
        Digest(wrong=1.5)


def test_a_small_pool_is_the_beginning_of_a_large_one() -> None:
    few, many = Digest(size=500).problems("train"), digest.problems("train")
    assert len(few) == 500 and len(many) == 4000 and few[:20] == many[:20]


def test_labels_are_drawn_by_what_answers_are_worth_and_turned_for_a_share() -> None:
    """87 % of pairs have the better one chosen: of answers that differ little, either. Turned, it is the other."""
    problems, turned = digest.problems("train")[:200], Digest(wrong=0.2).problems("train")[:200]
    right = sum(gold(words_of(p), p.info["chosen"]) >= gold(words_of(p), p.info["rejected"]) for p in problems)
    assert 160 < right < 192
    swapped = [p.info["chosen"] != q.info["chosen"] for p, q in zip(problems, turned)]
    assert 20 < sum(swapped) < 60
    assert all(
        (q.info["chosen"], q.info["rejected"]) in (pair, pair[::-1])
        for p, q in zip(problems, turned)
        for pair in [(p.info["chosen"], p.info["rejected"])]
    )
    assert [p.prompt for p in problems] == [q.prompt for q in turned]


def test_corrupted_answers_have_words_from_elsewhere_and_slips_any() -> None:
    bad = Digest(corrupted=1.0).problems("train")[:30]
    for problem, same in zip(bad, digest.problems("train")[:30]):
        for text, whole in zip(problem.info["responses"], same.info["responses"]):
            outside = sum(w not in words_of(problem) for w in text)
            assert len(text) == len(whole) and outside == (len(text) + 1) // 2
        assert problem.info["chosen"] == same.info["chosen"]
    said = [(words_of(p), p.info["demonstration"]) for p in Digest(slips=1.0).problems("train")[:100]]
    inside = sum(w in shown for shown, text in said for w in text) / sum(len(text) for _, text in said)
    assert 0.25 < inside < 0.42  # a third of the 48, whatever the prompt
    assert any(len(set(text)) < len(text) for _, text in said)


def test_only_the_best_answer_is_a_success() -> None:
    problem = digest.problems("test")[0]
    shown = words_of(problem)
    whole = "".join(sorted(shown, key=lambda w: -IMPORTANCE[w])[:8])
    for text, right in ((whole, True), (whole[:7], False), ("", False)):
        world = SingleTurn(digest)
        opening = world.reset(problem, 0)
        answer = Segment("assistant", text)
        answer.reward = world.step(answer).reward
        episode = Episode(problem, [*opening, answer])
        assert digest.success(episode) is right and episode.reward == gold(shown, text)
    assert digest.score(Problem("x", problem.prompt), whole) == problem.info["best"]
