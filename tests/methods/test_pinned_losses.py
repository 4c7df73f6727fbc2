"""The loss of every method, end to end, against its paper's equation written out a second time.

The batch of a `World` goes through a shipped composition's own rewards, filters, advantages, objective, token weights,
aggregation, regularizers and critic, as in its loop. Loss and gradient must be those of `pinned_formulas` and
`pinned_control`, and hyper-parameters those of `pinned_settings`, neither of which knows the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pinned_control import CONTROL, Steps
from pinned_formulas import BETWEEN, FORMULAS, shown_first
from pinned_settings import SETTINGS
from pinned_world import COMMA, PROMPT, RATE, VOCABULARY, World, plain
from torch import Tensor

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.core.draws import children, uniforms
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.learners import Joint
from etude.core.method import Method
from etude.core.part import Part
from etude.core.recipe import Recipe
from etude.core.registry import compositions, files
from etude.core.rows import _step
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.transitions import ActionLogProbs, Transitions
from etude.loops.control_update import Minibatch
from etude.loops.credit import credited, scored, weighed
from etude.loops.on_policy import credited as credited_steps
from etude.loops.update import Updater
from etude.methods.preference.text2grad.parts import WordRewards
from etude.methods.rlvr.memory_r_plus.memories import Memory, embedded
from etude.methods.rlvr.poly_ppo import chosen_sets
from etude.methods.rlvr.rlad import SolvedWith
from etude.methods.rlvr.rlp import InformationGain
from etude.optimizers.adam import AdamW
from etude.policies.fingerprint import fingerprint
from etude.policies.texts.models import SavedModel
from etude.rewards.model import RewardModel
from etude.rewards.pair_judges import ModelPairJudge
from etude.rewards.redistribute import Redistribute

ELSEWHERE = {
    "kto": "methods/test_kto.py::test_the_loss_of_kto_end_to_end",
    "planning-q-learning": "methods/rlvr/test_planning_pg_vs_q.py::test_the_loss_of_planning_q_learning_end_to_end",
}
"""Methods whose loss needs more of a world than rows (a graph, logits, other prompts), and the test that pins it."""
METHODS = sorted(set(files("methods")) - set(ELSEWHERE))
OF_TOKENS: dict[str, Any] = {n: m for n in METHODS for m in compositions(n) if isinstance(m, TokenMethod)}
OF_OTHERS: dict[str, Any] = {
    n: other for n, m in OF_TOKENS.items() for stage in m.stages if (other := stage.other(stage.apply(m))) is not None
}
"""Methods whose steps come between another method's own, by the name of that one."""
IN_CONTROL: dict[str, Any] = {n: m for n in METHODS for m in compositions(n) if isinstance(m, RolloutMethod)}
FROM_REPLAY: dict[str, Any] = {n: m for n in METHODS for m in compositions(n) if isinstance(m, ReplayMethod)}
"""Their losses are pinned by whole updates, in `test_replay_updates.py`."""
RECIPES: dict[str, Any] = {n: m for n in METHODS for m in compositions(n) if isinstance(m, Recipe)}
"""Their losses are those of the methods that they train."""
BOTH = [m for m in OF_TOKENS if m in IN_CONTROL]
TOLERANCE = 1e-9
WORDS = [("x", 1.0), ("xx", -1.0)]
"""What a critic says of every completion: each token that is no comma is an x."""
SINGLE = {"capo", "derl", "g2rl", "kimi-k1-5", "memory-r-plus"}
"""Methods with something in single precision on the way (rewards, a factor, an epsilon of 1e-8): 1e-7 for them."""


# A world as the library sees it


class Answers:
    """A task of one turn: right is what is paid 1, an answer what follows a sign of equality."""

    id, max_turns, stop = "pinned", 1, ()

    def success(self, episode: Episode) -> bool:
        return episode.reward >= 1

    def answer(self, text: str) -> str:
        return text.partition("=")[2]


