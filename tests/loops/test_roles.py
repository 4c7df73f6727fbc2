"""Several players: each is paid, compared and learned from by itself, on weights of its own or on shared ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.roles import OwnWeights, Plays
from etude.experience.views import LastTurns
from etude.filters.informative import InformativeGroups
from etude.learners.value_model import ValueModel
from etude.loops.language import LanguageLoop
from etude.loops.learn import Rows
from etude.objectives.policy_gradient import PolicyGradient
from etude.optimizers.adam import AdamW
from etude.rewards.outcome import TaskReward
from etude.runs import samplers
from etude.runs.training import Options
from etude.tasks.agents.signals import Signals
from language_toys import gradients, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")

GRPO: Any = get_method("grpo").replace(
    experience=Groups(size=4), problems=3, optimizer=AdamW(lr=1e-3, clip_norm=None), aggregation="token-mean"
)
SENDER, RECEIVER = Plays("sender"), Plays("receiver")
DEAR = Plays("sender", rewards=(TaskReward(weight=3.0),), advantages=GroupAdvantage(scale=None))
CRITIC = OwnWeights(called="critic", optimizer=AdamW(lr=5e-3, clip_norm=None))


def loop(*roles: Plays, method: Any = GRPO, task: Any = None, **options: Any) -> LanguageLoop:
    policy = random_policy(dtype=torch.float64, **options)
    return make_loop(method.replace(roles=roles), task or Signals(cost=0.1), policy)


def scored(made: LanguageLoop) -> Rows:
    """The rows of a step, with the rewards and advantages that they would have had by chance: none is equal."""
    stream = made.stream.split("step", 0)
    rows = made.party.gathered(made.method, 3, lambda count, n: made._assess(made.method, count, n, stream)).rows
    for number, batch in enumerate(rows.values()):
        batch.scores = torch.arange(len(batch), dtype=batch.scores.dtype) * (-0.5) ** number
    return rows


def taught(made: LanguageLoop, rows: Rows) -> tuple[Rows, dict[str, float]]:
    return made.trainer.learn(made.party.players(made.method), rows, 0, Stream(0))


def weights(made: LanguageLoop, model: str = "policy") -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in made.models[model].policy.parameters()])


def flat(made: LanguageLoop, model: str = "policy") -> Tensor:
    found = gradients(made.models[model].policy)
    return torch.cat([g.flatten() for g in found.values()]) if found else torch.zeros(0)


# Rewards and credit


def test_each_player_has_its_own_rewards_and_advantages() -> None:
    made = loop(DEAR)
    stream = made.stream.split("step", 0)
    rows = made.party.gathered(made.method, 3, lambda count, n: made._assess(made.method, count, n, stream)).rows
    assert list(rows) == ["sender", "receiver"]
    for name, batch in rows.items():
        assert {e.player for e in batch.episodes} == {name} and len(batch) == 12
        paid = torch.tensor([e.reward for e in batch.episodes], dtype=batch.scores.dtype)
        torch.testing.assert_close(batch.scores, paid * (3.0 if name == "sender" else 1.0))
    assert any(e.reward < 0 for e in rows["sender"].episodes)  # the cost of sending, which the receiver has not
    assert not any(e.reward < 0 for e in rows["receiver"].episodes)


def test_credit_is_by_what_the_player_follows_and_among_its_own_rows() -> None:
    made = loop(DEAR)
    rows = scored(made)
    scores = {name: batch.scores.clone() for name, batch in rows.items()}
    rows, metrics = taught(made, rows)
    for name, batch in rows.items():
        for group in batch.group.unique():
            mine = batch.group == group
            centred = scores[name][mine] - scores[name][mine].mean()
            want = centred if name == "sender" else centred / (scores[name][mine].std(correction=0) + 1e-6)
            assert batch.advantages is not None
            got = batch.advantages[mine].gather(1, batch.action_mask[mine].int().argmax(1, keepdim=True))[:, 0]
            torch.testing.assert_close(got, want.to(got), rtol=2e-5, atol=1e-6, check_dtype=False)
    assert {"sender/loss", "receiver/loss", "gradient_norm"} <= metrics.keys() and "loss" not in metrics


# Weights that both share


def alone(name: str, *roles: Plays) -> tuple[LanguageLoop, dict[str, float]]:
    made = loop(*roles)
    rows = scored(made)
    return made, taught(made, {name: rows[name]})[1]


@pytest.mark.slow
def test_the_gradient_of_shared_weights_is_the_sum_of_both_players() -> None:
    both = loop(SENDER, RECEIVER)
    taught(both, scored(both))
    parts = [flat(alone(name, SENDER, RECEIVER)[0]) for name in ("sender", "receiver")]
    assert all(part.abs().max() > 1e-4 for part in parts)
    torch.testing.assert_close(flat(both), parts[0] + parts[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_each_loss_has_the_denominator_of_its_own_rows() -> None:
    made = loop(SENDER, RECEIVER)
    _, metrics = taught(made, scored(made))
    for name in ("sender", "receiver"):
        assert metrics[f"{name}/loss"] == alone(name)[1][f"{name}/loss"]


@pytest.mark.slow
def test_who_is_not_trained_adds_no_gradient() -> None:
    made = loop(SENDER.replace(trained=False), RECEIVER)
    rows, _ = taught(made, scored(made))
    assert torch.equal(flat(made), flat(alone("receiver")[0]))
    assert rows["sender"].advantages is None and len(rows["sender"])


@pytest.mark.slow
def test_a_player_may_take_steps_apart() -> None:
    """Two steps of the same weights, the second's gradient where the first has left them."""
    method = GRPO.replace(objective=PolicyGradient())
    made, first = loop(SENDER.replace(apart=True), method=method), loop(method=method)
    rows = scored(made)
    taught(made, rows)
    assert made.policy.version == 2
    taught(first, {"receiver": scored(first)["receiver"]})
    assert first.policy.version == 1
    late = {"sender": scored(loop(method=method))["sender"]}
    taught_late(first, late)
    assert torch.equal(weights(made), weights(first))


