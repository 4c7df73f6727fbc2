"""ArCHer: turns are kept whole, the critic's fixed point is Q^pi and V^pi, and exact values give the true gradient."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etude.advantages.utterances import UtteranceAdvantages
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Target
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.task import StepResult
from etude.experience.turn_replay import StoredStates, TurnReplay, encoded, read_states
from etude.learners.utterances import TURN, EncodedTurn, PrefixBaseline, UtteranceCritic
from etude.loops.language import LanguageLoop
from etude.objectives.aggregation import token_shares
from etude.objectives.policy_gradient import PolicyGradient
from etude.optimizers.adam import AdamW
from etude.policies.control.networks import MLP
from language_toys import Toy, make_loop, random_episodes, random_policy

ARCHER: Any = get_method("archer")


# The replay


def scored_rows(episodes: list[Episode]) -> TokenBatch:
    """Rows whose every token is paid its place, so that sums say what was added up."""
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    return batch.replace(rewards=torch.arange(batch.tokens.shape[1]).expand(batch.tokens.shape).float())


def game(*said: int, stop: StopReason = StopReason.TERMINATED, name: str = "p") -> Episode:
    """Two tokens of a prompt; after each turn of so many tokens, but the last, one of an answer."""
    segments = [Segment("user", "", [3, 4], [0, 0], [0.0, 0.0])]
    for number, size in enumerate(said):
        segments.append(Segment("assistant", "", [10 + number] * size, [1] * size, [-1.0] * size, 0))
        if number + 1 < len(said) or stop.truncated:
            segments.append(Segment("user", "", [5], [0], [0.0]))
    return Episode(Problem(name, "?"), segments, stop=stop)


def drawn(replay: TurnReplay) -> list[tuple[Any, ...]]:
    """Each turn that is stored, once."""
    found = {repr(turn): turn for turn in replay.draw(200, np.random.default_rng(0))}
    turns = [(t.problem.id, t.tokens, t.begin, t.end, t.reward, t.done) for t in found.values()]
    return sorted(turns, key=lambda t: (t[0], t[2]))


def test_turns_are_kept_with_what_was_shown_said_paid_and_shown_then() -> None:
    replay = TurnReplay().bind()
    replay.before_update(scored_rows([game(1, 2), game(2, stop=StopReason.MAX_TURNS, name="q")]))
    assert drawn(replay) == [
        ("p", [3, 4, 10, 5], 2, 3, 2.0 + 3.0, False), ("p", [3, 4, 10, 5, 11, 11], 4, 6, 4.0 + 5.0, True),
        ("q", [3, 4, 10, 10, 5], 2, 4, 2.0 + 3.0 + 4.0, False),
    ]  # fmt: skip


def test_the_oldest_episodes_leave_whole() -> None:
    replay = TurnReplay(capacity=3).bind()
    for name in "abc":
        replay.before_update(scored_rows([game(1, 2, name=name)]))
    assert replay.count == 2 and {turn[0] for turn in drawn(replay)} == {"c"}
    replay.before_update(scored_rows([game(3, name="d")]))
    assert replay.count == 3 and {turn[0] for turn in drawn(replay)} == {"c", "d"}
    assert drawn(replay)[-1][:4] == ("d", [3, 4, 10, 10, 10], 2, 5)


def test_what_goes_on_is_not_kept() -> None:
    replay = TurnReplay().bind()
    replay.before_update(scored_rows([game(1, name="a"), game(2, stop=StopReason.PAUSED, name="b")]))
    assert {turn[0] for turn in drawn(replay)} == {"a"}


# The critic


@pytest.mark.slow
def test_states_are_those_after_so_many_tokens() -> None:
    policy = random_policy(dtype=torch.float64)
    rows = [e.tokens for e in random_episodes((1, 1), low=6)]
    for tokens, found in zip(rows, read_states(policy, rows, [[2, len(tokens)] for tokens in rows])):
        with torch.no_grad():
            hidden = policy.model.model(torch.tensor([tokens])).last_hidden_state[0]
        torch.testing.assert_close(found, hidden[[1, len(tokens) - 1]])


@pytest.mark.slow
def test_a_turn_is_read_before_and_after_what_was_said() -> None:
    policy, replay = random_policy(dtype=torch.float64), TurnReplay().bind()
    replay.before_update(scored_rows([game(1, 2)]))
    turns = {turn.begin: turn for turn in replay.draw(50, np.random.default_rng(0))}
    first, last = encoded(policy, [turns[2], turns[4]], [[3, 4, 7], [3, 4, 10, 5, 8, 9]])
    [states] = read_states(policy, [turns[4].tokens], [[2, 3, 4, 6]])
    for mine, whole in ((first.state, 0), (first.said, 1), (first.after, 2), (last.state, 2), (last.said, 3)):
        torch.testing.assert_close(mine, states[whole])
    torch.testing.assert_close(first.anew, read_states(policy, [[3, 4, 7]], [[3]])[0][0])
    assert (first.done, last.done) == (False, True) and not last.after.any()


class Table(nn.Module):
    """Two numbers for each state, found by where its states have their 1."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.expand(2, -1).clone())

    def forward(self, seen: Tensor) -> Tensor:
        return torch.einsum("mk,pnk->pmn", self.values, seen)[..., None]


