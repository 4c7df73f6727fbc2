"""What the token loop offers to parts: rewards of groups, hooks, written rows, halves of minibatches, hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from etude.advantages.group import BatchMean, BatchStd, GroupAdvantage, GroupMeanScale, LevelStd
from etude.advantages.returns import GAE
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, RewardError
from etude.core.fit import check
from etude.core.kinds import TokenMethod
from etude.core.part import Need
from etude.core.registry import get_method
from etude.core.slots import Context, Filter, GroupReward, TokenAdvantages, TokenObjective, TokenWeights
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.loops.losses import loss_shares
from etude.loops.update import Tally, Updater
from etude.methods.rlvr.grpo import grpo
from etude.objectives.aggregation import token_shares
from etude.optimizers.adam import AdamW
from etude.policies.written import written
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from language_toys import Toy, gradients, make_loop, random_batch, random_policy

SMALL = grpo.replace(experience=Groups(size=4), problems=3)


class Doubled(GroupReward):
    """Twice the score so far, plus a number."""

    shift: float = 0.5

    def rescore(self, batch: TokenBatch) -> Tensor:
        return 2 * batch.scores + self.shift


class Nothing(GroupReward):
    def rescore(self, batch: TokenBatch) -> Tensor:
        return torch.full_like(batch.scores, torch.nan)


def test_rewards_of_groups_see_the_sum_so_far_and_replace_it() -> None:
    task = Toy(scoring=lambda problem, said: float(len(said) % 3))
    found = make_loop(SMALL.replace(rewards=(*SMALL.rewards, Doubled(), Doubled(shift=0.0))), task).step()
    for e in found.episodes:
        assert e["reward"] == pytest.approx(2 * (2 * e["scores"]["task-reward"] + 0.5), abs=1e-6)
        assert e["reward"] == pytest.approx(sum(e["scores"].values()), abs=1e-6)


def test_equal_scores_stay_equal_after_a_reward_of_groups() -> None:
    task = Toy(scoring=lambda problem, said: 0.1)
    metrics = make_loop(SMALL.replace(rewards=(*SMALL.rewards, Doubled(shift=0.3))), task).step().metrics
    assert metrics["zero_advantage"] == 1.0


def test_a_reward_of_groups_that_is_not_finite_is_refused() -> None:
    with pytest.raises(RewardError, match=r"Nothing returned nan for problem 'train-"):
        make_loop(SMALL.replace(rewards=(*SMALL.rewards, Nothing()))).step()


class Watch(Filter):
    """Keeps two groups, and counts what it is shown."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROW_LOSS})

    def initial_state(self) -> dict[str, Any]:
        return {"before": [], "after": [], "loss": []}

    def weigh(self, batch: TokenBatch) -> Tensor:
        return (batch.group < 2).float()

    def before_update(self, batch: TokenBatch) -> None:
        self.state["before"].append(len(batch))

    def after_update(self, batch: TokenBatch) -> None:
        self.state["after"].append(len(batch))
        self.state["loss"].append((batch.row_loss * len(batch)).tolist())
        assert batch.advantages is not None


def test_parts_see_every_scored_row_before_and_the_learned_ones_after() -> None:
    loop = make_loop(SMALL.replace(filters=(Watch(),), aggregation="sequence-mean"))
    loop.step()
    state = loop.method.filters[0].state
    assert (state["before"], state["after"]) == ([12], [8])


def test_the_loss_of_each_row_is_what_the_objective_says() -> None:
    method = SMALL.replace(filters=(Watch(),), aggregation="sequence-mean")
    loop = make_loop(method)
    metrics = loop.step().metrics
    (rows,) = loop.method.filters[0].state["loss"]
    assert metrics["loss"] == pytest.approx(sum(rows) / len(rows) ** 2, abs=1e-6)
    assert len({round(x, 6) for x in rows}) > 2


