"""One cheap learning check for every registered composition: a flipped sign fails it, and so does credit set to zero.

On `enumerable` the exact expected reward rises, in control the return of a task whose every step has a right answer,
elsewhere what the method is about: the reward of a toy policy, the likelihood of what was shown, the margin of what was
preferred. "Rises" is a mean over seeds three standard errors above zero, or a gain of each seed where seeds are few.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.kinds import RolloutMethod, TokenMethod
from etude.core.method import Method
from etude.core.population import Member
from etude.core.registry import compositions, files, get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Demonstrations, Pairs
from etude.experience.exploration import DrawnEpsilon, EpsilonGreedy
from etude.experience.groups import Groups
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.experience.scored import ScoredAnswers
from etude.experience.vector import Rollouts
from etude.learners.heads import Atoms
from etude.loops.enumerable import EnumerableLoop
from etude.loops.language import LanguageLoop
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.methods.rlvr.derl.formulas import FormulaPolicy
from etude.policies.language import LanguagePolicy
from etude.rewards.model import values
from etude.tasks.control._batched import ArrayEnvironment
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import Toy, random_policy
from replay_toys import REPLAY, acts_in_boxes, narrow, sooner
from replay_toys import small as small_replay

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SEEDS = 6
SURE = 6.0
"""Standard errors at which a look before the last one is enough."""
EARLY = range(3, 8)
"""Steps after which there is one, where steps cost more than a look."""
ENOUGH = 0.3
"""What a toy policy has gained by then if it need not go on: three times what is asked for in the end."""


def rises(gains: Tensor, errors: float = 3) -> bool:
    """Whether the mean over members is so many standard errors above zero."""
    return bool(gains.mean() > errors * gains.std() / len(gains) ** 0.5)


def all_of(kind: str) -> list[str]:
    return [n for n in sorted(files("methods")) if any(kind in m.worlds for m in compositions(n))]


# Enumerable: the exact expected reward

TABLE = Enumerable(prompts=3, vocabulary=3, length=2)


def fits(method: Method) -> bool:
    try:
        check(method, TABLE)
    except ConfigError:
        return False
    return True


NAMED = {"one-shot-rlvr": {"curriculum.chosen": "named-problems", "curriculum.chosen.ids": "enumerable/0"}}
"""What has to be named for a method."""


def whole(name: str) -> Method:
    return set_values(get_method(name, "enumerable"), NAMED.get(name, {}))


TABULAR = [name for name in all_of("enumerable") if fits(whole(name))]


LONGER = {"derl": (12, 15)}
"""Seeds and steps of what tries several rewards before it keeps to a good one."""


def gains_of_tables(method: Method) -> Tensor:
    """[P] what each member's expected reward gained, in all steps or as soon as it is `SURE`."""
    seeds, steps = LONGER.get(method.id, (SEEDS, 8))
    faster: Any = method
    faster = faster.replace(optimizer=faster.optimizer.replace(lr=0.1))
    loop = EnumerableLoop(faster, TABLE, seeds=range(seeds), steps=steps)
    before = loop.exact()["reward"]
    for step in range(1, steps + 1):
        loop.step()
        if step in EARLY and rises(loop.exact()["reward"] - before, SURE):
            break
    return loop.exact()["reward"] - before


