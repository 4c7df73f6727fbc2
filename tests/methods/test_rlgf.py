"""RLGF: completions that a guide begins or finishes, what is learned of them, and what each method is without it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode
from etude.core.errors import ConfigError, InvariantError
from etude.core.learners import Learning
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.learners.value_model import ValueModel
from etude.methods.preference.rlgf.critics import RollOutCritics
from etude.methods.preference.rlgf.guided import BY_GUIDE, GuideFinishes, GuideRollIns, GuideRollOuts
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import CurrentPolicy, KeptReference, SavedModel
from etude.references.frozen import Frozen
from etude.stages.turns import AfterSteps, ByChance, ConstantChance, Interleaved
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
CRITIC = Learning(optimizer=AdamW(), epochs=1, minibatches=2)


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of another toy model."""
    folder = tmp_path_factory.mktemp("guide")
    random_policy(seed=5).save(folder)
    return str(folder)


def run(
    name: str, guide: str, steps: int = 1, **changes: Any
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of some steps but for what was slow and what the guide said, and all weights after them."""
    method = get_method(name).replace(problems=2, epochs=2, **changes)
    if isinstance(method.experience, (GuideRollIns, GuideRollOuts)):
        own = method.experience.replace(size=2, guide=SavedModel(model=guide))
        method = method.replace(experience=own)
    policy = random_policy(seed=0)
    loop = make_loop(method, Toy(), policy)
    told = [loop.step().metrics for _ in range(steps)]
    silent = ("second", "guide", "other", "chance", "prefilled")
    return [{k: v for k, v in m.items() if not any(s in k for s in silent)} for m in told], loop.policy.tensors()


def same(one: Any, two: Any) -> bool:
    return one[0] == two[0] and all(torch.equal(v, two[1][k]) for k, v in one[1].items())


def collected(part: Any, policy: Any, step: int = 0, task: Any = None) -> list[Episode]:
    task = task or Toy()
    return part.bind().collect(task.problems("train"), Context(task, policy, Stream(3).split(step), max_tokens=8))


# What they are without each other


@pytest.mark.slow
def test_without_a_guide_it_is_ppo_sample_for_sample(guide: str) -> None:
    """Roll-outs too; and with one neither is."""
    own = get_method("rlgf")
    plain = run("ppo", guide, 2, rewards=own.rewards, reference=Frozen(), experience=Groups(size=2))
    for name, part in (("rlgf", GuideRollIns), ("rlgf-aggrevated", GuideRollOuts)):
        assert same(plain, run(name, guide, 2, experience=part(mixing=0.0)))
        assert not same(plain, run(name, guide, 2, experience=part(mixing=0.5)))


@pytest.mark.slow
def test_the_methods_of_steps_are_the_other_two_at_their_ends(guide: str) -> None:
    """LOLS whose steps are all PPO++'s, D2LOLS without first steps, and D2LOLS of nothing else, with one critic."""
    critic: Any = RollOutCritics(learning=CRITIC, clip=0.2)
    rolled_in, rolled_out = (run(name, guide, critic=critic) for name in ("rlgf", "rlgf-aggrevated"))
    assert not same(rolled_in, rolled_out)

    def stages(chooser: Any) -> Any:
        return (Interleaved(turn=GuideFinishes(), chooser=chooser),)

    never, always = (ByChance(chance=ConstantChance(p=p)) for p in (0.0, 1.0))
    assert same(rolled_in, run("rlgf-lols", guide, critic=critic, stages=stages(never)))
    assert same(rolled_in, run("rlgf-d2lols", guide, critic=critic, stages=()))
    assert same(rolled_out, run("rlgf-lols", guide, critic=critic, stages=stages(always)))
    assert same(rolled_out, run("rlgf-d2lols", guide, critic=critic, stages=stages(AfterSteps(steps=9))))


# What is written by whom


def by(model: Any, episode: Episode, place: int, **how: Any) -> list[int]:
    """What a model says after so many tokens of an episode's completion, most likely tokens alone."""
    begun = [t for s in episode.segments for t in s.tokens][: -len(episode.segments[-1].tokens) or None]
    tokens = begun + episode.segments[-1].tokens[:place]
    with torch.no_grad():
        logits = model.model(torch.tensor([tokens])).logits[0, -1]
    return [int(logits.argmax())]


@pytest.mark.slow
def test_a_guide_begins_and_what_it_says_is_not_learned(guide: str) -> None:
    """Greedily each model has one word to say: every token is the most likely one of who says it."""
    policy, other = random_policy(seed=0), LanguagePolicy.load(guide, device="cpu")
    part = GuideRollIns(size=4, mixing=1.0, guide=SavedModel(model=guide), guide_top_k=1, top_k=1)
    begun = []
    for e in collected(part, policy):
        turn = e.segments[-1]
        place = turn.action_mask.index(1)
        assert turn.action_mask == [0] * place + [1] * (len(turn.tokens) - place) and len(turn.tokens) == 8
        assert all(p == 0 for p in turn.behaviour_logp[place:])  # of a truncated distribution of one token
        for t in range(8):
            assert turn.tokens[t : t + 1] == by(policy if t >= place else other, e, t)
        begun.append(place)
    assert set(begun) <= set(range(1, 8)) and len(set(begun)) > 2


@pytest.mark.slow
def test_a_guide_finishes_and_only_what_the_policy_began_is_learned(guide: str) -> None:
    """What the policy began is what it says under the same seed without a guide, with the same log-probabilities."""
    policy, other = random_policy(seed=0), LanguagePolicy.load(guide, device="cpu")
    part = GuideRollOuts(size=4, mixing=1.0, guide=SavedModel(model=guide), guide_top_k=1)
    alone = collected(Groups(size=4), policy)
    for e, own in zip(collected(part, policy), alone, strict=True):
        turn, whole = e.segments[-1], own.segments[-1]
        place = sum(turn.action_mask)
        assert turn.action_mask == [1] * place + [0] * (8 - place) and 1 <= place < 8
        assert turn.tokens[:place] == whole.tokens[:place] and e.draw == own.draw and e.info[BY_GUIDE]
        assert turn.behaviour_logp == whole.behaviour_logp[:place] + [0.0] * (8 - place)
        assert all(turn.tokens[t : t + 1] == by(other, e, t) for t in range(place, 8))
        assert turn.text == policy.decode(turn.tokens)
        assert turn.reward == Toy().score(e.problem, turn.text)  # of the finished text


@pytest.mark.slow
def test_cuts_are_uniform_and_mixing_is_a_chance(guide: str) -> None:
    """Of completions of eight tokens, one to seven are kept; a third is written by both."""
    policy = random_policy(seed=0)
    part = GuideRollIns(size=60, mixing=1 / 3, guide=CurrentPolicy())
    masks = [e.segments[-1].action_mask for step in range(5) for e in collected(part, policy, step)]
    kept = Counter(m.index(1) for m in masks)
    count = len(masks) - kept.pop(0)
    assert abs(count / len(masks) - 1 / 3) < 4 * (2 / 9 / len(masks)) ** 0.5
    assert set(kept) == set(range(1, 8))
    assert sum((n - count / 7) ** 2 / (count / 7) for n in kept.values()) < 22.5  # of chi-squared with 6, one in 1,000


@pytest.mark.slow
def test_a_guide_that_is_the_policy_changes_no_distribution_of_texts() -> None:
    """Three tokens, each of the two most likely ones: eight texts, as often as without a guide."""
    policy, task = random_policy(seed=0), Toy(prompts=("x=",), max_tokens=3)
    counts = []
    for part in (
        Groups(size=800, top_k=2, max_tokens=3),
        *(
            kind(size=800, top_k=2, max_tokens=3, mixing=1.0, guide=CurrentPolicy(), guide_top_p=1.0, guide_top_k=2)
            for kind in (GuideRollIns, GuideRollOuts)
        ),
    ):
        counts.append(Counter(tuple(e.segments[-1].tokens) for e in collected(part, policy, len(counts), task)))
    alone, *guided = counts
    assert len(alone) == 8
    for found in guided:
        assert set(found) == set(alone)
        assert sum((found[k] - alone[k]) ** 2 / (found[k] + alone[k]) for k in alone) < 24.4  # 7 degrees, 1 in 1,000


def test_after_the_cut_the_expected_gradient_is_that_of_ppo() -> None:
    """Two tokens of three, every text counted with its chance: the second token's part, whoever said the first."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=random, dtype=torch.float64).requires_grad_(True)
    reward = torch.randn(3, 3, generator=random, dtype=torch.float64)
    texts = list(itertools.product(range(3), repeat=2))
    found = []
    for learned in ((True, True), (False, True)):
        logp = logits.log_softmax(-1)
        rows = torch.stack([torch.stack([logp[0, a], logp[1 + a, b]]) for a, b in texts])
        batch: Any = Batch(rows.detach(), torch.stack([reward[a, b].expand(2) for a, b in texts]))
        losses = ClippedSurrogate()(batch, Said(rows)) * torch.tensor(learned)
        (gradient,) = torch.autograd.grad((rows.detach().sum(1).exp() * losses.sum(1)).sum(), logits)
        found.append(gradient)
    torch.testing.assert_close(found[0][1:], found[1][1:])
    assert found[1][1:].abs().max() > 0.01 and not found[1][0].any() and found[0][0].any()


class Batch:
    def __init__(self, logp: torch.Tensor, advantages: torch.Tensor) -> None:
        self.behaviour_logp, self.advantages = logp, advantages


class Said:
    def __init__(self, logp: torch.Tensor) -> None:
        self.logp = logp


@pytest.mark.slow
def test_what_a_guide_finished_is_held_against_what_the_policy_said(guide: str) -> None:
    """A token that the policy never said is found among those that it began; and the guide is never trained."""
    part = GuideRollOuts(size=2, mixing=1.0, guide=SavedModel(model=guide))
    loop = make_loop(get_method("rlgf-aggrevated").replace(problems=2, experience=part), Toy(), random_policy(seed=0))
    metrics = loop.step().metrics
    assert metrics["guide_tokens"] > 0 and metrics["gradient_norm"] > 0
    speaker: LanguagePolicy = loop.method.experience.guide.made["speaker"]
    theirs = LanguagePolicy.load(guide, device="cpu")
    assert all(torch.equal(v, theirs.tensors()[k]) for k, v in speaker.tensors().items())
    collect = GuideRollOuts.collect

    def changed(self: Any, problems: Any, context: Any) -> list[Episode]:
        episodes = collect(self, problems, context)
        episodes[0].segments[-1].tokens[0] += 1
        return episodes

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InvariantError, match="never emitted"):
        patch.setattr(GuideRollOuts, "collect", changed)
        loop.step()


# Critics


@pytest.mark.slow
def test_a_critic_for_each_who_finishes(guide: str) -> None:
    """Values and steps of the policy's rows are those of one critic alone; the other one rests until it is asked."""
    policy = random_policy(seed=0)
    loop = make_loop(get_method("ppo").replace(problems=2), Toy(), policy)
    batch = loop.gatherer.gather(loop.method, 2, loop.context(loop.method, loop.stream))
    alone, both = (part(learning=CRITIC).build(policy) for part in (ValueModel, RollOutCritics))
    for network, start in ((alone.policy, 1), (both.policy, 1), (both.guides.policy, 2)):
        torch.nn.init.normal_(network.add_value_head().weight, generator=torch.Generator().manual_seed(start))
    own, theirs = alone.values(batch), both.guides.values(batch)
    assert torch.equal(both.values(batch), own) and not torch.allclose(own, theirs)
    both.values(batch).sum().backward()
    assert all(p.grad is None for p in both.guides.parameters())
    assert any(p.grad is not None for p in both.policy.parameters())
    for i in (1, 2, 5):
        batch.episodes[i].info[BY_GUIDE] = True
    mixed = both.values(batch)
    guided = torch.tensor([BY_GUIDE in e.info for e in batch.episodes])[:, None]
    torch.testing.assert_close(mixed, torch.where(guided, theirs, own))
    kept = {k: v.clone() for k, v in both.tensors().items()}
    again = RollOutCritics(learning=CRITIC).build(policy)
    again.load_tensors(kept)
    torch.testing.assert_close(again.values(batch), mixed)
    for e in batch.episodes:
        e.info[BY_GUIDE] = True
    assert torch.equal(both.values(batch), theirs)


# What is refused


@pytest.mark.slow
def test_what_cannot_work_is_said() -> None:
    method = get_method("rlgf")
    with pytest.raises(ConfigError, match="names no model"):
        method.check()
    own: Any = method.experience
    with pytest.raises(ConfigError, match="only says how likely texts are"):
        method.replace(experience=own.replace(guide=KeptReference())).check()
    assert "cuts a completion in two" in str(own.lacks(Toy(max_turns=2))) and own.lacks(Toy()) is None
    with pytest.raises(ConfigError, match="lets the guide of roll-ins roll out"):
        get_method("rlgf-lols").replace(experience=Groups()).check()
