"""Every registered method: it trains, it can be written down and read back, it resumes exactly, it names its parent."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.advantages.utterances import UtteranceAdvantages
from etude.core.control import ControlTask
from etude.core.edit import assignments
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.method import Method
from etude.core.population import Member
from etude.core.recipe import Recipe
from etude.core.registry import (
    compositions,
    declared,
    docstring,
    files,
    get_method,
    module_at,
    parent_of,
)
from etude.core.slots import Context
from etude.core.task import LanguageTask, Task
from etude.core.worlds import World
from etude.experience.forks import Forks
from etude.experience.rollout import fresh, rollout
from etude.experience.turn_replay import StoredStates
from etude.experience.vector import Segments
from etude.experiments import experiment_of
from etude.learners.value_model import ValueModel
from etude.loops.language import LanguageLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.methods.agents.spa_rl import ExploredTurns
from etude.methods.agents.ssp import SelfPlay
from etude.methods.agents.swe_rl import PatchSimilarity
from etude.methods.agents.toolrl import CallFormat
from etude.methods.preference.cosmos_mcts import PairsBySearch
from etude.methods.preference.pairwise_rl import AgainstAnchor
from etude.methods.preference.reward_anything import ListwiseReward
from etude.methods.preference.rlgf.guided import GuideRollIns, GuideRollOuts
from etude.methods.preference.rto import DPOTokenReward
from etude.methods.preference.text2grad.parts import TaskCritic, WordRewards
from etude.methods.rlvr.one_shot_rlvr import NamedProblems, Replicated
from etude.methods.rlvr.rlad import HintedGroups, OnlyWithHint, SolvedWith
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import SavedModel
from etude.references.soup import Soup
from etude.rewards.judged import FinalAnswer, JudgeReward, Predicted
from etude.rewards.model import SavedScorer
from etude.rewards.pair_judges import SimulatedJudge
from etude.rewards.patterns import RepetitionPenalty
from etude.runs.beds import Bed, load_bed
from etude.runs.training import compose_method
from etude.runs.tuning import combinations
from etude.tasks import resolve_task

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = {
    m.id if i == 0 else f"{m.id} in {min(m.worlds)}": m
    for name in sorted(files("methods"))
    for i, m in enumerate(compositions(name))
}
"""Every composition: an id that has several is there once for each."""
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
TRAINED = {k: m for k, m in METHODS.items() if not isinstance(m, (ReplayMethod, Recipe))}
"""Those that are trained here; what learns from a replay is in `loops/test_off_policy.py`, to the same end, and
recipes, which train others, are in `runs/test_recipe_runs.py`."""
STEPS = 2
MOST = 12
"""Steps after which a method must have had something to learn from, whatever the seed."""
TASKS = {
    "a-lol-offline": str(Path(__file__).with_name("appraised.jsonl")),
    "archer": "attr-20q", "copg": "preferences", "directional-stimulus-prompting": "compose",
    "empg": "attr-20q", "goal-conditioned-rm": "preferences", "ipo": "preferences", "p2r": "compose",
    "pairwise-ppo": "preferences", "planning-q-learning": "paths", "refuel": "attr-20q", "rlprompt": "compose",
    "selective-token-generation": "compose", "spa-estimator": "attr-20q", "ssp": "compose", "ssrl": "compose",
    "supo": "attr-20q", "tl-training-ppo": "tool-dialogue",
    "tulu-3-dpo": "preferences",
}  # fmt: skip
"""Of methods without a claim of their own, whose claim is about tables, or whose bed has to be taught first."""
CONTROLLED = {"ppo-continuous": "pendulum", "words-as-beacons": "minigrid-subgoals"}
"""Of methods that a cart and its pole do not suit."""
PROBLEMS = {
    "ghpo": 4, "memory-r-plus": 4, "refuel": 4, "remax": 3, "rlad-writer-rft": 4, "self-prm": 4,
    "sparkle": 8, "spo": 6, "spo-tree": 6, "t-ppo": 4,
}  # fmt: skip
"""Of methods that need more than two for a group whose completions differ."""
TURNS = 4
"""Of games whose end the shipped model, which knows none, does not reach: later turns are as these."""
WHOLE = {"spa-rl", "supo"}
"""Methods whose games have no end before, or that learn from none without one."""
TIMINGS = ("seconds/", "tokens_per_second", "steps_per_second")


@dataclass
class Trained:
    """A short run: metrics of its steps, weights before and after, and the checkpoint written after the first step."""

    method: Method
    metrics: list[dict[str, float]]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]
    folder: Path


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model that has taken two steps, for methods that are rewarded by one."""
    loop = loop_for(get_method("reward-model").replace(problems=4))
    loop.step(), loop.step()
    folder = tmp_path_factory.mktemp("scorer")
    loop.policy.save(folder)
    return str(folder)


