"""RLAnything: steps are paid by outcome and verdicts, the judge by consistency; a truth table replaces tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupStd
from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.methods.rlvr.rlanything import SolvedBand, StepAdvantage, unit_test_rewards
from etude.methods.rlvr.rlanything.adapted_tasks import AdaptedTasks, accepted, wish
from etude.methods.rlvr.rlanything.step_judge import (
    StepVerdicts,
    consistency,
    fresh_judge,
    judged,
    verdict_advantages,
)
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.policies.byte_tokenizer import build_tokenizer
from etude.rewards.steps import step_ends
from etude.tasks.language.sums import Sums
from language_toys import draws

Make = Callable[..., TokenBatch]


@pytest.fixture
def chains(make_batch: Make) -> TokenBatch:
    """Two problems with four completions each, of the prompt and two or three steps of one or two tokens."""
    random = torch.Generator().manual_seed(0)
    step = torch.tensor([[-1, 0, 0, 1, 2, 2], [-1, 0, 1, 1, 2, -1], [-1, 0, 0, 1, -1, -1], [-1, 0, 1, 2, -1, -1]] * 2)
    last = (step[:, 1:] != step[:, :-1]) & (step[:, :-1] >= 0)
    ends = torch.cat([last, step[:, -1:] >= 0], 1)
    solved = torch.tensor([1, 0, 1, 0, 1, 1, 0, 1]).bool()
    said = 2.0 * (torch.rand(8, 6, 3, generator=random) < 0.5).double() - 1
    batch = make_batch(step >= 0, group=[0] * 4 + [1] * 4, solved=solved)
    hidden = torch.randn(*step.shape, 5, generator=random, dtype=torch.float64)
    return batch.replace(hidden=hidden, step=step, verdicts=said * ends[..., None])


def paid(batch: TokenBatch, weight: float = 1.0, failure: float = -1.0) -> TokenBatch:
    """The batch with R_ik at the ends of steps."""
    outcome = torch.where(batch.solved, 1.0, failure).double()[:, None]
    return batch.replace(rewards=(outcome + weight * batch.verdicts.mean(-1)) * judged(batch.verdicts))


@pytest.mark.parametrize("failure", [-1.0, 0.0])
def test_without_verdicts_every_step_that_all_have_gets_the_advantage_of_grpo(
    chains: TokenBatch, failure: float
) -> None:
    found = StepAdvantage()(paid(chains, weight=0.0, failure=failure))
    outcome = chains.replace(scores=chains.solved.double())
    expected = GroupAdvantage(scale=GroupStd(epsilon=0.0))(outcome)
    shared = (chains.step == 0) | (chains.step == 1)
    torch.testing.assert_close(found[shared], expected[shared], atol=1e-12, rtol=0)
    assert expected[shared].abs().min() > 0.1


def test_steps_are_standardised_over_the_completions_that_have_them(chains: TokenBatch) -> None:
    batch = paid(chains)
    found, step = StepAdvantage()(batch), chains.step
    assert (found[step < 0] == 0).all()
    for group in (0, 1):
        for k in range(3):
            here = judged(chains.verdicts) & (step == k) & (chains.group == group)[:, None]
            values, rewards = found[here], batch.rewards[here]
            assert len(values) == (3 if k == 2 else 4)
            assert float(values.mean()) == pytest.approx(0, abs=1e-12)
            assert float((values**2).mean()) == pytest.approx(1, abs=1e-12)
            assert torch.equal(values.argsort(), rewards.argsort()) or len(rewards.unique()) < len(rewards)
    for row in range(8):
        for k in range(3):
            assert len(found[row][step[row] == k].unique()) <= 1  # all tokens of a step have the same


def test_a_step_that_nobody_else_has_or_that_all_were_paid_the_same_for_gets_nothing(make_batch: Make) -> None:
    batch = make_batch([[1, 1, 1], [1, 1, 0], [1, 1, 0]], rewards=[[0.3, 2, 5], [0.3, 1, 0], [0.3, 0, 0]])
    batch.step = torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, -1]])
    found = StepAdvantage()(batch)
    assert found[:, 0].tolist() == [0, 0, 0]
    assert found[0, 2] == 0
    torch.testing.assert_close(found[:, 1], torch.tensor([1.5, 0, -1.5]).double() / 1.5**0.5, atol=1e-12, rtol=0)


def test_a_verdict_earns_by_agreeing_with_outcome_and_majority() -> None:
    """R > 0: +1 earns more than -1; R < 0: the other way round; what cannot be read earns -2."""
    verdicts = torch.tensor([[1, 1, -1], [1, -1, -1], [-1, -1, 1], [1, 0, -1]]).double()
    outcome = torch.tensor([1.0, 1.0, -1.0, 0.5]).double()
    rewards = outcome + verdicts.mean(1)
    third = 1 / 3
    expected = [[1 + third, 1 + third, -1 - third], [2 * third, -2 * third, -2 * third],
                [1 + third, 1 + third, -1 - third], [0.5, -2, -0.5]]  # fmt: skip
    torch.testing.assert_close(
        consistency(rewards, verdicts), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )
    credit = verdict_advantages(rewards, verdicts)
    for said, mine, reward in zip(verdicts, credit, rewards):
        assert (mine[said == 1].min() - mine[said == -1].max()) * reward.sign() > 0
        assert float(mine.mean()) == pytest.approx(0, abs=1e-12)
        assert float((mine**2).mean()) == pytest.approx(1, abs=1e-12)


def learned(batch: TokenBatch, **changes: Any) -> tuple[StepVerdicts, Tensor, Tensor]:
    """A judge, and what it said of the steps before and after it learned from a batch."""
    part = StepVerdicts(**changes).bind()
    features = part._features(batch, batch.step, judged(batch.verdicts))
    part.state.update(fresh_judge(features.shape[1], 8, Stream(0)))
    before = part.judge(features, part.state["weights"])
    part.before_update(batch)
    return part, before, part.judge(features, part.state["weights"])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_judge_moves_towards_the_sign_of_outcome_plus_majority(chains: TokenBatch, sign: float) -> None:
    mixed = torch.tensor([1.0, 1.0, -1.0]).double() * sign  # with O = -sign: R = -sign * 2 / 3
    verdicts = mixed * judged(chains.verdicts)[..., None]
    alike = torch.ones_like(chains.hidden)
    batch = chains.replace(verdicts=verdicts, hidden=alike)
    rewards = -sign * (1 - 1 / 3) * judged(batch.verdicts)
    once = StepVerdicts().learning.replace(epochs=1, optimizer=AdamW(lr=1e-3, clip_norm=None))
    part, before, after = learned(batch.replace(rewards=rewards), learning=once)
    assert part.state["updates"] == 1
    assert ((after - before) * -sign > 0).all()


def test_a_judge_that_agrees_with_itself_learns_nothing(chains: TokenBatch) -> None:
    agreed = chains.verdicts[..., :1].expand(-1, -1, 3)
    batch = paid(chains.replace(verdicts=agreed))
    part, before, after = learned(batch)
    assert part.state["updates"] == 0
    assert torch.equal(before, after)
    part, before, after = learned(paid(chains))
    assert part.state["updates"] == part.learning.epochs == 4
    assert not torch.equal(before, after)


def test_problems_outside_the_band_never_teach_the_judge(chains: TokenBatch) -> None:
    """Of four completions, one to three solved are inside [0.2, 0.8]; of eight, one solved is not."""
    for solved in ([0] * 8, [1] * 8, [1, 1, 1, 1, 0, 0, 0, 0]):
        batch = paid(chains.replace(solved=torch.tensor(solved).bool()))
        assert learned(batch)[0].state["updates"] == 0
    merged = chains.replace(group=torch.zeros(8, dtype=torch.long))
    for count in range(9):
        batch = paid(merged.replace(solved=torch.arange(8) < count))
        assert (learned(batch)[0].state["updates"] > 0) == (0.2 <= count / 8 <= 0.8)


def test_the_policy_learns_from_problems_solved_from_one_to_seven_times_of_eight(chains: TokenBatch) -> None:
    merged = chains.replace(group=torch.zeros(8, dtype=torch.long), episodes=[SimpleNamespace(info={})] * 8)
    for count in range(9):
        weights = SolvedBand().weigh(merged.replace(solved=torch.arange(8) < count))
        assert weights.tolist() == [float(1 <= count <= 7)] * 8
    turned = merged.replace(episodes=[SimpleNamespace(info={"turned_down": True})] * 8, solved=torch.arange(8) < 4)
    assert not SolvedBand().weigh(turned).any()


@pytest.mark.parametrize(
    ("direction", "old", "new", "expected"),
    [
        (1, 1.0, 0.9, True), (1, 0.8, 0.2, True), (1, 0.8, 0.8, False), (1, 0.8, 0.9, False), (1, 0.8, 0.19, False),
        (1, 1.0, 0.0, False), (-1, 0.0, 0.1, True), (-1, 0.0, 0.8, True), (-1, 0.0, 0.81, False),
        (-1, 0.0, 0.0, False), (-1, 0.2, 0.2, False), (-1, 0.2, 0.1, False), (-1, 0.1, 0.5, True),
    ],
)  # fmt: skip
def test_the_truth_table_of_proposals(direction: int, old: float, new: float, expected: bool) -> None:
    assert accepted(direction, old, new) is expected


def test_wishes() -> None:
    assert [wish(a) for a in (0.0, 0.2, 0.21, 0.5, 0.79, 0.8, 1.0)] == [-1, -1, 0, 0, 0, 1, 1]


def visit(part: AdaptedTasks, shares: dict[int, float], turn: int) -> tuple[list[str], list[bool]]:
    """One step of a curriculum: which levels it asked for, and which problems' rows it marked."""
    pool = Sums().problems("train")[:200]
    found = part.made.get("pool") or pool
    problems = part.choose(found, part.slots, Stream(0).split("step", turn))
    episodes = [SimpleNamespace(info={}, problem=p) for p in problems for _ in range(10)]
    group = torch.arange(len(problems)).repeat_interleave(10)
    solved = torch.tensor([i < round(10 * shares[g]) for g in range(len(problems)) for i in range(10)])
    part.before_update(SimpleNamespace(group=group, solved=solved, episodes=episodes, once=lambda: None))
    return [p.level for p in problems], ["turned_down" in e.info for e in episodes[::10]]


