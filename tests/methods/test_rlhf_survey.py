"""What the row of rlhf-survey says: likelihoods, teachers, choices of questions, relabelling, EPIC distances."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.epic import canonical_table, epic_distance, epic_of_tables, pearson_distance
from etude.experience.sampling import OneStep
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.preference.rlhf_survey.feedback import (
    Answers,
    BestSegment,
    Comparison,
    Correction,
    Critique,
    Demonstration,
    Feedback,
    Ranking,
    Rating,
    Stop,
)  # fmt: skip
from etude.methods.preference.rlhf_survey.models import Segments
from etude.methods.preference.rlhf_survey.queries import (
    AnyQuestions,
    FarthestFirst,
    MostDisagreed,
    MostInformative,
    MostUncertain,
    entropy,
)  # fmt: skip
from etude.methods.preference.rlhf_survey.rollouts import before_an_end, whole
from etude.methods.preference.rlhf_survey.stored import RelabelledBootstrap, StateEntropy
from etude.methods.preference.rlhf_survey.teachers import SimulatedTeacher
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

TYPES = (
    Comparison(), BestSegment(), Ranking(), Rating(), Critique(), Correction(), Demonstration(count=3), Stop()
)  # fmt: skip
each_type = pytest.mark.parametrize("feedback", TYPES, ids=lambda part: part.name)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def answered(feedback: Feedback, paid: Tensor, teacher: SimulatedTeacher, seed: int = 1) -> Answers:
    options = feedback.worths(paid).shape[-1]
    draws = uniform(*paid.shape[:-2], max(1, feedback.segments - 1), options + 2, seed=seed)
    return teacher.answer(feedback, paid, torch.ones_like(paid), draws)


# Likelihoods


def test_comparison_of_single_steps_without_slips_is_bradley_and_terrys_model() -> None:
    rewards = numbers(50, 2, 1)
    first = Answers(torch.tensor([[1.0, 0.0]]).double().expand(50, 1, 2), torch.ones(50, 1, 2).double())
    wanted = [math.log(1 + math.exp(float(r[1, 0] - r[0, 0]))) for r in rewards]
    assert Comparison(slips=0.0).unlikely(rewards, first).tolist() == pytest.approx(wanted, abs=1e-12)


def test_comparison_is_the_rows_model_with_slips() -> None:
    rewards, eps, beta = numbers(50, 2, 25), 0.1, 1.5
    for chosen in (0, 1):
        answers = Answers(torch.eye(2).double()[chosen].expand(50, 1, 2), torch.ones(50, 1, 2).double())
        for r, found in zip(rewards, Comparison(slips=eps, beta=beta).unlikely(rewards, answers).tolist()):
            apart = beta * float(r[chosen].sum() - r[1 - chosen].sum())
            assert found == pytest.approx(-math.log((1 - eps) / (1 + math.exp(-apart)) + eps / 2), abs=1e-10)


@each_type
def test_chances_of_all_options_add_up_to_one(feedback: Feedback) -> None:
    worths = feedback.worths(numbers(7, feedback.segments, 5))
    found = feedback.logp(worths, torch.ones_like(worths)[:, None]).exp()
    assert found.sum(-1).flatten().tolist() == pytest.approx([1.0] * 7, abs=1e-12)
    assert float(found.min()) >= 0.1 / worths.shape[-1] - 1e-12


def test_ranking_is_plackett_and_luces_model() -> None:
    worth, part = [0.5, -1.0, 2.0], Ranking(count=3, slips=0.0)
    rewards, total = torch.tensor(worth).double()[:, None], 0.0
    for order in itertools.permutations(range(3)):
        chosen = torch.stack([torch.eye(3)[order[0]], torch.eye(3)[order[1]]]).double()
        among = torch.stack([torch.ones(3), 1 - torch.eye(3)[order[0]]]).double()
        wanted, left = 1.0, list(order)
        for item in order:
            wanted *= math.exp(worth[item]) / sum(math.exp(worth[i]) for i in left)
            left.remove(item)
        found = math.exp(-float(part.unlikely(rewards, Answers(chosen, among))))
        assert found == pytest.approx(wanted, abs=1e-12)
        total += found
    assert total == pytest.approx(1.0, abs=1e-12)


def test_who_ranks_names_every_segment_once_and_the_best_first() -> None:
    rewards = numbers(20, 4, 3)
    answers = answered(Ranking(count=4), rewards, SimulatedTeacher())
    for sums, chosen, among in zip(rewards.sum(-1), *answers):
        assert chosen.argmax(-1).tolist() == sums.argsort(descending=True)[:3].tolist()
        assert among.sum(-1).tolist() == [4.0, 3.0, 2.0]


def test_a_rating_of_two_levels_is_a_critique_and_a_sigmoid() -> None:
    rewards = numbers(9, 1, 4)
    good = Answers(torch.tensor([[0.0, 1.0]]).double().expand(9, 1, 2), torch.ones(9, 1, 2).double())
    wanted = [-math.log(1 / (1 + math.exp(-float(r.sum())))) for r in rewards]
    for part in (Rating(levels=2, spacing=3.0, slips=0.0), Critique(slips=0.0)):
        assert part.unlikely(rewards, good).tolist() == pytest.approx(wanted, abs=1e-12)


def test_neighbours_on_a_rating_scale_are_told_apart_at_its_thresholds() -> None:
    worths = Rating(levels=4, spacing=2.0).worths(torch.tensor([[1.25]]).double())
    assert (worths[1:] - worths[:-1]).tolist() == pytest.approx([1.25 + 2.0, 1.25, 1.25 - 2.0])


def test_a_correction_is_a_comparison_with_what_was_shown() -> None:
    rewards = numbers(30, 4, 6)
    answers = answered(Correction(count=3, slips=0.0), rewards, SimulatedTeacher())
    found = Correction(count=3, slips=0.0).unlikely(rewards, answers)
    said = 0
    for r, loss in zip(rewards.sum(-1).tolist(), found.tolist()):
        apart = max(r[1:]) - r[0]
        said += apart > 0
        assert loss == pytest.approx(math.log(1 + math.exp(-apart)) if apart > 0 else 0.0, abs=1e-12)
    assert 0 < said < 30


def test_a_stop_is_a_choice_among_beginnings() -> None:
    rewards = torch.tensor([[0.5, -2.0, 1.0]]).double()
    answers = answered(Stop(), rewards, SimulatedTeacher())
    assert answers.chosen.tolist() == [[0.0, 1.0, 0.0, 0.0]]  # of 0, 0.5, -1.5 and -0.5
    weights = [math.exp(x) for x in (0.0, 0.5, -1.5, -0.5)]
    found = float(Stop(slips=0.0).unlikely(rewards, answers))
    assert found == pytest.approx(-math.log(weights[1] / sum(weights)), abs=1e-12)


@each_type
def test_where_nothing_was_said_nothing_is_learned(feedback: Feedback) -> None:
    rewards = numbers(5, feedback.segments, 3).requires_grad_()
    answers = answered(feedback, rewards.detach(), SimulatedTeacher(skip=1e6))
    loss = feedback.unlikely(rewards, answers)
    (gradient,) = torch.autograd.grad(loss.sum(), rewards)
    assert loss.tolist() == [0.0] * 5 and float(gradient.abs().max()) == 0.0


@each_type
@pytest.mark.parametrize("slips", [0.0, 0.1])
def test_gradients_are_finite_and_go_towards_the_answers(feedback: Feedback, slips: float) -> None:
    part, rewards = feedback.replace(slips=slips), numbers(40, feedback.segments, 3)
    answers = answered(part, rewards, SimulatedTeacher())
    learned = torch.zeros_like(rewards).requires_grad_()
    before = part.unlikely(learned, answers)
    (gradient,) = torch.autograd.grad(before.sum(), learned)
    assert bool(gradient.isfinite().all())
    assert float(part.unlikely(learned.detach() - 0.1 * gradient, answers).sum()) < float(before.detach().sum())


# Teachers


@each_type
def test_a_sharp_teacher_is_the_oracle(feedback: Feedback) -> None:
    paid = numbers(60, feedback.segments, 5)
    sharp, oracle = (answered(feedback, paid, SimulatedTeacher(beta=b)) for b in (1e9, None))
    assert torch.equal(sharp.chosen, oracle.chosen) and torch.equal(sharp.among, oracle.among)


def test_a_boltzmann_teacher_answers_as_often_as_its_softmax_says() -> None:
    paid = torch.tensor([[0.3], [-0.2], [0.6]]).double().expand(40_000, 3, 1)
    found = answered(BestSegment(count=3), paid, SimulatedTeacher(beta=2.0)).chosen[:, 0].mean(0)
    wanted = (2.0 * paid[0, :, 0]).softmax(0)
    assert float((found - wanted).abs().max()) < 3 * 0.5 / 200


def test_a_teacher_who_errs_names_another_as_often() -> None:
    paid = torch.tensor([[1.0], [0.0], [0.5]]).double().expand(40_000, 3, 1)
    found = answered(BestSegment(count=3), paid, SimulatedTeacher(mistakes=0.1)).chosen[:, 0].mean(0)
    assert (found - torch.tensor([0.9, 0.05, 0.05]).double()).abs().max() < 3 * 0.3 / 200


def test_a_myopic_teacher_counts_what_came_last_most() -> None:
    paid, gamma = numbers(1, 2, 4), 0.7
    found = SimulatedTeacher(gamma=gamma).worth(paid, torch.ones_like(paid)).sum(-1)
    wanted = [sum(gamma ** (3 - t) * float(s[t]) for t in range(4)) for s in paid[0]]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-12)
    live = torch.tensor([1.0, 1.0, 0.0, 0.0]).double().expand(1, 2, 4)  # an end: the second step is the last
    found = SimulatedTeacher(gamma=gamma).worth(paid, live).sum(-1)
    assert found[0].tolist() == pytest.approx([gamma * float(s[0]) + float(s[1]) for s in paid[0]], abs=1e-12)


def test_a_teacher_skips_and_calls_equal() -> None:
    paid = torch.tensor([[[1.0], [0.8]], [[-1.0], [-2.0]], [[3.0], [0.0]]]).double()
    found = answered(Comparison(), paid, SimulatedTeacher(skip=0.0, equal=0.5)).chosen[:, 0]
    assert found.tolist() == [[0.5, 0.5], [0.0, 0.0], [1.0, 0.0]]


def test_zero_and_unit_move_what_is_rated_and_not_what_is_compared() -> None:
    paid = numbers(40, 1, 5) - 3
    assert float(answered(Critique(), paid, SimulatedTeacher()).chosen[..., 1].mean()) == 0.0
    shares = answered(Critique(), paid, SimulatedTeacher(zero=-3.0)).chosen[..., 1].mean()
    assert 0.2 < float(shares) < 0.8
    both = numbers(40, 2, 5)
    plain, moved = (answered(Comparison(), both, SimulatedTeacher(**x)) for x in ({}, {"zero": -3.0, "unit": 7.0}))
    assert torch.equal(plain.chosen, moved.chosen)


# Which questions


def test_what_is_asked_is_where_models_differ_most() -> None:
    sure, split, unsure = [1.0, 0.0], ([1.0, 0.0], [0.0, 1.0]), [0.5, 0.5]
    chances = torch.tensor([[[sure, split[0], unsure], [sure, split[1], unsure]]])
    shown = torch.zeros(1, 3, 1)
    assert MostDisagreed().pick(chances, shown, 1).tolist() == [[1]]
    assert MostInformative().pick(chances, shown, 1).tolist() == [[1]]
    assert sorted(MostUncertain().pick(chances, shown, 2)[0].tolist()) == [1, 2]
    assert AnyQuestions().pick(chances, shown, 2).tolist() == [[0, 1]]
    said = chances.double()
    wanted = entropy(said.mean(1)) - entropy(said).mean(1)
    assert MostInformative().scores(said)[0].tolist() == pytest.approx(wanted[0].tolist(), abs=1e-12)
    assert wanted[0].tolist() == pytest.approx([0.0, math.log(2), 0.0], abs=1e-12)


def test_the_farthest_are_asked_first() -> None:
    shown = numbers(2, 12, 3)
    found = FarthestFirst().pick(torch.zeros(2, 1, 12, 2), shown, 5)
    for own, places in zip(shown, found.tolist()):
        chosen = [0]
        for _ in range(4):
            far = [min(float((x - own[c]).norm()) for c in chosen) for x in own]
            chosen.append(max(range(12), key=far.__getitem__))
        assert places == chosen and len(set(places)) == 5


# Segments


def test_segments_end_where_their_episode_does() -> None:
    ended = torch.tensor([[False, False, False], [True, False, True], [False, False, True]])
    assert before_an_end(ended).tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def test_what_a_time_limit_cuts_is_not_compared() -> None:
    live = torch.tensor([[[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]])
    terminated = torch.tensor([[[False, False], [True, False], [False, False]]])  # the third was cut
    paid = torch.arange(6.0).view(1, 3, 2)
    found = whole(Segments(paid[..., None], paid[..., None], paid, live), terminated, 3)
    assert found.paid.tolist() == [[[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]]
    with pytest.raises(ConfigError, match="no episode lasts as long"):
        whole(Segments(paid[..., None], paid[..., None], paid, live * 0), terminated, 3)


# Relabelling


def asked_loop(**changes: Any) -> OffPolicyLoop:
    method = set_values(small(REPLAY["rlhf-survey"], heads=False, capacity=200), changes)
    loop = OffPolicyLoop(method, pendulum, [Member(0), Member(1)], 2, 24)
    loop.step()
    return loop


@pytest.mark.slow
def test_everything_stored_is_paid_the_mean_of_the_models_as_they_are() -> None:
    loop = asked_loop()
    updater, store = loop.updater, loop.collector.store
    index = torch.arange(store.size).expand(2, -1)
    paid = list[Tensor]()
    for _ in range(2):
        batch = OneStep().read(store, index)
        read = StoredReading(updater, loop.method.sampling, batch, updater.stretches.at(0), store)
        backup: Any = loop.method.critic.backup  # type: ignore[union-attr]
        paid.append(backup.payment(read))
        network: Any = updater.networks["replay-preferences"]
        x = torch.cat([batch.observations, batch.actions], -1)
        for k in range(2):
            each = []
            for m in range(3 * k, 3 * k + 3):
                h = x[k]
                for layer in network.body.layers:
                    h = torch.nn.functional.leaky_relu(h @ layer.weight[m] + layer.bias[m], 0.01)
                each.append(torch.tanh(h @ network.head.weight[m] + network.head.bias[m])[:, 0])
            assert torch.allclose(paid[-1][k], torch.stack(each).mean(0), atol=1e-6)
        loop.step()  # the models learn on
    assert float((paid[0] - paid[1]).abs().max()) > 1e-3
    assert float(store.rewards.abs().max()) > 1  # as the pendulum pays


@pytest.mark.slow
def test_who_learns_never_sees_what_the_environment_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards change nothing but the answers: with the same answers, other rewards train the same policy."""
    weights = []
    for factor in (1.0, 7.0):
        loop = OffPolicyLoop(small(REPLAY["rlhf-survey"], heads=False, capacity=200), pendulum, [Member(0)], 2, 24)
        step = loop.collector.environment.step

        def other(actions: Any, step: Any = step, factor: float = factor) -> Any:
            found = step(actions)
            found.rewards = factor * found.rewards
            return found

        monkeypatch.setattr(loop.collector.environment, "step", other)
        for _ in range(2):
            loop.step()
        weights.append(torch.cat([x.flatten() for x in loop.policy_tensors().values()]))
    assert torch.equal(*weights)