def task_of(method: Method) -> Task:
    """The one that its claim is about, unless that is enumerable; otherwise one that it can be trained on."""
    if World.CONTROL in method.worlds:
        return resolve_task(CONTROLLED.get(method.id, "cartpole"))
    about = resolve_task(TASKS.get(method.id) or claimed(method) or "compose")
    if about.world is World.ENUMERABLE:
        return resolve_task("compose")
    turns: Any = about.fields().get("max_turns", 0)
    return about.replace(max_turns=TURNS) if turns > TURNS and method.id not in WHOLE else about


def claimed(method: Method) -> str:
    """The task of its claim."""
    claim = method.claim
    return "" if claim is None else load_bed(claim.bed).task if claim.bed else claim.task


def loop_for(method: Method, task: Task | None = None) -> LanguageLoop | OnPolicyLoop:
    task = task or task_of(method)
    if isinstance(task, ControlTask):
        return OnPolicyLoop(method, task, [Member(3), Member(4)], STEPS)
    assert isinstance(task, LanguageTask)
    policy = copy.deepcopy(tiny())
    return LanguageLoop(method, task, policy, seed=6, steps=STEPS)  # with others some learn nothing yet


@cache
def tiny() -> LanguagePolicy:
    """The shipped model, as it was loaded once: every loop has a copy."""
    return LanguagePolicy.load("tiny", device="cpu")


def weights(loop: LanguageLoop | OnPolicyLoop) -> dict[str, torch.Tensor]:
    found = loop.policy.tensors() if isinstance(loop, LanguageLoop) else loop.policy_tensors()
    return {k: v.clone() for k, v in found.items()}


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if not k.startswith(TIMINGS)}


def learned(metrics: list[dict[str, float]]) -> bool:
    """Whether a step after the checkpoint had a gradient, so that a resumed run has something to repeat."""
    return any(v > 0 for m in metrics[1:] for k, v in m.items() if k.endswith("gradient_norm"))


def complete(method: Method, scorer: str) -> Method:
    """The method with what a user has to name or have: a model that rewards, problems that were chosen, answers."""
    if isinstance(method, (ReplayMethod, Recipe)):
        return method
    if isinstance(method, TokenMethod) and isinstance(method.curriculum, Replicated):
        few = NamedProblems(ids=("compose/train/1", "compose/train/2"))
        method = method.replace(curriculum=method.curriculum.replace(chosen=few))
    rewards = tuple(p.replace(model=scorer) if isinstance(p, SavedScorer) else p for p in method.rewards)
    rewards = tuple(p.replace(judge=SimulatedJudge()) if isinstance(p, AgainstAnchor) else p for p in rewards)
    rewards = tuple(answered(p) if isinstance(p, JudgeReward) else p for p in rewards)
    rewards = tuple(p.replace(solver=SavedModel(model=scorer)) if isinstance(p, SolvedWith) else p for p in rewards)
    if any(isinstance(p, (CallFormat, ListwiseReward, OnlyWithHint, PatchSimilarity, SolvedWith)) for p in rewards):
        # the shipped model never writes one, and is not helped by hints
        rewards += (RepetitionPenalty(size=1),)
    rewards = tuple(p.replace(whose=SavedModel(model=scorer)) if isinstance(p, DPOTokenReward) else p for p in rewards)
    rewards = tuple(p.replace(critic=TaskCritic()) if isinstance(p, WordRewards) else p for p in rewards)
    if isinstance(method, TokenMethod) and isinstance(method.reference, Soup):
        method = method.replace(reference=method.reference.replace(models=(scorer,)))
    if isinstance(method, TokenMethod) and isinstance(method.experience, HintedGroups):
        method = method.replace(experience=method.experience.replace(writer=SavedModel(model=scorer)))
    if isinstance(method, TokenMethod) and isinstance(method.experience, ExploredTurns):
        method = method.replace(experience=method.experience.replace(whose=SavedModel(model=scorer)))
    if isinstance(method, TokenMethod) and isinstance(method.experience, (GuideRollIns, GuideRollOuts)):
        method = method.replace(experience=method.experience.replace(guide=SavedModel(model=scorer), size=4), epochs=1)
    if isinstance(method, TokenMethod) and isinstance(method.experience, SelfPlay):  # the shipped model poses none
        method = method.replace(experience=AnyQuestion(size=4))
    return method.replace(rewards=rewards)