def test_slots_become_harder_and_easier_one_rolled_out_proposal_at_a_time() -> None:
    part = AdaptedTasks(slots=3, size=200).bind()
    pool = Sums().problems("train")[:200]
    part.choose(pool, 3, Stream(0))
    part.state.update(levels=[0, 3, 1], proposed={}, turn=0)
    asked, marked = visit(part, {0: 1.0, 1: 0.0, 2: 0.5}, 1)
    assert asked == ["terms3", "terms6", "terms4"]
    assert marked == [False] * 3
    assert part.state["proposed"] == {"0": [1, 1.0], "1": [-1, 0.0]}
    asked, marked = visit(part, {0: 0.4, 1: 0.0, 2: 0.5}, 2)  # harder: 0.2 <= 0.4 < 1; easier: 0 is no better than 0
    assert asked == ["terms4", "terms5", "terms4"]
    assert marked == [False, True, False]
    assert part.state["levels"] == [1, 3, 1]
    assert part.state["proposed"] == {}
    assert (part.state["accepted"], part.state["turned_down"]) == (1, 1)
    asked, _ = visit(part, {0: 0.5, 1: 0.5, 2: 0.5}, 3)
    assert asked == ["terms4", "terms6", "terms4"]
    part.state["levels"] = [0, 3, 1]
    visit(part, {0: 0.0, 1: 1.0, 2: 0.5}, 4)  # nothing is easier than the easiest nor harder than the hardest
    assert part.state["proposed"] == {}
    still = AdaptedTasks(slots=3, size=200, adapt=False).bind()
    still.choose(pool, 3, Stream(0))
    visit(still, {0: 1.0, 1: 0.0, 2: 0.5}, 1)
    assert still.state["proposed"] == {}