def test_sessions_ask_fewer_and_fewer_until_labels_are_spent() -> None:
    part: Any = get_method("rlhf-survey").bind().slots()["learners"][0]
    asked = []
    while part.wanted:
        asked.append(part.wanted)
        part.state["asked"] += part.wanted
        part.state["sessions"] += 1
    assert asked[:4] == [40, 33, 29, 25] and sum(asked) == 300 and asked[:-1] == sorted(asked[:-1], reverse=True)


@pytest.mark.slow
def test_weights_are_held_down_where_the_models_know_what_they_learned_from_too_well() -> None:
    part: Any = get_method("rlhf-survey").bind().slots()["learners"][0]
    part.made["population"] = SimpleNamespace(size=1)
    part.state.update(asked=20, live=torch.ones(1, 20, 2, 25))
    held = torch.arange(20) % 10 == 9
    for ratio, factor in ((1.0, 1 / 1.2), (1.3, 1.0), (1.6, 1.2)):
        part.state["decay"] = torch.tensor([1e-3])
        losses = torch.where(held, ratio, 1.0)
        object.__setattr__(part, "unlikely", lambda network, places, losses=losses: losses[places][:, None])
        part._hold_down(None)
        assert part.state["decay"].tolist() == pytest.approx([1e-3 * factor])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rlhf-survey", "rlhf-survey-ppo"])
