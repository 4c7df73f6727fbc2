"""T-PPO: extended GAE, completions in successive batches, and a critic of its own that learns what has ended."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import GAE, gae
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.learners import Learning
from etude.core.registry import get_method
from etude.core.slots import Context, Reward
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.learners.token import TokenCritic
from etude.learners.value_model import ValueModel
from etude.loops.language import LanguageLoop
from etude.loops.language_report import describe
from etude.loops.update import Updater
from etude.methods.rlvr.t_ppo import EGAE, SuccessiveBatches
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.stages.phases import Phase
from language_toys import Toy, make_loop, random_episodes, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
T_PPO: Any = get_method("t-ppo")
PPO: Any = get_method("ppo")
CRITIC = ValueModel(learning=Learning(optimizer=AdamW(lr=1e-3)))
LIMIT = 8


def ending() -> LanguagePolicy:
    """A random policy that ends about every third token."""
    policy = random_policy(dtype=torch.float64)
    policy.__class__ = type("Ends", (LanguagePolicy,), {"end_ids": property(lambda self: list(range(1, 40)))})
    return policy


def small(cap: int = 3, size: int = 2, critic: Any = CRITIC, **changes: Any) -> Any:
    return T_PPO.replace(experience=SuccessiveBatches(size=size, cap=cap), critic=critic, problems=4, **changes)


def loop_of(method: Any, task: Any = None) -> LanguageLoop:
    return make_loop(method, task or Toy(max_tokens=LIMIT), ending(), steps=20)


# Extended GAE


def rows(unfinished: bool) -> Any:
    """Three rows of three, four and five tokens, the last paid 1 where it ended; float64."""
    random = torch.Generator().manual_seed(3)
    mask = torch.arange(6)[None] < torch.tensor([3, 4, 5])[:, None]
    mask[2, 1] = False  # a token that is only read
    values = torch.randn(3, 6, generator=random, dtype=torch.float64) * mask
    rewards = torch.zeros_like(values)
    if not unfinished:
        rewards[range(3), [2, 3, 4]] = 1.0
    zeros = torch.zeros(3)
    made = {
        "tokens": mask.long(),
        "attention_mask": mask,
        "action_mask": mask,
        "behaviour_logp": values,
        "weights": zeros,
    }
    return TokenBatch(
        **made, rewards=rewards, group=zeros, scores=zeros, truncated=zeros.bool(), values=values,
        next_values=torch.zeros(3, dtype=torch.float64), unfinished=torch.full((3,), unfinished),
    )  # fmt: skip


LAST = [2, 3, 4]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_last_token_of_a_window_has_gamma_less_one_times_its_value(gamma: float) -> None:
    batch = rows(unfinished=True)
    found = EGAE(gamma=gamma, lam=0.7, standardize=False)(batch)[range(3), LAST]
    torch.testing.assert_close(found, (gamma - 1) * batch.values[range(3), LAST], atol=1e-12, rtol=0)
    assert gamma < 1 or found.tolist() == [0.0, 0.0, 0.0]


def test_of_what_ended_it_is_gae() -> None:
    batch = rows(unfinished=False)
    mine, theirs = (cls(gamma=0.9, lam=0.6, standardize=False)(batch) for cls in (EGAE, GAE))
    assert torch.equal(mine, theirs)
    assert torch.equal(mine, gae(batch.rewards, batch.values, batch.action_mask, 0.9, 0.6))
    whole = batch.replace(unfinished=None)
    assert torch.equal(EGAE()(whole), GAE()(whole))


def test_without_lambda_it_is_return_or_last_value_less_value() -> None:
    ended, going = rows(unfinished=False), rows(unfinished=True)
    part = EGAE(gamma=1.0, lam=1.0, standardize=False)
    expected = (1 - ended.values) * ended.action_mask
    torch.testing.assert_close(part(ended), expected, atol=1e-12, rtol=0)
    last = going.values[range(3), LAST][:, None]
    torch.testing.assert_close(part(going), (last - going.values) * going.action_mask, atol=1e-12, rtol=0)


def test_returns_are_discounted_over_all_that_was_said() -> None:
    batch = rows(unfinished=False)
    earlier = torch.zeros_like(batch.action_mask)
    earlier[0, 0] = True
    batch = batch.replace(earlier=earlier, action_mask=batch.action_mask & ~earlier)
    found = EGAE(gamma=0.5, lam=0.3).returns(batch)
    assert found[0].tolist() == [0.25, 0.5, 1.0, 0.0, 0.0, 0.0]
    assert found[2].tolist() == [0.125, 0.0, 0.25, 0.5, 1.0, 0.0]


# Successive batches


@pytest.mark.slow
def test_with_a_window_as_long_as_the_limit_the_policy_is_ppos() -> None:
    """Of the same critic, by the same batch: after a step all weights are equal, bit for bit."""
    mine = loop_of(small(cap=LIMIT))
    other = PPO.replace(experience=Groups(size=2), critic=CRITIC, problems=4, curriculum=mine.method.curriculum)
    theirs = loop_of(other)
    before = [p.detach().clone() for p in mine.policy.parameters()]
    metrics = [loop.step().metrics for loop in (mine, theirs)]
    assert all(torch.equal(p, q) for p, q in zip(mine.policy.parameters(), theirs.policy.parameters()))
    assert not all(torch.equal(p, q) for p, q in zip(mine.policy.parameters(), before))
    assert "unfinished" not in metrics[0] and metrics[0]["accuracy"] == metrics[1]["accuracy"]


class Phases:
    """What each phase was given: tokens of the policy's, whole rows of the critic's, by the completion's draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policy: dict[int, list[int]] = {}
        self.critic: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        update, taught = Updater.run_together, ValueModel.taught

        def run(updater: Updater, lessons: Any, *rest: Any, **how: Any) -> dict[str, float]:
            [batch] = (lesson.batch for lesson in lessons)
            for key, tokens, on in zip(batch.draw.tolist(), batch.tokens, batch.action_mask):
                self.policy.setdefault(key, []).extend(tokens[on].tolist())
            return update(updater, lessons, *rest, **how)

        def teach(part: ValueModel, batch: TokenBatch) -> Tensor:
            found = taught(part, batch)
            for key, episode, tokens, on in zip(batch.draw.tolist(), batch.episodes, batch.tokens, found):
                if bool(on.any()):
                    assert not episode.unfinished and key not in self.critic
                    self.critic[key] = tokens[on].tolist()
                    assert self.critic[key] == episode.segments[-1].tokens
            return found

        monkeypatch.setattr(Updater, "run_together", run)
        monkeypatch.setattr(ValueModel, "taught", teach)