def test_generated_unit_tests_earn_by_the_wrong_codes_that_they_catch() -> None:
    right = torch.tensor([True, True, False, False, False])
    passes = torch.tensor([
        [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1],  # sound tests that catch 3, 2 and no wrong codes
        [1, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0, 1, 1, 0, 0],  # tests that a right code fails, passed by 0, 3 and 1 wrong
    ]).bool()  # fmt: skip
    assert unit_test_rewards(passes, right).tolist() == [3, 2, 0, 0, -3, -1]
    everything = torch.ones(5, dtype=torch.bool)
    assert unit_test_rewards(passes, everything).tolist() == [-1, -1, 1, -1, -1, -1]


def test_steps_end_at_separators_and_at_the_end_of_a_turn(make_batch: Make) -> None:
    tokenizer = build_tokenizer(256)
    text = tokenizer.encode("3+5+9=8,17", add_special_tokens=False)
    action = [[0] * 6 + [1] * 4]
    batch = make_batch(action, tokens=[text])
    part = StepVerdicts()
    step = part.splitter.step(batch, tokenizer)
    ends = step_ends(step)
    assert step.tolist() == [[-1] * 6 + [0, 0, 1, 1]]
    assert ends.nonzero()[:, 1].tolist() == [7, 9]
    turns = make_batch([[0, 1, 1, 0, 0, 1, 1]])
    step = part.splitter.step(turns.replace(tokens=torch.zeros(1, 7, dtype=torch.long)), tokenizer)
    ends = step_ends(step)
    assert step.tolist() == [[-1, 0, 0, -1, -1, 1, 1]]
    hidden = torch.arange(7.0).double()[None, :, None] + torch.zeros(1, 7, 2).double()
    turns.hidden = hidden
    features = part._features(turns, step, ends)
    assert features.shape == (2, 4)
    part = StepVerdicts(weight=0.5, failure=0).bind()
    keys = torch.tensor([draw.key for draw in draws(1)])
    turns = turns.replace(solved=torch.tensor([True]), tokens=torch.zeros(1, 7, dtype=torch.long), draw=keys)
    context: Any = SimpleNamespace(policy=SimpleNamespace(tokenizer=tokenizer), stream=Stream(0), step=0, steps=1)
    turns = part.marked(turns, context)
    paid_for, mean = part.shape(turns), turns.verdicts.mean(-1)
    assert torch.equal(turns.step, step)
    torch.testing.assert_close(paid_for, (1 + 0.5 * mean) * ends, atol=1e-12, rtol=0)
    assert set(turns.verdicts[ends].flatten().tolist()) <= {-1.0, 1.0}