@pytest.fixture
def one_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member of `derl` writes formulas as the first one did at its start, which takes longer than all else."""
    begin, started = FormulaPolicy.begin, dict[str, Any]()

    def again(self: FormulaPolicy, stream: Stream) -> None:
        if not started and not self.state:
            begin(self, stream)
            started.update(copy.deepcopy(self.state))
        elif not self.state:
            self.state.update(copy.deepcopy(started))

    monkeypatch.setattr(FormulaPolicy, "begin", again)


@pytest.mark.parametrize("name", TABULAR)
def test_expected_reward_rises(name: str, one_cold_start: None) -> None:
    gains = gains_of_tables(whole(name))
    assert rises(gains)


# Control: say where the dot is


class AimArrays(ArrayEnvironment):
    """A number x in [-1, 1] is shown: say its sign, or the number 0.5 x. Every step stands for itself."""

    draws, limit = 1, 8
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, seeds: Sequence[int], count: int, purpose: str, continuous: bool) -> None:
        super().__init__(seeds, count, purpose)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.continuous = continuous

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return 2 * uniform - 1

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, a = states[..., 0], actions[..., 0]
        reward = -((a - 0.5 * x - 0.5) ** 2) if self.continuous else ((x > 0) == (a > 0.5)).astype(float)
        return 2 * ((states + 1.7) / 2 % 1) - 1, reward, np.zeros(reward.shape, bool)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class Aim(ControlTask):
    id: ClassVar[str] = "aim"
    continuous: bool = False

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return AimArrays(seeds, count, purpose, self.continuous)


class Pointing(gym.Env[Any, Any]):
    """The sub-goal is a goal tile or there is none: say which. It pays nothing, and tells of what was right."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({
        "image": spaces.Box(0, 10, (7, 7, 3), np.uint8),
        "subgoal": spaces.Box(-5.0, 10.0, (5,), np.float32),
    })  # fmt: skip

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return self._shown(), {}

    def _shown(self) -> dict[str, Any]:
        self.tile = int(self.np_random.integers(2))
        said = np.array([1, 1, 8, 1, 0] if self.tile else [0, 0, -1, -1, -1], np.float32)
        return {"image": np.ones((7, 7, 3), np.uint8), "subgoal": said}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right, self.taken = float(action == self.tile), self.taken + 1
        return self._shown(), 0.0, False, self.taken == 8, {"subgoal_progress": right}


class Pointed(ControlTask):
    id: ClassVar[str] = "pointed"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return GymnasiumVector(Pointing, seeds, count, purpose, name="pointed")


def gains_of_control(method: Method, steps: int = 6) -> Tensor:
    """[P] what the reward of a step gained from the first rollout to the last, or as soon as it is `SURE`."""
    smaller: Any = method.replace(experience=Rollouts(environments=8, steps=32))
    smaller = smaller.replace(optimizer=smaller.optimizer.replace(lr=3e-3)) if smaller.optimizer.lr else smaller
    smaller = smaller.replace(minibatches=min(2, smaller.minibatches))
    if method.id == "rlhf-survey-ppo":  # of segments that lie in an episode, told apart before the policy moves
        own = {"length": 4, "learning.epochs": 40, "learning.optimizer.lr": 1e-2}
        smaller = set_values(smaller, {f"learners.rollout-preferences.{k}": v for k, v in own.items()})
    task = Pointed() if method.id == "words-as-beacons" else Aim(continuous=method.id == "ppo-continuous")
    loop = OnPolicyLoop(smaller, task, [Member(s) for s in range(SEEDS)], steps)
    returns = []
    for _ in range(steps):
        loop.recent = [type(d)(maxlen=d.maxlen) for d in loop.recent]
        report = loop.step().members
        returns.append(torch.tensor(report["progress" if isinstance(task, Pointed) else "return"]))
        if rises(returns[-1] - returns[0], SURE):
            break
    return returns[-1] - returns[0]


CONTROL = [n for n in all_of("control") if isinstance(get_method(n, "control"), RolloutMethod)]


@pytest.mark.parametrize("name", CONTROL)
def test_the_return_rises(name: str) -> None:
    gains = gains_of_control(get_method(name, "control"))
    assert rises(gains)