@pytest.mark.slow
def test_every_token_has_one_policy_phase_and_every_completion_that_ends_one_value_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases, loop = Phases(monkeypatch), loop_of(small())
    for _ in range(8):
        loop.step()
    open_ = {item["draw"]: item["said"]["tokens"] for item in loop.method.experience.state["open"]}
    assert len(phases.critic) > 10 and open_
    assert phases.policy.keys() == phases.critic.keys() | open_.keys()
    assert not phases.critic.keys() & open_.keys()
    assert max(map(len, phases.critic.values())) > 3  # of more than one window
    for key, tokens in phases.policy.items():
        assert tokens == (phases.critic.get(key) or open_[key])


@pytest.mark.slow
def test_the_pool_is_of_one_size_and_new_problems_take_the_places_of_those_that_ended() -> None:
    loop, left = loop_of(small(size=1)), 0
    for _ in range(6):
        found = loop.step()
        assert found.metrics["rows"] == 4.0
        waiting = len(loop.method.experience.state["open"])
        assert loop.method.experience.state["visits"] == 4 + left
        assert loop.method.experience.asks(4) == 4 - waiting
        assert found.metrics.get("unfinished", 0.0) == waiting / 4
        left += 4 - waiting
        assert found.metrics["decoding_iterations"] <= 3
    assert left > 2


def test_the_longest_window_of_a_step_is_waited_for(make_batch: Callable[..., TokenBatch]) -> None:
    """Windows of 3, 1 and 2 tokens: 3 iterations, of 9 places 6 filled; a text that was written waits for nobody."""
    first = make_batch([[1, 1, 1], [1, 0, 0]], unfinished=torch.tensor([True, False]))
    second = make_batch([[0, 1, 1, 0], [1, 1, 1, 1]], written=[False, True], unfinished=torch.tensor([False, False]))
    first.episodes, second.episodes = random_episodes((2,)), random_episodes((2,))
    found = describe([first, second], Toy(), True, {})
    assert found["decoding_iterations"] == 3.0
    assert found["idle"] == pytest.approx(1 - 6 / 9, abs=1e-12)
    assert found["unfinished"] == pytest.approx(1 / 4)
    assert "idle" not in describe([first, second], Toy(), False, {})


class Asked(Reward):
    """Pays nothing, and notes whom it was asked about."""

    judges: ClassVar[bool] = False
    seen: ClassVar[list[Episode]] = []

    def score(self, episodes: Any, context: Context) -> list[float]:
        self.seen.extend(episodes)
        return [0.0] * len(episodes)


class Shown(Uniform):
    """Notes which rows parts are shown before the update."""

    seen: ClassVar[list[Episode]] = []

    def before_update(self, batch: TokenBatch) -> None:
        self.seen.extend(batch.episodes)