def tables(q: Tensor, v: Tensor) -> nn.ModuleDict:
    return nn.ModuleDict({"q": Table(q), "v": Table(v)})


def reading(network: nn.Module, target: nn.Module, turns: list[EncodedTurn]) -> Any:
    rows = [SimpleNamespace(info={TURN: turn}) for turn in turns]
    batch = SimpleNamespace(episodes=rows, scores=torch.zeros(len(rows)).double(), tokens=torch.zeros(len(rows), 1))
    return SimpleNamespace(network=network, target=target, batch=batch)


GAMMA = 0.9
PI = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
"""Of two utterances in each of two states: the first ends the game, the second goes on in the other state."""
PAID = torch.tensor([[1.0, -0.5], [2.0, 0.25]], dtype=torch.float64)


def all_turns() -> list[EncodedTurn]:
    """Every state, utterance and other utterance as often as the policy says so."""
    one, found = torch.eye(8, dtype=torch.float64), []
    for s, a, other in itertools.product((0, 1), repeat=3):
        turn = EncodedTurn(one[s], one[2 * s + a], one[1 - s], one[2 * s + other], float(PAID[s, a]), done=a == 0)
        found += [turn] * int(16 * PI[s, a] * PI[s, other])
    return found


def values_of_pi() -> tuple[Tensor, Tensor]:
    """Q [4] and V [2] of the policy, from a linear system."""
    back = torch.tensor([[0.0, 0.75], [0.5, 0.0]], dtype=torch.float64) * GAMMA
    v = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - back, (PI * PAID).sum(1))
    q = PAID + GAMMA * torch.stack([torch.zeros(2, dtype=torch.float64), v.flip(0)], 1)
    return q.flatten(), v


def both_read(q: Tensor, v: Tensor) -> nn.ModuleDict:
    """Tables for states of 8 numbers: Q reads those of s and of a beside them, V those of s."""
    nothing = torch.zeros(8, dtype=torch.float64)
    return tables(torch.cat([nothing, q, nothing[:4]]), torch.cat([v, nothing[:6]]))


def test_with_exact_expectations_the_fixed_point_is_the_policys_values() -> None:
    part, (q, v) = UtteranceCritic(gamma=GAMMA), values_of_pi()
    network, turns = both_read(q, v), all_turns()
    found = torch.autograd.grad(part.loss(reading(network, both_read(q, v), turns)), list(network.parameters()))
    # only the noise of a~ is left in V's error, which has no gradient
    assert all(float(g.abs().max()) < 1e-12 for g in found)
    off = both_read(q + 1.0, v)
    assert any(
        g.abs().max() > 0.1 for g in torch.autograd.grad(part.loss(reading(off, network, turns)), off["q"].values)
    )


@pytest.mark.slow
def test_it_is_reached_through_slow_copies() -> None:
    part, (q, v) = UtteranceCritic(gamma=GAMMA), values_of_pi()
    nothing = torch.zeros(8, dtype=torch.float64)
    network, slow, turns = both_read(nothing[:4], nothing[:2]), both_read(nothing[:4], nothing[:2]), all_turns()
    for _ in range(220):
        found = torch.autograd.grad(part.loss(reading(network, slow, turns)), list(network.parameters()))
        with torch.no_grad():
            for p, g, copy in zip(network.parameters(), found, slow.parameters()):
                p -= 0.5 * g
                copy += 0.3 * (p - copy)
    found_q = network["q"].values.detach()[0]
    torch.testing.assert_close(found_q[8:12] + found_q[:2].repeat_interleave(2), q, atol=1e-5, rtol=0)
    torch.testing.assert_close(network["v"].values[1, :2].detach(), v, atol=1e-5, rtol=0)


def test_its_loss_and_what_it_offers_by_hand() -> None:
    network, slow = (
        tables(torch.tensor([1.0, 2.0]), torch.tensor([3.0])),
        tables(torch.tensor([4.0, 5.0]), torch.tensor([6.0])),
    )
    network["q"].values.data[1] = torch.tensor([0.0, 1.0])
    one = torch.ones(1)
    turns = [EncodedTurn(one, one, 2 * one, 3 * one, 0.5, False), EncodedTurn(one, 2 * one, one, one, -1.0, True)]
    # Q_1 = 1 + 2 and 1 + 4, Q_2 = 1 and 2; targets 0.5 + 0.5 * 12 and -1; V = 3 against Q' = 4 + 15 and 4 + 5
    squares = ((3 - 6.5) ** 2 + (5 + 1) ** 2 + (1 - 6.5) ** 2 + (2 + 1) ** 2) / 2 + (3 - 19) ** 2 + (3 - 9) ** 2
    read = reading(network, slow, turns)
    assert float(UtteranceCritic(gamma=0.5).loss(read).detach()) == pytest.approx(squares)
    # min(1 + 6, 3) - 3 and min(1 + 2, 1) - 3
    assert UtteranceCritic().offers(read)["utterance_advantage"].tolist() == [0.0, -2.0]