class AnyQuestion(SelfPlay):
    """The problems themselves are asked, whatever a proposer says to them."""

    def _proposed(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        starts = fresh(problems, 1, context.stream.split("propose"))
        return rollout([s._replace(player="proposer") for s in starts], context, self.sampling(context))

    def _posed(self, proposed: Sequence[Episode], context: Context) -> dict[int, Problem]:
        return dict(enumerate(e.problem for e in proposed))


def answered(part: JudgeReward) -> JudgeReward:
    """One that judges answers: what is predicted of texts the shipped model never says between marks."""
    return part.replace(sees=FinalAnswer()) if isinstance(part.sees, Predicted) else part


def small(method: Method) -> Method:
    """The method with less to do in a step: nothing here depends on how much there is."""
    if isinstance(method, TokenMethod):
        if isinstance(method.advantages, UtteranceAdvantages):  # there is no time to wait for the critic
            method = method.replace(advantages=method.advantages.replace(warmup=0))
        if isinstance(method.experience, PairsBySearch):  # the shipped model's stories are worth about the same
            method = method.replace(experience=method.experience.replace(margin=0.0))
        if isinstance(method.critic, ValueModel) and method.critic.lead:  # the policy waits for one step, not for five
            method = method.replace(critic=method.critic.replace(lead=1))
        if isinstance(method.experience, Forks):
            method = method.replace(experience=method.experience.replace(rollouts=3))
        if isinstance(method.experience, StoredStates):
            method = method.replace(experience=method.experience.replace(states=16))
        return method.replace(problems=PROBLEMS.get(method.id, 2), epochs=min(2, method.epochs))
    assert isinstance(method, RolloutMethod) and method.experience is not None
    experience: Any = method.experience.replace(environments=4, steps=32)
    if isinstance(experience, Segments):
        experience = experience.replace(updates=5)
    fewer = {"minibatches": min(4, method.minibatches), "epochs": min(2, method.epochs)}
    return method.replace(experience=experience, **fewer)


@pytest.fixture(scope="module", params=TRAINED.values(), ids=list(TRAINED))
def trained(request: pytest.FixtureRequest, scorer: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    method = small(complete(request.param, scorer))
    loop, folder = loop_for(method), tmp_path_factory.mktemp("run")
    before = weights(loop)
    metrics = []
    while len(metrics) < STEPS or (len(metrics) < MOST and not learned(metrics)):
        metrics.append(numbers(loop.step().metrics))
        if len(metrics) == 1:
            loop.save(folder)
    return Trained(method, metrics, before, weights(loop), folder)


@pytest.mark.slow
def test_it_trains(trained: Trained) -> None:
    for metrics in trained.metrics:
        assert all(math.isfinite(v) for v in metrics.values()), metrics
    assert learned(trained.metrics), f"In {MOST} steps nothing had a gradient."
    model = [k for k in trained.before if k.startswith(("model.", "policy."))]
    assert any(not torch.equal(trained.before[k], trained.after[k]) for k in model)
    frozen = [k for k in trained.before if k.startswith("reference.")]
    reference = getattr(trained.method, "reference", None)  # control has none
    if reference is not None and reference.name == "frozen":
        assert frozen
        moves = any("reference" in stage.resets() for stage in trained.method.slots()["stages"])
        assert moves or all(torch.equal(trained.before[k], trained.after[k]) for k in frozen)


@pytest.mark.slow
def test_it_resumes_to_the_same_numbers(trained: Trained) -> None:
    loop = loop_for(trained.method)
    loop.load(trained.folder)
    assert loop.finished == 1
    assert [numbers(loop.step().metrics) for _ in range(len(trained.metrics) - 1)] == trained.metrics[1:]
    again = weights(loop)
    assert set(again) == set(trained.after)
    assert all(torch.equal(again[k], v) for k, v in trained.after.items())


@each_method
def test_it_can_be_written_down_and_read_back(method: Method) -> None:
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert replace(again, claim=method.claim) == method


@each_method
def test_it_shows_every_part(method: Method) -> None:
    text = method.describe()
    assert text.startswith(method.id)
    assert all(type(part).__name__ in text for part in method.parts().values())
    assert len(docstring("methods", method.id).splitlines()) > 3
    assert method.title
    assert method.paper


@each_method
def test_it_differs_from_a_parent_of_its_kind(method: Method) -> None:
    seen = {method.id}
    while (parent := parent_of(method)) is not None:
        assert type(parent) is type(method)
        assert method.diff(parent)
        assert parent.id not in seen
        seen.add(parent.id)
        method = parent


@each_method
def test_its_parts_agree(method: Method, scorer: str) -> None:
    complete(method, scorer).check()


MEMBERS = {"bear": "discrete-bcq", "kl-control": "discrete-bcq", "spibb": "discrete-bcq"}
"""What a study holds against others, and the method whose claim is about that study."""


@pytest.mark.parametrize("name", sorted({path: name for name, path in reversed(files("methods").items())}.values()))
def test_its_claim_can_be_run(name: str) -> None:
    """The first method of every file has one, or is a member of a study that has."""
    claim = get_method(MEMBERS.get(name, name)).claim
    assert claim is not None
    assert claim.statement.endswith(".")
    if not claim.bed:
        assert callable(experiment_of(MEMBERS.get(name, name)))
        assert resolve_task(claim.task)
        return
    bed = load_bed(claim.bed)
    its = bed.baseline_set if claim.baseline == bed.baseline else {}
    arms = (
        (name, claim.changes, claim.sweep),
        (claim.baseline, {**its, **claim.baseline_changes}, claim.baseline_sweep or claim.sweep),
    )
    for arm, changes, sweep in arms:
        compose_method(arm, assignments({**own(bed), **changes}), world=bed.goal.world)
        for setting in combinations(bed.sweep if sweep is None else sweep).values():
            compose_method(arm, assignments({**own(bed), **changes, **setting}), world=bed.goal.world)


def own(bed: Bed) -> dict[str, object]:
    """What a bed sets on methods."""
    return {k: v for k, v in bed.set.items() if not k.startswith("task.")}


def test_ids_are_found_in_the_text_as_the_import_has_them() -> None:
    """`etude methods` reads ids without importing anything."""
    for path in sorted(set(files("methods").values())):
        module = module_at(path)
        parents = {id(m) for m in METHODS.values() if files("methods")[m.id] != path}
        own = [k for k, v in vars(module).items() if isinstance(v, Method) and id(v) not in parents]
        written = [variable for found in declared(path).values() for variable in found]
        assert [k for k in own if vars(module)[k].id in declared(path) and k in written] == written
        assert {vars(module)[k].id for k in own} == set(declared(path))


def test_parts_that_contradict_each_other_are_refused() -> None:
    grpo = get_method("grpo")
    assert grpo.experience is not None
    with pytest.raises(ConfigError, match="would be biased"):
        grpo.replace(experience=grpo.experience.replace(top_p=0.9)).check()