@pytest.mark.slow
def test_nobody_is_asked_what_an_unfinished_completion_is_worth() -> None:
    Asked.seen.clear(), Shown.seen.clear()
    loop = loop_of(small(rewards=(*T_PPO.rewards, Asked()), curriculum=Shown()))
    going = 0.0
    for _ in range(4):
        metrics = loop.step()
        going += metrics.metrics.get("unfinished", 0.0)
        paused = [e for e in metrics.episodes if e["stop"] == "paused"]
        assert all(e["reward"] == 0 and not e["scores"] for e in paused)
    assert going > 0 and Asked.seen and not any(e.unfinished for e in Asked.seen)
    assert [id(e) for e in Shown.seen] == [id(e) for e in Asked.seen]


# Rows that stay open


class Piece(NamedTuple):
    """A row of an update, with what was sampled of it: version and log-probability of every token, and places."""

    batch: TokenBatch
    row: int
    step: int
    version: int
    tokens: list[int]
    before: list[int]
    own: list[int]
    sampled: list[tuple[int, float]]

    @property
    def ended(self) -> bool:
        return self.batch.unfinished is None or not bool(self.batch.unfinished[self.row])


@pytest.fixture(scope="module")
def pieces(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Piece], dict[int, Any]]:
    """Rows of eight updates of a fast policy, of which a resumed run makes the last four; the models that sampled."""
    method = small(optimizer=AdamW(lr=1e-2), advantages=EGAE(gamma=0.9, lam=0.7, standardize=False))
    loops, folder = [loop_of(method), loop_of(method)], tmp_path_factory.mktemp("open")
    models, found, known = dict[int, Any](), list[Piece](), dict[int, list[tuple[int, float]]]()
    update = Updater.run_together

    def run(updater: Updater, lessons: Any, *rest: Any, **how: Any) -> dict[str, float]:
        [batch], policy = (lesson.batch for lesson in lessons), loops[len(models) // 4].policy
        for row, key in enumerate(batch.draw.tolist()):
            own, old = batch.action_mask[row].nonzero()[:, 0].tolist(), known.get(key, [])
            said = [*old, *((policy.version, float(batch.behaviour_logp[row, t])) for t in own)]
            before = (batch.said[row] & ~batch.action_mask[row]).nonzero()[:, 0].tolist()
            tokens = batch.tokens[row][batch.attention_mask[row]].tolist()
            found.append(Piece(batch, row, len(models), policy.version, tokens, before, own, said))
            known[key] = said
        models[policy.version] = copy.deepcopy(policy.model)
        return update(updater, lessons, *rest, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "run_together", run)
        for loop in loops:
            if loop is loops[1]:
                loops[0].save(folder)
                loop.load(folder)
            for _ in range(4):
                loop.step()
    return found, models


@pytest.mark.slow
def test_every_token_of_an_open_row_keeps_the_probability_of_who_sampled_it(pieces: Any) -> None:
    """Over updates and a resume; the present policy gives older tokens others."""
    (found, models), stale, carried = pieces, 0, 0

    def logp(version: int, tokens: list[int]) -> list[float]:
        with torch.no_grad():
            scores = models[version](torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        return [0.0, *scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()]

    for piece in found:
        said = piece.batch.episodes[piece.row].segments[-1]
        assert said.versions == [version for version, _ in piece.sampled]
        assert said.behaviour_logp == pytest.approx([p for _, p in piece.sampled], abs=1e-6)
        by = {version: logp(version, piece.tokens) for version in {piece.version, *said.versions}}
        for t, (version, p) in zip((*piece.before, *piece.own), piece.sampled):
            assert p == pytest.approx(by[version][t], abs=1e-5)
            stale += version != piece.version and abs(p - by[piece.version][t]) > 1e-2
        carried += piece.step == 4 and bool(piece.before)
    assert stale > 3 and carried > 1


@pytest.mark.slow
def test_windows_of_an_open_row_border_on_each_other_and_bootstrap_as_they_end(pieces: Any) -> None:
    """By a sum of its own: V(s_{l-1}) after what goes on, 0 after what ended or is as long as the limit."""
    found, kinds = pieces[0], set[tuple[bool, bool, bool]]()
    for piece in found:
        batch, row, before, own = piece.batch, piece.row, piece.before, piece.own
        long, size = len(piece.sampled) == LIMIT, len(piece.tokens)
        assert [*before, *own] == list(range(size - len(piece.sampled), size)) and 0 < len(own) <= 3
        assert piece.ended or (len(own) == 3 and not long and not bool(batch.rewards[row].any()))
        values, rewards = batch.values[row].tolist(), batch.rewards[row].tolist()
        after, credit = 0.0 if piece.ended else values[own[-1]], 0.0
        for t in reversed(own):
            credit = rewards[t] + 0.9 * after - values[t] + 0.9 * 0.7 * credit
            assert float(batch.advantages[row, t]) == pytest.approx(credit, abs=1e-5)
            after = values[t]
        kinds.add((piece.ended, long, bool(before)))
    assert kinds >= {(False, False, False), (False, False, True), (True, False, True), (True, True, True)}


# A critic of its own


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    """All but how long things took."""
    return {k: v for k, v in metrics.items() if "second" not in k}


@pytest.mark.slow
def test_the_policy_waits_while_its_critic_leads() -> None:
    loop = loop_of(small(critic=CRITIC.replace(lead=2)))
    critic: Any = loop.updater.learners.critic
    weights, values = loop.policy.parameters, critic.network.parameters
    for step in range(4):
        policy, own = ([p.detach().clone() for p in x()] for x in (weights, values))
        metrics = loop.step().metrics
        assert ("gradient_norm" in metrics) == (step >= 2)
        assert all(torch.equal(p, q) for p, q in zip(policy, weights())) == (step < 2)
        assert all(torch.equal(p, q) for p, q in zip(own, values())) == ("value_loss" not in metrics)
    assert loop.policy.value_head is None


@pytest.mark.slow
def test_it_learns_returns_by_micro_batches_as_by_the_whole_batch() -> None:
    found = []
    for budget in (8192, 24):
        loop = loop_of(small(cap=LIMIT, critic=CRITIC.replace(lead=20)))
        loop.updater.budget = budget
        losses = [loop.step().metrics["value_loss"] for _ in range(3)]
        critic: Any = loop.updater.learners.critic
        found.append((losses, torch.cat([p.detach().flatten() for p in critic.network.parameters()])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-9, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the first 3 steps no two completions")
def test_it_comes_to_what_is_paid() -> None:
    """Every completion is paid 1: the squared error falls to next to nothing, of 1/2 at first."""
    critic = ValueModel(learning=Learning(optimizer=AdamW(lr=3e-3), epochs=4), lead=20)
    loop = loop_of(small(cap=LIMIT, critic=critic), Toy(max_tokens=LIMIT, scoring=lambda problem, said: 1.0))
    losses = [loop.step().metrics["value_loss"] for _ in range(6)]
    assert losses[0] < 0.5 and losses[-1] < 0.02


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_critic_and_its_pool(tmp_path: Path) -> None:
    whole, first, second = (loop_of(small(critic=CRITIC.replace(lead=3))) for _ in range(3))
    expected = [whole.step().metrics for _ in range(5)]
    first.step(), first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    for metrics in expected[2:]:
        assert numbers(second.step().metrics) == numbers(metrics)
    mine, theirs = (x.updater.learners.tensors() for x in (whole, second))
    assert int(mine["learners.critic.age"]) == 5
    assert mine.keys() == theirs.keys() and all(torch.equal(v, theirs[k]) for k, v in mine.items())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"advantages": GAE()}, "have no reward yet, for which only some advantages have credit: choose"),
        ({"critic": TokenCritic()}, "TokenCritic learns from every row: choose critic=value-model"),
        ({"filters": (InformativeGroups(),)}, "InformativeGroups goes by the rewards of all"),
        ({"objective": get_method("sft").objective}, "LogLikelihood learns from more than advantages"),
        ({"critic": None}, "values that no critic learns"),
    ],
)
def test_what_cannot_do_with_unfinished_rows_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        T_PPO.replace(**changes).check()


@pytest.mark.slow
def test_it_begins_with_its_phase_and_resumes_there(tmp_path: Path) -> None:
    """A critic of a later phase is made of the policy as it is then."""
    stages = (Phase(like="reinforce", end=0.1), Phase())
    whole, second = (loop_of(small(stages=stages)) for _ in range(2))
    assert whole.updater.learners.critic is None
    whole.step(), whole.step()
    critic: Any = whole.updater.learners.critic
    begun = dict(critic.network.policy.model.named_parameters())
    assert all(torch.equal(p, begun[k]) for k, p in whole.policy.model.named_parameters())
    whole.step()
    whole.save(tmp_path)
    second.load(tmp_path)
    assert numbers(whole.step().metrics) == numbers(second.step().metrics)


def test_ppo_takes_such_a_critic_too() -> None:
    method = PPO.replace(critic=CRITIC, experience=Groups(size=2), problems=4)
    loop = loop_of(method)
    metrics = loop.step().metrics
    assert metrics["value_loss"] > 0 and loop.policy.value_head is None