def gains_from_a_replay(method: Method) -> Tensor:
    """[P] what the reward of a step gained from the random ones at the start to the last, of 544 or as soon as it is
    `SURE`: this often by chance is rarer than three standard errors once."""
    smaller: Any = small_replay(method, capacity=2_000, random=64, warmup=64, environments=4, every=4, updates=1.0)
    smaller = set_values(smaller, {"sampling.horizon.gamma": 0.0})
    if not smaller.sampling.newest:  # what learns from each step once has its own rate, and no batch
        smaller = set_values(smaller, {"optimizer.lr": 1e-2, "sampling.batch": 32})
    if isinstance(smaller.exploration, (EpsilonGreedy, DrawnEpsilon)):
        smaller = set_values(smaller, {"exploration.over": 64})
    if isinstance(smaller.exploration, DrawnEpsilon):  # some of whose workers would go on trying
        calm = {"exploration.ends": (0.05,), "exploration.shares": (1.0,), "experience.environments": 4}
        smaller = set_values(smaller, {**calm, "optimizer.lr": 1e-2})
    if method.id == "sac-discrete":  # which would hold on to chance
        smaller = set_values(smaller, {"learners.temperature.entropy.share": 0.3})
    if method.id == "redq":
        smaller = set_values(smaller, {"policy.learning.every": 2, "learners.temperature.learning.every": 2})
    if method.id == "mrq":  # of features that are normalised five say too little
        wider = {slot: narrow(getattr(smaller, slot), 16, 16) for slot in ("policy", "critic")}
        learners = tuple(narrow(part, 16, 16) for part in smaller.learners)
        smaller = sooner(smaller.replace(**wider, learners=learners), every=10, epochs=5)
        smaller = set_values(smaller, {"learners.encoder.actions": 16, "learners.encoder.joined": 16})
    if "share" in smaller.critic.backup.fields():  # where nothing is random
        smaller = set_values(smaller, {"critic.backup.share": 1.0})
    if isinstance(smaller.critic.head, Atoms):
        smaller = set_values(smaller, {"critic.head.low": -1.0, "critic.head.high": 2.0})
    task = Aim(continuous=acts_in_boxes(method))
    loop = OffPolicyLoop(smaller, task, [Member(s) for s in range(SEEDS)], 17, block=32)
    told, step = list[Tensor](), loop.environment.step

    def noted(actions: np.ndarray) -> Step:
        found = step(actions)
        told.append(torch.from_numpy(found.rewards))
        return found

    loop.collector.environment.step = noted  # type: ignore[method-assign]
    for look in range(1, 18):
        loop.step()
        rewards = torch.cat(told, 1)
        gains = rewards[:, -128:].mean(1) - rewards[:, :64].mean(1)
        if look * 32 >= 64 + 128 and rises(gains, SURE):
            break
    return gains


@pytest.mark.parametrize("name", REPLAY)
def test_the_return_rises_from_a_replay(name: str) -> None:
    assert rises(gains_from_a_replay(REPLAY[name]))


# Language: a toy policy of random weights


class Letters(Toy):
    """Begin with a lower-case letter, as a random policy sometimes does, and as one of two modes does."""

    modes: ClassVar[tuple[str, str]] = ("a", "A")
    scoring: Callable[[Problem, str], float] = field(
        default=lambda _, completion: float(completion[:1].islower()), kw_only=True
    )

    def problems(self, split: str) -> list[Problem]:
        shown: dict[str, Any] = {"chosen": "abc", "rejected": "XYZ", "demonstration": "abc"}
        shown |= {"responses": ["abc", "aYZ", "XYZ"], "scores": [1.0, 0.5, 0.0], "value": 0.25}
        return [Problem(f"{split}-{i}", prompt, info=shown) for i, prompt in enumerate(self.prompts)]


LETTERS = Letters()