# The gradient


def utterances(words: int, length: int) -> Tensor:
    """[words ** length, length] all utterances."""
    return torch.tensor(list(itertools.product(range(words), repeat=length)))


def logps(table: list[Tensor], said: Tensor) -> Tensor:
    """[N, length] log-probabilities: the logits of word h depend on the words before."""
    found = []
    for h, logits in enumerate(table):
        prefix = (said[:, :h] * 3 ** torch.arange(h)).sum(1).long()
        found.append(logits.log_softmax(-1)[prefix].gather(1, said[:, h, None])[:, 0])
    return torch.stack(found, 1)


def expected_gradient(table: list[Tensor], q: Tensor, v: float, baseline: list[Tensor] | None) -> list[Tensor]:
    """The gradient of archer's loss over all utterances, each as likely as the policy says, with exact Q."""
    said = utterances(3, len(table))
    logp = logps(table, said)
    offers = {"utterance_advantage": q - v}
    if baseline is not None:
        prefixes = [(said[:, :h] * 3 ** torch.arange(h)).sum(1).long() for h in range(len(table))]
        offers["prefix_baseline"] = torch.stack([b[p] for b, p in zip(baseline, prefixes)], 1)
    rows = SimpleNamespace(
        offers=offers, unfinished=torch.ones(len(q)).bool(), action_mask=torch.ones(said.shape).bool()
    )  # fmt: skip
    rows.advantages = UtteranceAdvantages(warmup=0).bind()(rows)  # type: ignore[arg-type]
    shares = token_shares(ARCHER.aggregation, rows.action_mask, 10, torch.float64) * len(q) * 10
    chances = logp.detach().sum(1).exp()
    each = (PolicyGradient()(rows, TokenLogProbs(logp)) * shares).sum(1)  # type: ignore[arg-type]
    return list(torch.autograd.grad((chances * each).sum(), table))


@pytest.mark.parametrize("with_baseline", [False, True])
@pytest.mark.parametrize("length", [1, 2])
def test_exact_values_give_the_true_gradient_whatever_v_and_the_baseline(length: int, with_baseline: bool) -> None:
    random = torch.Generator().manual_seed(length)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    table = [noise(3**h, 3).requires_grad_(True) for h in range(length)]
    q, v = noise(3**length), float(noise(1))
    true = torch.autograd.grad(-(logps(table, utterances(3, length)).sum(1).exp() * q).sum(), table)
    found = expected_gradient(table, q, v, [noise(3**h) for h in range(length)] if with_baseline else None)
    for mine, wanted in zip(found, true):
        torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=0)


# A run


class Calls:
    """Three turns, each answered and paid by what is said; how many were played is counted."""

    played = 0

    def __init__(self, task: Any) -> None:
        self.turn = 0

    def reset(self, problem: Any, seed: int) -> list[Segment]:
        self.turn = 0
        return [Segment("user", problem.prompt)]

    def step(self, segment: Segment) -> StepResult:
        self.turn, Calls.played = self.turn + 1, Calls.played + 1
        return StepResult([Segment("user", f"{self.turn}!")], sum(segment.tokens) % 5 / 4, self.turn == 3)


TASK = Toy(("one:", "three:"), world=Calls, max_turns=4, max_tokens=4)
CRITIC = UtteranceCritic(
    network=MLP(hidden=(8,)), learning=Learning(optimizer=AdamW(lr=1e-2), epochs=3, target=Target(rate=0.25))
)