def taught_late(made: LanguageLoop, rows: Rows) -> None:
    """Learn from rows of the policy as it was a step before."""
    from etude.loops.credit import credited
    from etude.loops.lessons import Lesson

    player = made.party.players(made.method)[0]
    made.updater.run_together([Lesson(player.method, credited(player.method, rows["sender"]))], 0, Stream(0), False)


@pytest.mark.slow
def test_a_filter_has_new_problems_drawn_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver's groups are all equal, with another in each round but the last, of which both have rows."""
    made, counts = loop(RECEIVER.replace(filters=(InformativeGroups(rounds=3),))), list[int]()
    real = made._assess

    def assess(method: Any, count: int, number: int, stream: Stream) -> Rows:
        rows = real(method, count, number, stream)
        counts.append(count)
        for batch in rows.values():
            batch.scores = torch.zeros_like(batch.scores)
        rows["receiver"].scores[0] = 1.0
        return rows

    monkeypatch.setattr(made, "_assess", assess)
    made.step()
    assert counts == [3, 2, 1]


# Models of their own


@pytest.mark.slow
def test_two_models_have_separate_optimizers_and_samplers() -> None:
    made = loop(SENDER, RECEIVER.replace(weights=CRITIC))
    assert list(made.models) == ["policy", "critic"]
    assert made.models["critic"].updater.stepper.lr == 5e-3 != made.updater.stepper.lr
    with torch.no_grad():  # so that whose sampler it was can be seen
        for p in made.models["critic"].policy.parameters():
            p.mul_(1.5)
    rows = scored(made)
    for name, model in (("sender", "policy"), ("receiver", "critic")):
        batch = rows[name]
        said = [made.models[m].policy.evaluate(batch).logp for m in (model, *({"policy", "critic"} - {model}))]
        torch.testing.assert_close(said[0].float(), batch.behaviour_logp, rtol=1e-4, atol=1e-4)
        assert (said[1].float() - batch.behaviour_logp).abs().max() > 0.05
    before = {model: weights(made, model) for model in made.models}
    _, metrics = taught(made, rows)
    assert all(not torch.equal(before[m], weights(made, m)) for m in made.models)
    assert metrics["gradient_norm"] != metrics["critic/gradient_norm"] and "receiver/loss" in metrics
    moments = [m.updater.stepper.moments()[0]["exp_avg"] for m in made.models.values()]
    assert not torch.equal(*moments)


@pytest.mark.slow
def test_a_models_step_is_that_of_its_players_rows_alone() -> None:
    made = loop(SENDER, RECEIVER.replace(weights=OwnWeights(called="critic")))
    taught(made, scored(made))
    for name, model in (("sender", "policy"), ("receiver", "critic")):
        assert torch.equal(flat(made, model), flat(alone(name)[0]))


@pytest.mark.slow
def test_who_is_not_trained_keeps_its_weights() -> None:
    made = loop(SENDER, RECEIVER.replace(weights=CRITIC, trained=False))
    before = weights(made, "critic")
    assert "sender/loss" in made.step().metrics
    assert torch.equal(weights(made, "critic"), before) and not len(flat(made, "critic"))
    assert made.models["critic"].policy.version == 0 and made.policy.version == 1