def solved(policy: LanguagePolicy, task: Any = LETTERS, count: int = 128) -> float:
    """Mean reward of samples from the policy."""
    context = Context(task, policy, Stream(7), max_tokens=task.max_tokens)
    problems = task.problems("train")
    return float(np.mean([e.reward for e in Groups(size=count // len(problems)).collect(problems, context)]))


def shown(policy: LanguagePolicy, task: Any = LETTERS, part: Any = None) -> Tensor:
    """[B] log-probability of each written answer, pairs of chosen and rejected ones unless `part` says otherwise."""
    episodes = (part or Pairs()).collect(task.problems("train")[:8], Context(task, policy, Stream(7)))
    batch = to_batch(episodes, 0, 1.0, policy.device)
    return policy.evaluate(batch, set()).logp.detach().sum(1)


def likelihood(policy: LanguagePolicy, task: Any = LETTERS) -> float:
    return float(shown(policy, task, Demonstrations()).mean())


def margin(policy: LanguagePolicy) -> float:
    """How much likelier the chosen answers are than the rejected ones."""
    chosen, rejected = shown(policy).view(-1, 2).T
    return float((chosen - rejected).mean())


def scored_margin(policy: LanguagePolicy) -> float:
    """The same of the best of scored answers and the worst."""
    best, _, worst = shown(policy, LETTERS, ScoredAnswers()).view(-1, 3).T
    return float((best - worst).mean())


def preference(policy: LanguagePolicy) -> float:
    """The margin of a reward model's values."""
    pairs = Pairs().collect(LETTERS.problems("train"), Context(LETTERS, policy, Stream(7)))
    chosen, rejected = torch.tensor(values(policy, pairs)).view(-1, 2).T
    return float((chosen - rejected).mean())


def gain_of(method: Method, measure: Callable[[LanguagePolicy], float], seed: int = 0, steps: int = 8) -> float:
    """What a toy policy gained in some steps, or by the time that it is `ENOUGH`."""
    policy: Any = random_policy(seed=seed)
    policy.add_value_head()
    faster: Any = method.replace(problems=3)
    loop = LanguageLoop(
        faster.replace(optimizer=faster.optimizer.replace(lr=2e-2)), LETTERS, policy, seed=seed, steps=steps
    )
    before = measure(policy)
    for step in range(1, steps + 1):
        loop.step()
        if step in EARLY and (gain := measure(policy) - before) > ENOUGH:
            return gain
    return measure(policy) - before


MEASURES: dict[str, Callable[[LanguagePolicy], float]] = {
    "ppo": solved,
    "asyncflow": solved,
    "roll": solved,
    "poly-ppo": solved,
    "empg": solved,
    "ssrl": solved,
    "supo": solved,
    "t-ppo": solved,
    "kimi-k1-5": solved,
    "hpt": solved,
    "deepsearch": solved,
    "ghpo": solved,
    "o1-roadmap": solved,
    "sparkle": solved,
    "spo": solved,
    "spo-tree": solved,
    "hgpo": solved,
    "critique-grpo": solved,
    "memory-r-plus": solved,
    "r3l": solved,
    "relift": solved,
    "sasr": solved,
    "sft": likelihood,
    "swe-rebench": likelihood,
    "alpine": likelihood,
    "dpo": margin,
    "ipo": margin,
    "simpo": margin,
    "copg": scored_margin,
    "a-lol-offline": scored_margin,
    "orpo": margin,
    "tulu-3-dpo": margin,
    "tulu-3-rlvr": solved,
    "kto": margin,
    "cgpo": solved,
    "cgpo-best": solved,
    "cgpo-pairs": solved,
    "perfrl": solved,
    "pf-ppo": solved,
    "ppo-max": solved,
    "directional-stimulus-prompting": solved,
    "remax": solved,
    "rlgf": solved,
    "selective-token-generation": solved,
    "rlgf-aggrevated": solved,
    "reward-model": preference,
    "goal-conditioned-rm": preference,
    "irl-llm-survey": preference,
    "rl-perspective-llm": solved,
}


MORE_SEEDS = {"poly-ppo": 5}
"""How many, where two may both be low by chance: one run of it gains from 0.02 to 0.45. Else two."""


SCALED = ("task-reward", "normalized-scores", "clipped-scores", "kl-penalty")
SHALLOW: dict[str, dict[str, Any]] = {
    "cgpo": {
        "rewards": ("task-reward", "baseline-calibrated-scores", "constrained-returns"), "experience.size": 8,
        "rewards.2.tasks.0.kl_max": 100.0,
    },
    "cgpo-best": {
        "rewards": ("task-reward", "baseline-calibrated-scores", "constrained-best"),
        "rewards.2.tasks.0.kl_max": 100.0,
    },
    "cgpo-pairs": {"rewards": ("task-reward", "constrained-order")},
    **{
        name: {"experience.guide": "current-policy", "experience.mixing": 0.5, "epochs": 2}
        for name in ("rlgf", "rlgf-aggrevated")
    },
    "perfrl": {"stages": ()},  # which begin by imitation
    "pf-ppo": {"rewards": ("task-reward", "normalized-scores", "kl-penalty")},
    "tulu-3-rlvr": {"rewards": ("task-reward", "kl-penalty"), "epochs": 1, "critic.learning.epochs": 2},
    "remax": {"experience.size": 16},
    "ppo-max": {"rewards": SCALED, "critic.lead": 1, "minibatches": 2, "critic.learning.minibatches": 1},
    "deepsearch": {"experience.depth": 2, "experience.width": 4}, "sparkle": {"experience.size": 8},
    "selective-token-generation": {"experience.size": 8},
}  # fmt: skip
"""What of methods is made smaller: as they are, steps here are of one token, or groups of 32, or a reward model's."""


@pytest.mark.parametrize("name", MEASURES)
def test_a_toy_policy_learns(name: str) -> None:
    method = set_values(get_method(name), SHALLOW.get(name, {}))
    gains, measure = list[float](), MEASURES[name]
    for seed in range(MORE_SEEDS.get(name, 2)):
        gains.append(gain_of(method, measure, seed))
        if measure is solved and np.mean(gains) > ENOUGH:  # the others have no scale of their own
            break
    assert np.mean(gains) > 0.1, gains


ELSEWHERE = {
    "archer", "ilql", "lmrl-gym", "mc-returns",
    "cosmos-mcts", "open-rs", "pairwise-ppo", "planning-pg-vs-q", "planning-q-learning", "ppo-rlhf",
    "qwenlong-l1-5-phase", "qwenlong-l1-phase", "refuel", "reward-anything", "rl-llm-technical-survey", "rlad-solver",
    "rlad-writer", "rlad-writer-rft", "rlanything",
    "rlgf-d2lols", "rlgf-lols", "rlmt", "rlmt-dpo", "rlmt-ppo", "rlp", "rlprompt", "rlpt-text", "rto", "salsa",
    "spa-estimator", "spa-rl", "ssp", "swe-rl", "text2grad", "tl-training", "tl-training-ppo", "toolrl",
}  # fmt: skip
"""They need a curriculum, a model or a critic of rewards, a graph, hints, thoughts, answers, calls, patches, turns
or verdicts, or are made of others that are here: `test_learning.py` and their own tests."""


def test_every_composition_has_a_check() -> None:
    covered = {*TABULAR, *MEASURES, *ELSEWHERE}
    assert covered == {n for n in files("methods") if any(isinstance(m, TokenMethod) for m in compositions(n))}


# The checks themselves


def flipped(method: Method) -> Method:
    """The method with the sign of its loss turned round."""
    cls: Any = type(method.slots()["objective"])

    def backwards(self: Any, batch: Any, policy: Any) -> Tensor:
        found: Tensor = -cls.__call__(self, batch, policy)
        return found

    other = type(cls)("Flipped", (cls,), {"__call__": backwards, "__module__": __name__, "worlds": cls.worlds})
    return method.replace(objective=other(**method.slots()["objective"].fields()))


def uncredited(method: Method) -> Method:
    """The method with every advantage 0."""
    part: Any = method.slots()["advantages"]
    cls = type(part)
    verb = "of_transitions" if isinstance(method, RolloutMethod) else "__call__"

    def nothing(self: Any, batch: Any) -> Tensor:
        return torch.zeros_like(getattr(cls, verb)(self, batch))

    other = type(cls)("Uncredited", (cls,), {verb: nothing, "__module__": __name__, "worlds": cls.worlds})
    return method.replace(advantages=other(**part.fields()))


@pytest.mark.parametrize("broken", [flipped, uncredited])
@pytest.mark.parametrize("name", ["grpo", "maxrl", "reinforce"])
def test_broken_methods_fail_on_tables(name: str, broken: Callable[[Method], Method]) -> None:
    assert not rises(gains_of_tables(broken(get_method(name, "enumerable"))))


@pytest.mark.parametrize("broken", [flipped, uncredited])
@pytest.mark.parametrize("name", ["reinforce", "a2c"])
def test_broken_methods_fail_in_control(name: str, broken: Callable[[Method], Method]) -> None:
    assert not rises(gains_of_control(broken(get_method(name, "control"))))


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_flipped_sign_fails_on_written_answers(name: str) -> None:
    assert gain_of(flipped(get_method(name)), MEASURES[name]) < 0