@pytest.mark.parametrize("feedback", [p.name for p in TYPES])
def test_every_type_of_feedback_trains(name: str, feedback: str) -> None:
    method: Any = get_method(name)
    learner = method.learners[0].name
    changes = {f"learners.{learner}.{k}": v for k, v in {"feedback": feedback, "first": 5, "pool": 2}.items()}
    method = set_values(method, {**changes, f"learners.{learner}.learning.epochs": 2})
    if name == "rlhf-survey":
        method = set_values(small(method, heads=False, capacity=200), {f"learners.{learner}.feedback": feedback})
        loop: Any = OffPolicyLoop(method, pendulum, [Member(0)], 2, 24)
    else:
        loop = OnPolicyLoop(method, cartpole, [Member(0)], 2)
    for _ in range(2):
        loop.step()
    part = loop.method.learners[0]
    assert part.state["asked"] >= 5 and bool(part.state["chosen"].isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("queries", ["any-questions", "most-uncertain", "most-informative", "farthest-first"])
def test_every_choice_of_questions_trains(queries: str) -> None:
    loop = asked_loop(**{"learners.replay-preferences.queries": queries})
    assert loop.method.learners[0].state["asked"] >= 4


@pytest.mark.parametrize(("k", "among"), [(1, 512), (2, 512), (5, 512), (20, 512), (50, 512), (3, 20), (3, 4)])
def test_a_state_is_paid_how_far_its_kth_neighbour_is(k: int, among: int) -> None:
    """20 states of two members that are stored, by looking at each distance; itself is the nearest."""
    random = torch.Generator().manual_seed(k)
    stored = torch.randn(2, 20, 3, generator=random, dtype=torch.float64)
    asked = torch.randn(2, 6, 3, generator=random, dtype=torch.float64)
    asked[:, 0] = stored[:, 0]
    store = SimpleNamespace(
        size=20, read=lambda index: SimpleNamespace(observations=stored.gather(1, index[..., None].expand(-1, -1, 3)))
    )
    read: Any = SimpleNamespace(stored=store, seen=lambda at: asked / 2, look=lambda x: x / 2)
    places = range(20) if among >= 20 else [0, 6, 12, 19]  # evenly through what is stored
    found = StateEntropy(k=k, among=among)(read)
    for p, n in itertools.product(range(2), range(6)):
        apart = sorted(math.dist(asked[p, n].tolist(), stored[p, i].tolist()) / 2 for i in places)
        wanted = math.log(1 + apart[min(k, len(apart)) - 1])
        assert float(found[p, n]) == pytest.approx(wanted, abs=1e-12)
    assert (float(found[:, 0].abs().max()) == 0) == (k == 1)


@pytest.mark.slow
def test_a_first_stage_may_pay_how_new_states_are() -> None:
    loop = asked_loop(**{"critic.backup.payment": "state-entropy"})
    assert loop.updater.updates > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rlhf-survey", "rlhf-survey-ppo"])
def test_a_resumed_run_goes_on_with_its_answers(name: str, tmp_path: Path) -> None:
    def made() -> Any:
        method: Any = get_method(name)
        if name == "rlhf-survey":
            return OffPolicyLoop(small(method, heads=False, capacity=200), pendulum, [Member(3)], 4, 16)
        return OnPolicyLoop(set_values(method, {"experience.steps": 32, "epochs": 2}), cartpole, [Member(3)], 4)

    whole_run, first, second = made(), made(), made()
    for _ in range(4):
        whole_run.step()
    for _ in range(2):
        first.step()
    first.save(tmp_path)
    second.load(tmp_path)
    for _ in range(2):
        second.step()
    for key, value in whole_run.policy_tensors().items():
        assert torch.equal(value, second.policy_tensors()[key]), key


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("rlhf-survey", {"critic.backup": "bootstrap"}, "set critic.backup=relabelled-bootstrap"),
        ("rlhf-survey", {"sampling.horizon": "n-step"}, "set sampling.horizon=one-step"),
        ("rlhf-survey", {"learners": "temperature", "order": "critic,policy"}, "set learners=replay-preferences"),
        ("rlhf-survey-ppo", {"rewards": "none"}, "set rewards=model-rewards"),
        ("rlhf-survey-ppo", {"learners": "none"}, "set learners=rollout-preferences"),
        ("rlhf-survey-ppo", {"experience.steps": 8}, "asks about 25 steps of a rollout, which has fewer"),
    ],
)
def test_what_cannot_work_is_said(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes), pendulum)