def loop_of(**changes: Any) -> LanguageLoop:
    method = ARCHER.replace(
        problems=2, experience=StoredStates(size=2, states=6, replay=TurnReplay(capacity=20)), learners=(CRITIC,),
        advantages=UtteranceAdvantages(warmup=1), minibatches=1,
    )  # fmt: skip
    return make_loop(method.replace(**changes), TASK, steps=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three steps, saved after two of them; what was seen on the way."""
    loop, folder = loop_of(learners=(CRITIC, PrefixBaseline())), tmp_path_factory.mktemp("archer")
    seen, batches = [], []
    learn = loop.trainer.learn

    def watched(*given: Any) -> Any:
        found = learn(*given)
        batches.append(found[0]["policy"])
        return found

    loop.trainer.learn = watched  # type: ignore[method-assign]
    Calls.played = 0
    for step in range(3):
        before = [p.detach().clone() for p in loop.policy.parameters()]
        metrics = loop.step().metrics
        moved = any(not torch.equal(p, b) for p, b in zip(loop.policy.parameters(), before))
        seen.append((metrics, Calls.played, moved))
        if step == 1:
            loop.save(folder)
    return SimpleNamespace(loop=loop, folder=folder, seen=seen, batches=batches)


@pytest.mark.slow
def test_games_fill_the_replay_and_what_is_said_anew_asks_no_environment(whole: Any) -> None:
    assert [played for _, played, _ in whole.seen] == [12, 24, 36]
    assert [int(metrics["rows"]) for metrics, *_ in whole.seen] == [4, 10, 10]
    replay = whole.loop.method.experience.replay
    assert replay.count == 18  # whole episodes of three turns, at most 20
    assert whole.seen[0][0]["reward"] != 0


@pytest.mark.slow
def test_the_policy_waits_and_then_learns_from_what_was_said_anew_alone(whole: Any) -> None:
    assert [moved for *_, moved in whole.seen] == [False, True, True]
    batch = whole.batches[2]
    anew = batch.unfinished
    assert anew.sum() == 6 and not batch.advantages[~anew].any()
    utterance, baseline = batch.offers["utterance_advantage"], batch.offers["prefix_baseline"]
    wanted = (utterance[:, None] - baseline) * 10 / 6
    assert baseline[anew].abs().sum() > 0
    torch.testing.assert_close(batch.advantages[anew], (wanted * batch.action_mask)[anew])


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_turns(whole: Any) -> None:
    again = loop_of(learners=(CRITIC, PrefixBaseline()))
    again.load(whole.folder)
    again.step()
    mine, theirs = ({**x.policy.tensors(), **x.updater.learners.tensors(), **stored(x)} for x in (whole.loop, again))
    assert mine.keys() == theirs.keys()
    assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []


def stored(loop: LanguageLoop) -> dict[str, Tensor]:
    """What a loop's replay holds."""
    state: dict[str, Any] = loop.method.experience.replay.state  # type: ignore[attr-defined]
    return {f"replay.{name}": value for name, value in state.items() if isinstance(value, Tensor)}


@pytest.mark.slow
def test_the_slow_copy_follows_after_every_pass() -> None:
    loop = loop_of(learners=(CRITIC.replace(learning=CRITIC.learning.replace(epochs=2)),))
    loop.step()
    trainer, weights = loop.updater.learners.trainers["utterance-critic"], list[Tensor]()
    step = trainer.stepper.step

    def watched(*given: Any) -> Any:
        found = step(*given)
        weights.append(next(trainer.network.parameters()).detach().clone())
        return found

    trainer.stepper.step = watched  # type: ignore[method-assign]
    slow = next(trainer.target.parameters()).clone()  # type: ignore[union-attr]
    loop.step()
    for fast in weights:
        slow = slow + 0.25 * (fast - slow)
    assert len(weights) == 2
    torch.testing.assert_close(next(trainer.target.parameters()), slow)  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_policy_is_paid_more_than_before() -> None:
    """What a random policy is paid rises, by half and more; with the sign of its credit turned round it does not."""
    critic = UtteranceCritic(
        network=MLP(hidden=(64,), activation="relu"),
        learning=Learning(optimizer=AdamW(lr=3e-3), epochs=40, target=Target(rate=0.1)),
    )
    method = ARCHER.replace(
        problems=3, experience=StoredStates(size=24, states=96), minibatches=2, learners=(critic,),
        advantages=UtteranceAdvantages(warmup=4), optimizer=AdamW(lr=2e-2),
    )  # fmt: skip
    loop = make_loop(method, Toy(max_tokens=4), random_policy(seed=1), seed=1, steps=30)
    paid = [loop.step().metrics["reward"] for _ in range(30)]
    assert sum(paid[-4:]) / 4 > sum(paid[:4]) / 4 + 0.1, paid


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learners": ()}, "there is none: set learners=utterance-critic"),
        ({"experience": get_method("ppo").slots()["experience"]}, "nobody stores any: set experience=stored-states"),
    ],
)
def test_what_cannot_work_is_said(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ARCHER.replace(**changes).check()


def test_a_baseline_alone_has_nothing_to_learn() -> None:
    said = PrefixBaseline().objection(ARCHER.replace(learners=(PrefixBaseline(),)))
    assert said is not None and "add utterance-critic to learners" in said


def test_a_game_of_several_is_refused() -> None:
    from etude.tasks.agents.signals import signals

    said = StoredStates().lacks(signals)
    assert said is not None and "is played by sender, receiver: take a game for one" in said
    assert StoredStates().lacks(Toy(max_tokens=4)) is None