class Tokens:
    """A tokenizer that knows a few words: one separator, unless a world has others."""

    def __init__(self, spelled: dict[int, str] | None = None) -> None:
        self.spelled = {COMMA: ","} if spelled is None else spelled

    def __len__(self) -> int:
        return VOCABULARY

    def decode(self, ids: list[int]) -> str:
        return "".join(self.spelled.get(i, "x") for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {}


class Policy:
    """Says of every row what the world says, as leaves that a gradient arrives at."""

    shadow = autocast = share_prompts = sampler_is_more_precise = False
    version, device, head_dtype = 0, torch.device("cpu"), torch.float64

    def __init__(self, world: World) -> None:
        self.world, self.tokenizer = world, Tokens(world.spelled)
        self.leaves = {
            "logp": padded(world.new.detach()).requires_grad_(True),
            "entropy": padded(world.entropy.detach()).requires_grad_(True),
            "values": padded(world.values_now.detach()).requires_grad_(True),
        }

    @property
    def weights(self) -> SimpleNamespace:
        return SimpleNamespace(mark=lambda: fingerprint(self.parameters()))

    def parameters(self) -> list[Tensor]:
        return list(self.leaves.values())

    def add_value_head(self) -> None:
        """It has values."""

    def updated(self) -> None:
        """Nothing samples from it."""

    def head(self, temperature: float) -> Head:
        return Head(self.world.head, temperature=temperature)

    def evaluate(self, rows: TokenBatch, needs: Any = ()) -> TokenLogProbs:
        place, width = rows.draw, rows.tokens.shape[1]
        if "logits" in needs:  # of the policy that sampled, which is who is asked
            return TokenLogProbs(rows.behaviour_logp, logits=padded(self.world.sampling)[place, :width])
        said = {k: v[place, :width] * rows.action_mask for k, v in self.leaves.items() if k == "logp" or k in needs}
        if "hidden" in needs:
            said["hidden"] = padded(self.world.hidden_now)[place, :width]
        return TokenLogProbs(**said, head=self.head(rows.temperature) if "hidden" in needs else None)

    evaluate_together = evaluate


def reference_logits(policy: Policy, rows: TokenBatch) -> Tensor:
    """What the world's reference says of all tokens."""
    return padded(policy.world.reference)[rows.draw, : rows.tokens.shape[1]]


class Values(Policy):
    """A critic of its own: the world's values, as leaves apart from the policy's."""

    policy = SimpleNamespace(share_prompts=False)

    def values(self, rows: TokenBatch) -> Tensor:
        found: Tensor = self.evaluate(rows, {"values"}).values
        return found


def padded(values: Tensor) -> Tensor:
    """[B, PROMPT + T, ...] with nothing at the prompt."""
    return torch.cat([values.new_zeros(len(values), PROMPT, *values.shape[2:]), values], 1)


def episode(world: World, i: int) -> Episode:
    size, skip = world.lengths[i], world.skip[i]
    asked = Segment("user", "?", [1] * PROMPT, [0] * PROMPT, [0.0] * PROMPT)
    mask, tokens = [0] * skip + [1] * (size - skip), world.tokens[i, :size].tolist()
    said = Segment("assistant", world.text(i), tokens, mask, [0.0] * size, reward=world.rewards[i])
    said.info |= world.info[i].get("said", {})
    stop = StopReason.MAX_TOKENS if i in world.cut else StopReason.END_OF_TEXT
    if i in world.going:
        stop, said.reward = StopReason.PAUSED, 0.0
    group = world.groups[i]
    marks = {"auxiliary": i in world.imitated, "info": dict(world.info[i])}
    known: dict[str, Any] = {"following": ("b=3;", "c=4;")}
    if "anchor" in world.notes:
        known["demonstration"] = world.notes["anchor"]
    if "hints" in world.notes:
        known["hint_in_view"] = world.notes["hints"][group]
    known |= world.notes.get("listed", {})
    if "values" in world.notes:
        known["value"] = world.notes["values"][group]
    known |= world.info[i].get("problem", {})
    problem = Problem(f"p{group}", "?", world.answer, world.levels.get(group, ""), known)
    return Episode(problem, [asked, said], group, stop=stop, draw=Stream(0).draw("row", i), **marks)


def batch_of(world: World) -> TokenBatch:
    """In double precision. Rows count as sampled elsewhere, where the world does not say which are, so that no loop
    holds them against the policy as it is."""
    places = torch.arange(PROMPT + world.old.shape[1])
    size, skip = torch.tensor(world.lengths)[:, None], torch.tensor(world.skip)[:, None]
    real, action = places < PROMPT + size, (places >= PROMPT + skip) & (places < PROMPT + size)
    row = torch.zeros(world.count, dtype=torch.float64)
    rows = range(world.count)
    going = torch.tensor([i in world.going for i in rows])
    earlier = real & (places >= PROMPT) & ~action
    away = set(rows) if world.elsewhere is None else world.elsewhere
    episodes = [episode(world, i) for i in rows]
    return TokenBatch(
        tokens=padded(world.tokens) * real, attention_mask=real, action_mask=action,
        behaviour_logp=padded(world.old) * action, rewards=torch.zeros(real.shape, dtype=torch.float64),
        group=torch.tensor(world.groups), weights=row + 1, scores=row,
        truncated=torch.tensor([i in world.cut for i in rows]), solved=torch.tensor(world.solved),
        written=torch.tensor([i in world.written for i in rows]), elsewhere=torch.tensor([i in away for i in rows]),
        reference_logp=padded(world.ref) * action, episodes=episodes,
        step=_step(episodes, action.numpy(), row.device), draw=torch.arange(world.count),
        episode=torch.arange(world.count), temperature=world.temperature,
        unfinished=going if world.going else None, earlier=earlier if world.going else None,
    )  # fmt: skip


def prepared(method: Method, world: World, monkeypatch: pytest.MonkeyPatch) -> Method:
    """The method bound, in its last stage, with what it would have from elsewhere: a judge, what it learned before."""
    whole = AdamW(lr=RATE, clip_norm=None)
    method = method.stages[-1].apply(method) if method.stages else method
    method = method.replace(optimizer=whole, epochs=1, minibatches=1, stages=(), curriculum=None)
    if "offers" in world.notes:
        method = method.replace(learners=())  # what they say is the world's
    if getattr(method, "own_critic", None) is not None:
        once = method.critic.learning.replace(optimizer=whole, epochs=1, minibatches=1)
        method = method.replace(critic=method.critic.replace(learning=once))
        monkeypatch.setattr(type(method.critic), "build", lambda part, policy: Values(world))
    method = method.bind()
    world.notes["judged"] = [2.5 * (-1) ** i + 1.25 * (i % 3) for i in range(world.count)]
    for part in method.parts().values():
        if isinstance(part, RewardModel):
            part.made["scorer"] = SimpleNamespace(tokenizer=Tokens())
            monkeypatch.setattr("etude.rewards.model.values", lambda scorer, episodes: world.notes["judged"])
        if isinstance(part, Redistribute):
            part.made["scorer"] = SimpleNamespace(tokenizer=Tokens())
            monkeypatch.setattr("etude.rewards.redistribute.contributions", lambda scorer, batch: at_the_end(world))
        if isinstance(part, WordRewards):
            monkeypatch.setattr(type(part.critic), "words", lambda part, episodes, context: [WORDS] * len(episodes))
            monkeypatch.setattr("etude.methods.preference.text2grad.parts.reference_logits", reference_logits)
        if isinstance(part, SavedModel):
            part.made["speaker"] = Policy(world)
        if isinstance(part, ModelPairJudge):
            monkeypatch.setattr(
                ModelPairJudge, "scores", lambda part, cases, context: [shown_first(c.given, *c.wanted) for c in cases]
            )
        if isinstance(part, InformationGain):
            monkeypatch.setattr(InformationGain, "score", lambda part, episodes, context: world.notes["judged"])
        if isinstance(part, SolvedWith):
            monkeypatch.setattr(
                SolvedWith, "shares", lambda part, problems, *_: world.notes[
                    "judged" if len(problems) == world.count else "without"]
            )  # fmt: skip
        if part.name == "memory-reward":
            Memory(part.state["successes"], 9, 9).put(["p0"], *(embedded([text], 512, 3) for text in ("?", "b=3")))
        if part.name == "prompt-gdro":
            part.state["scores"] = {"9": 0.8}
        if part.name == "utterance-advantages":
            part.state["steps"] = part.fields()["warmup"]
    return method


def at_the_end(world: World) -> Tensor:
    """[B, PROMPT + T] what was judged, on the last token of each row."""
    found = torch.zeros(world.old.shape, dtype=torch.float64)
    found[range(world.count), [n - 1 for n in world.lengths]] = torch.tensor(world.notes["judged"], dtype=torch.float64)
    return padded(found)


@dataclass
class Found:
    """What a composition makes of a world: its loss, and the gradients with respect to what the policy says."""

    loss: float
    gradients: dict[str, Tensor]


def loss_of(method: Method, world: World, monkeypatch: pytest.MonkeyPatch) -> Found:
    """One step of a token method on the world's batch, in the order of its loop: the only place that knows it."""
    method, policy, batch = prepared(method, world, monkeypatch), Policy(world), batch_of(world)
    if beside := [part for part in method.slots()["learners"] if getattr(part, "per_token", False)]:
        # a model of their own, which the policy's step does not train: learners/test_token_values.py pins them
        method = method.replace(learners=tuple(p for p in method.slots()["learners"] if p not in beside))
    if world.elsewhere is not None:
        monkeypatch.setattr("etude.loops.update.compare", lambda gaps, noise, policy, tally: None)
    context = Context(Answers(), policy, Stream(0), 1, 2, world.limit)
    if "hidden" in method.needs("rewards", "filters", "advantages"):
        batch = batch.replace(hidden=padded(world.hidden), head=policy.head(world.temperature))
    if "entropy" in method.needs("advantages"):
        batch = batch.replace(entropy=padded(world.entropy).detach())
    if "reference_values" in method.needs():
        batch = batch.replace(reference_values=padded(world.values) * batch.action_mask)
    offers = world.notes.get("offers", {})
    batch = batch.replace(offers={k: torch.tensor(v, dtype=torch.float64) for k, v in offers.items()})
    batch = scored(method, batch, context)
    for part in method.parts().values():
        part.before_update(batch)
    batch = weighed(batch, [part for part in method.filters if not part.late])
    batch.values = padded(world.values)[batch.draw] * batch.action_mask
    batch = credited(method, batch)
    updater = Updater(policy, method, 2, 30, world.limit)  # type: ignore[arg-type]  # several micro-batches
    loss = updater.run(method, batch, 1, Stream(0))["loss"]
    if (critic := updater.learners.critic) is not None:
        loss += updater.learners.run(batch, 1, "after", Stream(0), 30)["value_loss"]
        policy.leaves["values"] = critic.network.leaves["values"]
    note(world, method, batch)
    gradients = {k: torch.zeros_like(v) if v.grad is None else v.grad for k, v in policy.leaves.items()}
    return Found(loss, {k: v[:, PROMPT:] for k, v in gradients.items()})


def note(world: World, method: Method, batch: TokenBatch) -> None:
    """Random draws are not formulas: what was drawn is handed to whoever computes the loss again."""
    for part in method.rewards:
        if part.name == "meta-reward":
            world.notes["formula"] = part.formula  # type: ignore[union-attr]
        if part.name == "adversarial-imitation":
            world.notes["discriminator"] = part.state["weights"]  # type: ignore[union-attr]
        if part.name == "wins":
            one, two = torch.combinations(torch.arange(world.count)).unbind(1)
            drawn = uniforms(children(one ^ two, "preferred"), 0, 1)[0]
            world.notes["preferred"] = dict(zip(zip(one.tolist(), two.tolist()), drawn.tolist()))
        if part.name == "against-one-other":
            number = uniforms(children(batch.draw, "compared with"), 0, 1)[0].tolist()
            least = {g: min(n for n, h in zip(number, world.groups) if h == g) for g in world.groups}
            world.notes["compared"] = [n == least[g] for n, g in zip(number, world.groups)]
        if part.name == "labels-by-comparison":
            drawn = uniforms(children(torch.arange(world.count), "compared"), 0, part.comparisons)  # type: ignore[union-attr]
            world.notes["people"] = drawn.T.tolist()
    if method.objective is not None and method.objective.name == "goal-contrast":
        drawn = uniforms(children(torch.tensor(sorted(set(world.groups))), "goals", 0), 0, 64)
        world.notes["goals"] = drawn.T.tolist()
    for part in method.token_weights:
        if part.name == "covariance-clip":
            drawn = uniforms(children(batch.draw, "covariance-clip", 1), 0, batch.tokens.shape[1]).T[:, PROMPT:]
            world.notes["numbers"] = dict(zip(batch.draw.tolist(), drawn.tolist()))
    if any(part.name == "rank-filter" for part in method.filters):
        world.notes["kept"] = batch.draw.tolist()
    if batch.verdicts is not None:
        rows = zip(batch.draw.tolist(), batch.verdicts[:, PROMPT:].tolist())
        world.notes["verdicts"] = dict(rows)
    if method.advantages is not None and method.advantages.name == "polychromic":
        drawn = chosen_sets(torch.ones(2, 6, dtype=torch.bool), torch.arange(2, 14).view(2, 6), 4, 4)
        world.notes["sets"] = [[s.nonzero()[:, 0].tolist() for s in state] for state in drawn]


# Tokens


def entry(table: dict[str, Any], name: str, what: str) -> Any:
    assert name in table, (
        f"{name} has no entry in {what}: add one, worked out from the paper and without the library's parts, so that "
        "nobody can change the method without a test that says so."
    )
    return table[name]


@pytest.mark.parametrize("name", OF_TOKENS)
def test_loss_and_gradient_are_those_of_the_equation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, formula = entry(FORMULAS, name, "tests/methods/pinned_formulas.py (FORMULAS)")
    hold(name, OF_TOKENS[name], build(), formula, monkeypatch)


@pytest.mark.parametrize("name", OF_OTHERS)
def test_loss_of_steps_between_is_that_of_the_equation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, formula = entry(BETWEEN, name, "tests/methods/pinned_formulas.py (BETWEEN)")
    hold(name, OF_OTHERS[name], build(), formula, monkeypatch)


def hold(name: str, method: Method, world: World, formula: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loss_of(method, world, monkeypatch)
    loss = formula(world)
    near = 1e-7 if name in SINGLE else TOLERANCE
    assert found.loss == pytest.approx(float(loss.detach()), abs=near)
    leaves = {"logp": world.new, "entropy": world.entropy, "values": world.values_now}
    wanted = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    assert wanted[0].abs().max() > 1e-3 or not method.objective.generates
    for key, gradient in zip(leaves, wanted):
        torch.testing.assert_close(found.gradients[key], gradient, atol=near, rtol=0, msg=f"gradient of {key}")


@pytest.mark.parametrize("place", ELSEWHERE.values())
def test_what_is_pinned_elsewhere_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()


def test_ratios_are_off_one_on_both_sides() -> None:
    """So that every clip binds, for gains and for losses."""
    world = plain()
    for rows in ([i for i in range(10) if r_is(world, i)], [i for i in range(10) if not r_is(world, i)]):
        ratios = torch.cat([(world.of("new", i) - world.of("old", i)).exp() for i in rows])
        assert bool((ratios > 1.3).any() & (ratios < 0.75).any())
        assert bool(((ratios > 1.2) & (ratios < 1.28)).any() | ((ratios > 0.8) & (ratios < 1.2)).any())


def r_is(world: World, row: int) -> bool:
    return world.rewards[row] == 1


# Control


@pytest.mark.parametrize("name", IN_CONTROL)
def test_loss_in_control_is_that_of_the_equation(name: str) -> None:
    formula = entry(CONTROL, name, "tests/methods/pinned_control.py (CONTROL)")
    steps = Steps()
    found, gradients, batch = control_loss_of(IN_CONTROL[name].bind(), steps)
    loss, targets = formula(steps)
    assert found == pytest.approx(loss.tolist(), abs=TOLERANCE)
    assert batch.returns is not None
    torch.testing.assert_close(batch.returns, targets, atol=TOLERANCE, rtol=0)
    leaves = {"logp": steps.new, **steps.multipliers}
    wanted = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
    for key, gradient in zip(leaves, wanted):
        torch.testing.assert_close(gradients[key], gradient, atol=TOLERANCE, rtol=0, msg=f"gradient of {key}")


def control_loss_of(method: Method, steps: Steps) -> tuple[list[float], dict[str, Tensor], Transitions]:
    """The population's losses on one minibatch, the whole rollout, in the order of its loop, and their gradients."""
    batch = Transitions(
        observations=steps.rewards[..., None], actions=steps.rewards, rewards=steps.rewards,
        terminated=steps.terminated, truncated=steps.truncated, behaviour=steps.rewards[..., None],
        behaviour_logp=steps.old, values=steps.values, next_values=steps.next_values,
        progress=steps.progress, offers={"model_rewards": steps.models},
    )  # fmt: skip
    for part in method.rewards:
        batch.rewards = part.shape(batch)  # type: ignore[union-attr]
    assert method.advantages is not None
    batch = credited_steps(method, batch)
    joint = method.critic if isinstance(method.critic, Joint) else None
    actor = SimpleNamespace(see=lambda observations: observations)
    updater: Any = SimpleNamespace(method=method, actor=actor, joint=joint, heads={}, past=lambda batch: None)
    logp = steps.new.detach().flatten(1).requires_grad_(True)
    multipliers = {k: v.detach().requires_grad_(True) for k, v in steps.multipliers.items()}
    said = ActionLogProbs(
        logp, entropy=steps.entropy.flatten(1), values=steps.values_now.flatten(1), said=dict(multipliers),
        kl_parts=steps.kl_parts.flatten(1, 2),
    )  # fmt: skip
    loss, _ = Minibatch(updater, batch.flat(), fresh=False, reports=False).loss(said)
    leaves = {"logp": logp, **multipliers}
    found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True, allow_unused=True)
    gradients = dict(zip(leaves, found))
    return loss.tolist(), {**gradients, "logp": gradients["logp"].view_as(steps.new)}, batch


# Settings that no loss shows


def setting(method: Method, path: str) -> Any:
    """A field by its path; a part by its name."""
    found: Any = method
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    if isinstance(found, tuple) and all(isinstance(x, Part) for x in found):
        return tuple(x.name for x in found)
    return found.name if isinstance(found, Part) else found


@pytest.mark.parametrize("name", [*METHODS, *(f"{m} in control" for m in BOTH)])
def test_settings_are_the_papers(name: str) -> None:
    wanted = entry(SETTINGS, name, "tests/methods/pinned_settings.py (SETTINGS)")
    method = (
        OF_TOKENS.get(name)
        or FROM_REPLAY.get(name)
        or RECIPES.get(name)
        or IN_CONTROL[name.removesuffix(" in control")]
    )
    assert {path: setting(method, path) for path in wanted} == wanted