# EPIC


def test_distance_is_0_to_a_shaped_reward_and_1_to_its_opposite() -> None:
    for seed, gamma in itertools.product(range(3), (0.5, 0.99, 1.0)):
        r, phi = numbers(5, 3, 5, seed=seed), numbers(5, seed=seed + 10)
        shaped = 2.5 * r + gamma * phi - phi[:, None, None] + 7
        assert epic_of_tables(r, shaped, gamma) == pytest.approx(0.0, abs=1e-7)
        assert epic_of_tables(r, -3 * r, gamma) == pytest.approx(1.0, abs=1e-12)
        assert 0.3 < epic_of_tables(r, numbers(5, 3, 5, seed=seed + 20), gamma) < 0.95


def test_canonical_rewards_are_those_of_the_definition() -> None:
    r, gamma = numbers(3, 2, 3), 0.9
    mean = [sum(float(r[s, a, t]) for a in range(2) for t in range(3)) / 6 for s in range(3)]
    found = canonical_table(r, gamma)
    for s, a, t in itertools.product(range(3), range(2), range(3)):
        wanted = float(r[s, a, t]) + gamma * mean[t] - mean[s] - gamma * sum(mean) / 3
        assert float(found[s, a, t]) == pytest.approx(wanted, abs=1e-12)


