"""Forks: fresh completions of beginnings tell what these are worth, and are not learned from."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import torch

from etude.advantages.segments import SegmentAdvantage
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, StopReason
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import concatenate, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.forks import Forks
from etude.experience.groups import Groups
from etude.experience.second_look import LookAgain
from etude.loops.credit import scored
from etude.methods.rlvr.max_at_k import BestOfGroup
from etude.policies.language import LanguagePolicy
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from etude.rewards.steps import AtSeparator, EveryTokens, LowProbabilityCuts, MarkedSteps
from etude.tasks.agents.attr_20q import attr_20q
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
METHOD: Any = get_method("grpo").replace(
    id="forked", experience=Forks(size=3, rollouts=2, splitter=EveryTokens(length=3)), advantages=SegmentAdvantage(),
    problems=2,
)  # fmt: skip


def collected(experience: Forks, task: Any, policy: LanguagePolicy, problems: int = 2) -> list[Episode]:
    chosen = [task.problems("train")[i] for i in range(problems)]
    return experience.collect(chosen, Context(task, policy, Stream(5), max_tokens=task.max_tokens))


def opening(episode: Episode, place: int) -> list[int]:
    return episode.tokens[:place]


@pytest.mark.slow
def test_fresh_completions_go_on_from_where_steps_begin() -> None:
    policy, task = random_policy(), Toy(max_tokens=8)
    found = collected(METHOD.experience, task, policy)
    attempts, fresh = found[:6], found[6:]
    plain = Groups(size=3).collect(task.problems("train")[:2], Context(task, policy, Stream(5), max_tokens=8))
    assert [e.tokens for e in attempts] == [e.tokens for e in plain]  # sampled as ever
    assert all(e.probe for e in fresh) and not any(e.probe for e in attempts)
    numbers = {e.info["prefix"] for e in fresh}
    assert [e.info["prefix"] for e in fresh] == [n for n in range(len(numbers)) for _ in range(2)]
    texts: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for e in attempts:
        prompt, said = e.segments
        assert [p - len(prompt.tokens) for p, _ in e.info["prefixes"]] == list(range(0, len(said.tokens), 3))
        assert said.info["step"] == [t // 3 for t in range(len(said.tokens))]
        for place, number in e.info["prefixes"]:
            texts[number].add(tuple(opening(e, place)))
            for again in (f for f in fresh if f.info["prefix"] == number):
                begun = place - len(prompt.tokens)
                assert opening(again, place) == opening(e, place) and again.group == e.group
                turn = again.segments[-1]
                assert turn.action_mask == [0] * begun + [1] * (len(turn.tokens) - begun)
    assert all(len(same) == 1 for same in texts.values()) and texts.keys() == numbers
    keys = [e.draw.key for e in fresh if e.draw]
    assert len(set(keys)) == len(fresh)
    first = [next(n for p, n in e.info["prefixes"]) for e in attempts]
    assert first == [first[0]] * 3 + [first[3]] * 3 and first[0] != first[3]  # one value of each prompt


def test_a_fresh_completion_has_the_room_that_was_left() -> None:
    """The random model rarely ends by itself: whoever begins later says less."""
    fresh = [e for e in collected(METHOD.experience, Toy(max_tokens=8), random_policy()) if e.probe]
    assert max(len(e.segments[-1].tokens) for e in fresh) == 8
    assert all(e.stop is not StopReason.MAX_TOKENS or len(e.segments[-1].tokens) == 8 for e in fresh)
    assert sum(e.stop is StopReason.MAX_TOKENS for e in fresh) > len(fresh) / 2


@pytest.mark.slow
def test_games_are_gone_on_with_inside_of_turns() -> None:
    policy = LanguagePolicy.load("tiny", device="cpu")
    found = collected(Forks(size=1, rollouts=2, splitter=EveryTokens(length=2)), attr_20q, policy, 1)
    (attempt, *fresh) = found
    assert len(attempt.turns) > 1 and len(fresh) == 2 * len(attempt.info["prefixes"])
    open_ones = 0
    for place, number in attempt.info["prefixes"]:
        for again in (f for f in fresh if f.info["prefix"] == number):
            assert opening(again, place) == opening(attempt, place) and again.seed == attempt.seed
            batch = to_batch([again], 0, 1.0, policy.device)
            assert not batch.action_mask[0, :place].any() and bool(batch.action_mask[0, place])
            open_ones += any(s.info.get("begun", 0) > 0 for s in again.segments)
    assert 0 < open_ones < len(fresh)


def rows_of(method: Any, task: Any = None, seed: int = 5) -> tuple[TokenBatch, list[Episode]]:
    """Scored rows, and all episodes that were collected."""
    policy, task = random_policy(), task or Toy(max_tokens=8)
    context = Context(task, policy, Stream(seed), max_tokens=task.max_tokens)
    episodes = method.experience.collect(task.problems("train")[:2], context)
    return scored(method, to_batch(episodes, 0, 1.0, policy.device), context), episodes


def test_values_are_means_of_what_fresh_ones_are_paid_and_only_attempts_stay() -> None:
    batch, episodes = rows_of(METHOD)
    assert len(batch) == 6 and batch.sampled_values is not None and batch.step is not None
    places = 0
    for row, e in enumerate(batch.episodes):
        known = {p for p, _ in e.info["prefixes"]}
        for place, number in e.info["prefixes"]:
            paid = [f.reward for f in episodes if f.info.get("prefix") == number]
            assert len(paid) == 2
            assert float(batch.sampled_values[row, place]) == pytest.approx(sum(paid) / 2, abs=1e-6)
            places += 1
        nowhere = [t for t in range(batch.tokens.shape[1]) if t not in known]
        assert batch.sampled_values[row, nowhere].isnan().all()
    assert places == int((~batch.sampled_values.isnan()).sum()) > 12
    advantages = SegmentAdvantage()(batch)
    first = batch.action_mask.int().argmax(1)
    begins = ~batch.sampled_values.isnan()
    start = batch.sampled_values.gather(1, first[:, None])[:, 0]
    torch.testing.assert_close((advantages * begins).sum(1), batch.scores - start, atol=1e-5, rtol=0)


def test_texts_whose_fresh_completions_were_lost_begin_no_segment() -> None:
    policy, task = random_policy(), Toy(max_tokens=8)
    context = Context(task, policy, Stream(5), max_tokens=8)
    episodes = METHOD.experience.collect(task.problems("train")[:2], context)
    lost = episodes[0].info["prefixes"][1][1]
    left = [e for e in episodes if e.info.get("prefix") != lost]
    batch = scored(METHOD, to_batch(left, 0, 1.0, policy.device), context)
    place = episodes[0].info["prefixes"][1][0]
    assert batch.sampled_values is not None and bool(batch.sampled_values[0, place].isnan())
    advantages = SegmentAdvantage()(batch)
    assert advantages[0, place] == advantages[0, place - 1]


def test_rounds_are_joined_where_one_has_no_cut() -> None:
    sure = METHOD.replace(experience=Forks(size=3, rollouts=2, splitter=LowProbabilityCuts(base="first-cut")))
    unsure = sure.replace(experience=sure.experience.replace(splitter=LowProbabilityCuts(below=1e-9, base="first-cut")))
    without, with_cuts = rows_of(unsure)[0], rows_of(sure)[0]
    assert without.sampled_values is not None and without.sampled_values.isnan().all()
    assert not SegmentAdvantage()(without).any()
    for order in ((without, with_cuts), (with_cuts, without)):
        whole = SegmentAdvantage()(concatenate(order))
        parts = torch.cat([SegmentAdvantage()(b)[:, : whole.shape[1]] for b in order])
        torch.testing.assert_close(whole, parts)
    assert SegmentAdvantage()(with_cuts).any()


@pytest.mark.slow
def test_the_value_of_a_text_is_unbiased() -> None:
    """Against all completions of at most two tokens, each with its probability."""
    policy, count = random_policy(), 3000
    task = Toy(max_tokens=2, scoring=lambda _, text: float(sum(c in ascii_lowercase for c in text)))
    problem = task.problems("train")[0]
    experience = Forks(size=1, rollouts=count, splitter=EveryTokens(length=1))
    found = experience.collect([problem], Context(task, policy, Stream(4), max_tokens=2))
    prompt, said = (s.tokens for s in found[0].segments)

    @torch.no_grad()
    def chances(texts: list[list[int]]) -> torch.Tensor:
        """[N, V] of the next token."""
        return policy.model(input_ids=torch.tensor(texts)).logits[:, -1].double().softmax(-1)

    (first,) = chances([prompt])
    paid = torch.tensor([task.score(problem, policy.decode([v])) for v in range(len(first))]).double()
    ahead = chances([[*prompt, v] for v in range(len(first))]) @ paid
    ahead[policy.end_ids] = 0.0
    exact = [float(first @ (paid + ahead)), float(paid[said[0]] + ahead[said[0]])]
    assert len(found[0].info["prefixes"]) == 2 and abs(exact[0] - exact[1]) > 0.1
    for (_, number), wanted in zip(found[0].info["prefixes"], exact):
        earned = torch.tensor([e.reward for e in found if e.info.get("prefix") == number]).double()
        assert len(earned) == count and earned.std() > 0.1
        assert abs(float(earned.mean()) - wanted) < 4 * float(earned.std()) / count**0.5


def test_statistics_count_attempts_alone_and_tokens_of_both() -> None:
    loop = make_loop(METHOD.replace(regularizers=(KLToReference(),), reference=Frozen()), Toy())
    report = loop.step()
    metrics = report.metrics
    assert metrics["rows"] == 6 == len(report.episodes)
    said = metrics["completion_length"] * 6
    assert metrics["sampled_tokens"] == pytest.approx(said + metrics["forked_tokens"])
    assert metrics["forked_tokens"] > said and metrics["logp_gap"] < 1e-4
    assert metrics["reference_kl"] == pytest.approx(0, abs=1e-6)  # before the first update, on the right rows
    assert metrics["informative_groups"] == 1


def test_a_reward_per_token_is_paid_to_fresh_completions_too() -> None:
    """What a beginning was paid itself is no part of the value of what follows it."""
    rewards = (TaskReward(), KLPenalty(coefficient=0.5))
    loop = make_loop(METHOD.replace(rewards=rewards, reference=Frozen(), optimizer=METHOD.optimizer.replace(lr=0.1)))
    loop.step()
    batch = loop._assess(loop.method, 2, 0, Stream(1))["policy"]
    assert batch.sampled_values is not None
    known = ~batch.sampled_values.isnan()
    assert (batch.rewards.abs() > 1e-3).sum() > 2 * len(batch)
    total = (SegmentAdvantage()(batch) * known).sum(1)
    first = batch.sampled_values.gather(1, batch.action_mask.int().argmax(1)[:, None])[:, 0]
    torch.testing.assert_close(total, batch.rewards.sum(1) - first, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_run_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    def numbers(loop: Any) -> dict[str, float]:
        return {k: v for k, v in loop.step().metrics.items() if not k.startswith(("seconds", "tokens_per"))}

    loop, again = make_loop(METHOD), make_loop(METHOD)
    numbers(loop)
    loop.save(tmp_path)
    expected = numbers(loop)
    again.load(tmp_path)
    assert numbers(again) == expected


def test_what_cannot_work_is_refused() -> None:
    grpo = get_method("grpo")
    for changes, sentence in (
        ({"advantages": grpo.slots()["advantages"]}, "nothing reads that"),
        ({"second_look": LookAgain()}, "leave out second_look"),
        ({"rewards": (TaskReward(), BestOfGroup())}, "compares those of a problem"),
        ({"rewards": (TaskReward(), MarkedSteps(splitter=AtSeparator()))}, "keep one of them"),
        ({"experience": METHOD.experience.replace(top_p=0.9)}, "would be biased"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            METHOD.replace(**changes).check()
    METHOD.check()


def test_attempts_whose_environment_failed_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Toy(max_tokens=4)
    lost = [Episode(p, group=i, stop=StopReason.FAULT) for i, p in enumerate(task.problems("train")[:2])]
    monkeypatch.setattr(Groups, "collect", lambda part, problems, context: lost)
    assert collected(METHOD.experience, task, random_policy()) == lost
    assert not any(e.info for e in lost)