def test_verdicts_are_drawn_by_row_and_token(make_batch: Make) -> None:
    part, keys = StepVerdicts(), torch.tensor([draw.key for draw in draws(3)])
    whole = part._numbers(make_batch([[0, 1, 1, 1]] * 3).replace(draw=keys))
    assert whole.shape == (3, 4, 3) and len(whole.unique()) == 36
    order = torch.tensor([2, 0])
    found = part._numbers(make_batch([[0, 1, 1, 1, 1, 1]] * 2).replace(draw=keys[order]))
    assert torch.equal(found[:, :4], whole[order]), "whatever rows there are, and however wide the batch"


def test_step_advantages_need_steps_and_problems_need_slots() -> None:
    method = get_method("grpo").replace(advantages=StepAdvantage())
    with pytest.raises(ConfigError, match="add marked-steps"):
        method.check()
    with pytest.raises(ConfigError, match=r"set curriculum\.slots"):
        get_method("rlanything").replace(problems=64).check()


def test_the_judge_learns_when_and_at_the_rate_that_its_learning_says(chains: TokenBatch) -> None:
    """Every second step after one of warmup, at a rate that falls to 0 over the run of four steps."""
    adam = AdamW(lr=1e-3, clip_norm=None, schedule=Linear())
    learning = StepVerdicts().learning.replace(optimizer=adam, epochs=1, every=2, warmup=1)
    part, features = learned(paid(chains), learning=learning)[0], chains.hidden
    assert part.state["updates"] == 0 and features is not None
    moved = []
    for step in range(4):
        part.made["now"] = step, 4
        before = part.state["weights"]["out"].clone()
        part.before_update(paid(chains))
        moved.append(float((part.state["weights"]["out"] - before).abs().max()))
    assert [m > 0 for m in moved] == [False, True, False, True]
    assert moved[1] == pytest.approx(1e-3 * 0.75, rel=1e-2)