def test_of_samples_it_is_that_of_tables_where_they_are_all_there_is() -> None:
    count, gamma = 4, 0.8
    one, other = numbers(count, 1, count), numbers(count, 1, count, seed=5)
    s, t = (x.flatten() for x in torch.meshgrid(torch.arange(count), torch.arange(count), indexing="ij"))

    def table(r: Tensor) -> Any:
        return lambda a, b, c: r[a[..., 0].long(), 0, c[..., 0].long()]

    columns = s[:, None].double(), torch.zeros(len(s), 1).double(), t[:, None].double()
    found = epic_distance(table(one), table(other), *columns, gamma=gamma)
    assert found == pytest.approx(epic_of_tables(one, other, gamma), abs=1e-10)


def test_a_constant_reward_has_no_distance() -> None:
    with pytest.raises(ValueError, match="the same everywhere"):
        pearson_distance(torch.ones(4), torch.arange(4.0))


def test_a_triangle_of_distances_closes() -> None:
    a, b, c = (numbers(40, seed=s) for s in range(3))
    ab, bc, ac = pearson_distance(a, b), pearson_distance(b, c), pearson_distance(a, c)
    assert ac <= ab + bc + 1e-12 and pearson_distance(b, a) == pytest.approx(ab)


def test_methods_read_back_from_json() -> None:
    for name in ("rlhf-survey", "rlhf-survey-ppo"):
        method = get_method(name)
        assert Method.from_json(json.loads(json.dumps(method.to_json()))) == method.replace(claim=None)
    backup: Any = get_method("rlhf-survey").slots()["critic"]
    assert isinstance(backup.backup, RelabelledBootstrap)