class Mixture(Groups):
    """Samples, and one written row per problem."""

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        shown = [
            written(p, [*context.task.environment().reset(p, 0), _assistant("abc")], g, context.policy)
            for g, p in enumerate(problems)
        ]
        return super().collect(problems, context) + shown


def _assistant(text: str) -> Any:
    from etude.core.episodes import Segment

    return Segment("assistant", text)


class Half(TokenObjective):
    """The advantage's gradient on samples, likelihood on written rows."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return -torch.where(batch.sampled[:, None], batch.advantages, 1.0) * policy.logp


def test_written_rows_join_without_being_compared_scored_or_credited() -> None:
    method = SMALL.replace(experience=Mixture(size=4), objective=Half())
    found = make_loop(method, Toy()).step()
    assert found.metrics["written"] == pytest.approx(3 / 15) and found.metrics["logp_gap"] < 1e-4
    assert [e["advantage"] for e in found.episodes[-3:]] == [0.0, 0.0, 0.0]


def test_written_rows_are_averaged_over_their_own_tokens() -> None:
    batch = random_batch((3, 3))
    batch.written = torch.tensor([False, False, True, False, False, True])
    for aggregation in ("token-mean", "sequence-mean", "fixed-length"):
        shares = loss_shares(SMALL.replace(aggregation=aggregation), batch, 9)
        mine = token_shares(aggregation, batch.action_mask[batch.sampled], 9)
        torch.testing.assert_close(shares[batch.sampled], mine)
        for row in (2, 5):
            on = batch.action_mask[row]
            torch.testing.assert_close(shares[row][on], torch.full((int(on.sum()),), 0.5 / int(on.sum())))


def test_written_rows_do_not_change_the_advantages_of_the_others() -> None:
    batch = random_batch((3, 3))
    batch.scores = torch.tensor([0.0, 1.0, 7.0, 2.0, 4.0, -5.0])
    batch.written = torch.tensor([False, False, True, False, False, True])
    for part in (GroupAdvantage(), GroupAdvantage(scale=BatchStd()), GroupAdvantage(centre=BatchMean(), scale=None)):
        found, alone = part(batch), part(batch.rows(batch.sampled.nonzero()[:, 0]).replace(written=None))
        assert torch.equal(found[batch.sampled], alone) and not found[batch.written].any()


def credited(part: TokenAdvantages, scores: list[float], levels: str = "aaaaaa") -> list[float]:
    """The advantage of each of six rows in three groups of two."""
    batch = random_batch((2, 2, 2))
    batch.scores = torch.tensor(scores)
    for e, level in zip(batch.episodes, levels):
        e.problem = Problem(e.problem.id, "?", level=level)
    found = part(batch)
    return [float(found[i][batch.action_mask[i]][0]) for i in range(6)]


def test_centres_and_scales_by_hand() -> None:
    by_mean = credited(GroupAdvantage(scale=GroupMeanScale(epsilon=0.0)), [0.0, 4.0, 3.0, 3.0, 4.0, 16.0])
    assert by_mean == pytest.approx([-1.0, 1.0, 0.0, 0.0, -0.6, 0.6], abs=1e-6)
    by_batch = credited(GroupAdvantage(centre=BatchMean(), scale=None), [0.0, 4.0, 3.0, 3.0, 4.0, 16.0])
    assert by_batch == pytest.approx([-5.0, -1.0, -2.0, -2.0, -1.0, 11.0], abs=1e-6)
    by_level = credited(GroupAdvantage(scale=LevelStd(epsilon=0.0)), [0.0, 2.0, 3.0, 3.0, 0.0, 1.0], "aaaabb")
    a = 1.5**0.5  # deviation of 0, 2, 3, 3; that of 0, 1 is a half
    assert by_level == pytest.approx([-1 / a, 1 / a, 0.0, 0.0, -1.0, 1.0], abs=1e-6)


class Halves(AdamW):
    """Notes the gradients of the halves."""

    halves: ClassVar[bool] = True

    def initial_state(self) -> dict[str, Any]:
        return {"seen": []}

    def pace(self, first: Sequence[Tensor], second: Sequence[Tensor], share: float = 0.5) -> float:
        assert share == 0.5
        flat = [torch.cat([g.flatten() for g in half]) for half in (first, second)]
        self.state["seen"].append(flat)
        return 0.5


@pytest.mark.slow
def test_halves_average_to_the_gradient_of_the_minibatch_and_set_the_pace() -> None:
    method = grpo.replace(experience=Groups(size=4), problems=4, aggregation="fixed-length")
    plain, halved = make_loop(method), make_loop(method.replace(optimizer=Halves()))
    rates = [loop.step().metrics["learning_rate"] for loop in (plain, halved)]
    assert rates[1] == pytest.approx(0.5 * rates[0])
    first, second = halved.method.optimizer.state["seen"][0]
    assert (first - second).abs().max() > 1e-6
    norm = plain.step().metrics  # a second step, so that the first one's figures are not read twice
    assert norm["gradient_norm"] > 0
    whole = make_loop(method).step().metrics["gradient_norm"]
    assert float((0.5 * (first + second)).norm()) == pytest.approx(whole, rel=1e-4)


class Sees(TokenWeights):
    """Checks the state that predicts each token against its log-probability."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.head is not None and policy.hidden is not None
        logits = policy.head.logits(policy.hidden[batch.action_mask])
        logp = logits.log_softmax(-1).gather(1, batch.tokens[batch.action_mask][:, None])[:, 0]
        torch.testing.assert_close(logp, policy.logp[batch.action_mask], atol=1e-4, rtol=1e-4)
        assert policy.learning_rate > 0
        return torch.ones_like(policy.logp)