@pytest.mark.slow
def test_it_goes_on_exactly(tmp_path: Path) -> None:
    roles = (SENDER, RECEIVER.replace(weights=CRITIC))
    one, again = loop(*roles, seed=3), loop(*roles, seed=3)
    for _ in range(2):
        one.step()
    one.save(tmp_path)
    assert (tmp_path / "models" / "critic" / "config.json").is_file()
    again.load(tmp_path)
    mine, theirs = (step(made) for made in (one, again))
    assert mine == theirs
    assert all(torch.equal(weights(one, m), weights(again, m)) for m in one.models)


def step(made: LanguageLoop) -> dict[str, float]:
    return {k: v for k, v in made.step().metrics.items() if "second" not in k}


# One player


@pytest.mark.slow
def test_a_role_of_who_plays_alone_changes_no_number() -> None:
    plain, role = make_loop(GRPO), make_loop(GRPO.replace(roles=(Plays(),)))
    assert [step(plain) for _ in range(2)] == [step(role) for _ in range(2)]
    assert torch.equal(weights(plain), weights(role))


# What each sees


@pytest.mark.slow
def test_a_prompt_stands_before_all_else_and_nothing_is_read_twice() -> None:
    task = Signals(rounds=3)
    for own in (None, CRITIC):
        made = loop(SENDER.replace(prompt="Send. "), RECEIVER.replace(weights=own), task=task)
        rows = scored(made)
        texts = {name: {e.segments[0].text for e in batch.episodes} for name, batch in rows.items()}
        assert texts["sender"] == {"Send. "} and all(text.startswith("hear ") for text in texts["receiver"])
        assert {len(e.turns) for e in rows["sender"].episodes} <= {1, 2, 3}
        assert max(len(e.turns) for e in rows["receiver"].episodes) == 3
        assert made.party.work(made.method)["prefilled_again"] == 0


@pytest.mark.slow
def test_a_player_may_have_a_view_of_its_own() -> None:
    made = loop(SENDER, RECEIVER.replace(view=LastTurns(turns=1)), task=Signals(rounds=4))
    rows = scored(made)
    assert len(rows["receiver"]) > 12 >= len(rows["sender"])
    assert len(rows["receiver"].wholes()) == 12
    assert "receiver/rows" in made.step().metrics


# Faults


def sentences(method: Any, task: Any = None) -> str:
    return " | ".join(objections(method, task or Signals()))


def test_what_cannot_work_together_is_said() -> None:
    assert not sentences(GRPO.replace(roles=(DEAR, RECEIVER)))
    assert "There is no player of task 'signals' named 'sendr'. Did you mean 'sender'?" in sentences(
        GRPO.replace(roles=(Plays("sendr"),))
    )
    assert "two roles are for the player 'sender'" in sentences(GRPO.replace(roles=(SENDER, DEAR)))
    assert "no player is trained" in sentences(
        GRPO.replace(roles=(SENDER.replace(trained=False), RECEIVER.replace(trained=False)))
    )
    two = SENDER.replace(weights=CRITIC), RECEIVER.replace(weights=CRITIC.replace(optimizer=None))
    assert "roles share the model 'critic', which would have to begin, or to learn, in two ways" in sentences(
        GRPO.replace(roles=two)
    )
    assert "for the player 'sender', " in sentences(
        GRPO.replace(roles=(SENDER.replace(rewards=()),))
    ) and "there are advantages but no rewards" in sentences(GRPO.replace(roles=(SENDER.replace(rewards=()),)))
    critic: Any = get_method("grpo").replace(critic=ValueModel())
    assert "learns beside, has several players" in sentences(critic)
    with pytest.raises(Exception, match=r"OwnWeights\.called must be a word other than 'policy'"):
        OwnWeights(called="policy")


def test_samplers_are_for_one_player() -> None:
    with pytest.raises(Exception, match="--on processes:2 is for episodes of one player"):
        samplers.check(GRPO, Signals(), Options(on="processes:2"))


def test_a_player_that_is_shown_nothing_needs_a_prompt() -> None:
    class Silent(Signals):
        def environment(self) -> Any:
            world = super().environment()
            real = world.step

            def step(segment: Any) -> Any:
                result = real(segment)
                result.segments = []
                return result

            world.step = step  # type: ignore[method-assign]
            return world

    with pytest.raises(Exception, match=r"give its role a prompt \(roles\.receiver\.prompt\)"):
        loop(task=Silent()).step()
    loop(RECEIVER.replace(prompt="?"), task=Silent()).step()