class Shown(GroupReward):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})

    def rescore(self, batch: TokenBatch) -> Tensor:
        assert batch.head is not None
        on = batch.action_mask
        logp = batch.head.logits(batch.hidden[on]).log_softmax(-1).gather(1, batch.tokens[on][:, None])[:, 0]
        torch.testing.assert_close(logp, batch.behaviour_logp[on], atol=1e-4, rtol=1e-4)
        return batch.scores


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_hidden_states_and_head_say_what_the_policy_says(kind: str) -> None:
    method = SMALL.replace(token_weights=(Sees(),), rewards=(*SMALL.rewards, Shown()))
    make_loop(method, Toy(), random_policy(kind)).step()


class Keeps(Filter):
    """Keeps a copy of what the sampler recorded."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN, Need.ENTROPY})

    def initial_state(self) -> dict[str, Any]:
        return {}

    def weigh(self, batch: TokenBatch) -> Tensor:
        self.state["batch"] = batch
        return torch.ones_like(batch.scores)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_the_sampler_recorded_is_what_a_forward_pass_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.loops import scorer

    policy = random_policy(kind)
    loop = make_loop(SMALL.replace(filters=(Keeps(),)), Toy(), policy)
    monkeypatch.setattr(scorer, "evaluate_all", lambda *_: pytest.fail("a second forward pass"))
    monkeypatch.setattr(type(loop.updater), "run_together", lambda *_, **how: {})  # the weights stay
    loop.step()
    batch = loop.method.filters[0].state["batch"]
    said = policy.evaluate(batch, {"hidden", "entropy"})
    torch.testing.assert_close(batch.hidden, said.hidden.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.entropy, said.entropy.detach(), atol=1e-4, rtol=1e-4)


def test_rows_that_nobody_sampled_take_a_forward_pass() -> None:
    loop = make_loop(SMALL.replace(experience=Mixture(size=4), filters=(Keeps(),)), Toy())
    loop.step()
    batch = loop.method.filters[0].state["batch"]
    shown = batch.action_mask & batch.written[:, None]
    assert (batch.entropy[shown] > 0).all() and batch.hidden[shown].abs().sum() > 0


def test_demonstrations_alone_are_averaged_as_the_method_says() -> None:
    batch = random_batch((2, 2))
    batch.written = torch.ones(4, dtype=torch.bool)
    shares = loss_shares(SMALL.replace(experience=Demonstrations(), aggregation="sequence-mean"), batch, 9)
    torch.testing.assert_close(shares, token_shares("sequence-mean", batch.action_mask, 9))


# Token weights are on the objective


class Masks(TokenWeights):
    """Leaves out every second token."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return (torch.arange(batch.tokens.shape[1]) % 2).expand_as(batch.tokens).to(policy.logp.dtype)


class LeavesOut(Masks):
    """Leaves such tokens out of the whole loss."""

    everywhere: ClassVar[bool] = True


def update_gradient(method: TokenMethod, advantage: float = 1.0) -> dict[str, Tensor]:
    """What the updater would step along, on a fixed batch whose rows all have this advantage."""
    batch = random_batch((3, 2, 4))
    batch.behaviour_logp, batch.weights = batch.behaviour_logp.double(), batch.weights.double()
    batch.rewards, batch.scores = batch.rewards.double(), batch.scores.double()
    batch.reference_logp = batch.behaviour_logp - 0.3 * batch.action_mask
    batch.values, batch.returns = 0.1 * batch.action_mask, 0.7 * batch.action_mask
    policy = random_policy("gpt2", dtype=torch.float64)
    if method.critic is not None:
        torch.nn.init.constant_(policy.add_value_head().weight, 0.03)
    updater = Updater(policy, method, 1, 100_000, 8)
    updater.accumulate(method, batch.replace(advantages=advantage * batch.action_mask.double()), False, Tally())
    return gradients(policy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        {"regularizers": (KLToReference(coefficient=0.5),)},
        {"regularizers": (EntropyBonus(coefficient=0.5),)},
        {"critic": TokenCritic(), "advantages": GAE()},
    ],
)
def test_token_weights_leave_regularizers_and_critic_as_they_are(others: dict[str, Any]) -> None:
    """The gradient with a mask is the mask's objective alone, plus the other terms without any mask."""
    alone = SMALL.replace(token_weights=(Masks(),))
    masked, bare = update_gradient(alone.replace(**others)), update_gradient(alone)
    rest = update_gradient(SMALL.replace(**others), advantage=0.0)
    for name, found in masked.items():
        wanted = bare.get(name, torch.zeros_like(found)) + rest[name]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10 * float(wanted.abs().max().clamp(min=1e-3)))


def test_a_part_may_leave_tokens_out_of_the_whole_loss() -> None:
    """As if the tokens were not there, under the same denominator."""
    kl = {"regularizers": (KLToReference(coefficient=0.5),)}
    everywhere = update_gradient(SMALL.replace(token_weights=(LeavesOut(),), **kl), advantage=0.0)
    objective = update_gradient(SMALL.replace(token_weights=(Masks(),), **kl), advantage=0.0)
    name = next(iter(everywhere))
    assert float(everywhere[name].norm()) > 0 and not torch.allclose(everywhere[name], objective[name])


@pytest.mark.parametrize(
    "method", [get_method("dpo"), get_method("reward-model"), get_method("kimi-k1-5"), get_method("pacs")]
)
def test_token_weights_are_refused_where_the_loss_is_per_row(method: TokenMethod) -> None:
    with pytest.raises(ConfigError, match=r"Masks weighs tokens, and \w+ has one loss per row"):
        check(method.replace(token_weights=(Masks(),)))
    check(method)


class Undeclared(TokenObjective):
    """One number per row, without saying so."""

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return -(policy.logp * batch.action_mask).sum(1)


def test_token_weights_are_never_ignored() -> None:
    with pytest.raises(ConfigError, match="Undeclared gave a loss per row, which the factors of masks cannot weigh"):
        make_loop(SMALL.replace(objective=Undeclared(), token_weights=(Masks(),))).step()
