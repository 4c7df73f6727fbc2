"""The claim of r-to-q-star: credit of tokens, searches by likelihood, implicit rewards, and exact values of trees.

"hit" is held against chance; what a beam finds against the greedy answer, and a beam of 20 against one of 5. The chosen
answers' implicit reward is that of the last ten steps, by a reference that was fine-tuned on them first; the other
reference is what the recipe begins from. On trees of tokens that each seed draws, DPO's loss on all pairs is minimised
exactly, and its log-ratios are held against differences of soft values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.complete import complete_token
from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.evaluation.credit import evaluate_credit, lowest
from etude.evaluation.pairs import Pair
from etude.evaluation.searched import Searched, search_split
from etude.evaluation.soft_values import SoftValues, outcome_rewards, soft_values
from etude.experiments.arms import Training, pairs, run, started, variant
from etude.experiments.cells import recorded, spread
from etude.experiments.optima import every_pair
from etude.loops.bandit import Bandit
from etude.loops.credit import loss
from etude.methods.preference.r_to_q_star import chosen
from etude.planners.token_beam import TokenBeam
from etude.policies.language import LanguagePolicy
from etude.policies.tabular import SoftmaxTree
from etude.policies.texts.models import SavedModel
from etude.tasks.language.digest import Digest

TASK, MODEL, WARM, TAUGHT, STEPS, LAST = Digest(slips=0.2), "blank:2x64x4", 1000, 100, 60, 10
CHANGES = {"problems": 64, "optimizer.lr": 5e-4}
SPOILT, SEARCHED, WIDTHS = 500, 300, (1, 5, 20)
PROMPTS, TOKENS, LENGTH, BETA, UPDATES, RATE = 2, 3, 2, 0.5, 400, 0.05


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """All that is measured, by seed."""
    with started(TASK, steps=WARM, start=MODEL) as first, TemporaryDirectory() as folder:
        kept = {(name, seed): str(Path(folder) / f"{name}-{seed}") for name in ("sft", "dpo") for seed in seeds}
        taught, dpo, pool = variant("sft", CHANGES), variant("dpo", CHANGES), worked()
        run(Training("sft", taught, TASK, s, TAUGHT, first.folder, pool, kept["sft", s], problems=1) for s in seeds)
        found = run([
            *(Training("dpo", dpo, TASK, s, STEPS, kept["sft", s], keep=kept["dpo", s], problems=1) for s in seeds),
            *(Training("other", dpo, TASK, s, STEPS, first.folder, problems=1) for s in seeds),
        ])  # fmt: skip
        seen = [looked(kept["sft", seed], kept["dpo", seed]) for seed in seeds]
        before = greedy_gold(first.folder)
    last = {
        name: [float(np.mean([m["chosen_reward"] for m in r.metrics[-LAST:]])) for r in found[name]]
        for name in ("dpo", "other")
    }
    gold, words = ({w: [s[what][w] for s in seen] for w in WIDTHS} for what in ("gold", "words"))
    errors = spread(partial(credit_error, variant("dpo", {"objective.beta": BETA})), seeds)
    own = {
        "hit": [s["credit"]["hit"] for s in seen], "gold, beam of 5": gold[5], "gold, beam of 20": gold[20],
        "words, beam of 20": words[20], "chosen reward": last["dpo"], "chosen reward, other reference": last["dpo"],
        "error of credit on trees": errors,
    }  # fmt: skip
    other = {
        "hit": [s["credit"]["chance"] for s in seen], "gold, beam of 5": gold[1], "gold, beam of 20": gold[5],
        "words, beam of 20": words[5], "chosen reward, other reference": last["other"],
    }  # fmt: skip
    return pairs(seeds, own, other, start={"gold, beam of 5": [before] * len(seeds)})


def worked() -> list[Problem]:
    """The task's problems with the chosen answer as the worked one."""
    pool = TASK.problems("train")
    return [replace(p, info={**p.info, "demonstration": chosen(p)}) for p in (pool[i] for i in range(len(pool)))]


def looked(reference: str, policy: str) -> dict[str, dict[object, float]]:
    """Hits and chance of the credit, and what beams of each width find."""
    torch.set_num_threads(1)
    own = LanguagePolicy.load(policy, device="cpu")
    credit = evaluate_credit(own, SavedModel(model=reference).bind(), TASK, "test", problems=SPOILT)
    hits = [float(wrong[lowest(ratios)]) for ratios, wrong in zip(credit.ratios, credit.wrong)]
    beams = {width: searched(own, width) for width in WIDTHS}
    return {
        "credit": {"hit": float(np.mean(hits)), "chance": float(np.mean([w.mean() for w in credit.wrong]))},
        "gold": {w: float(np.mean([e.reward for e in found.episodes])) for w, found in beams.items()},
        "words": {w: float(np.mean([len(e.completion) for e in found.episodes])) for w, found in beams.items()},
    }


def searched(policy: LanguagePolicy, width: int) -> Searched:
    """The likeliest answers to the first problems of the test."""
    return search_split(policy, TASK, "test", TokenBeam(width=width), problems=SEARCHED)


def greedy_gold(folder: str) -> float:
    """What the greedy answers of a policy are worth."""
    return float(np.mean([e.reward for e in searched(LanguagePolicy.load(folder, device="cpu"), 1).episodes]))


# Trees


def credit_error(method: TokenMethod, seed: int) -> float:
    """Mean difference of beta log pi/ref and r + V(s') - V(s), after updates of the method's loss on a tree's pairs."""
    matters = [method.to_json(), PROMPTS, TOKENS, LENGTH, BETA, UPDATES, RATE, seed]
    return recorded(f"exact credit {method.id} {seed}", matters, lambda: _credit_error(method, seed))


def _credit_error(method: TokenMethod, seed: int) -> float:
    torch.set_num_threads(1)
    policy, rewards = drawn(seed)
    reference = policy.table().detach()
    batch = preferred(policy, rewards)
    assert batch.prompt is not None and batch.response is not None
    complete, optimizer = complete_token(method), torch.optim.Adam([policy.logits[0]], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        said = policy.rows(0, batch.prompt, batch.response, policy.table())
        value: Tensor = loss(complete, batch, said, policy.length)
        value.backward()
        optimizer.step()
        schedule.step()
    exact = exact_values(policy, reference, rewards)
    ratio = BETA * (policy.table().detach() - reference)[0]
    return float((ratio - (exact.q - exact.v[..., None])).abs().mean())


def drawn(seed: int) -> tuple[SoftmaxTree, Tensor]:
    """A seed's first policy, and uniform rewards in [0, 1] of its responses [X, Y]."""
    policy = SoftmaxTree(PROMPTS, TOKENS, LENGTH, spread=1.0, seed=seed)
    shape = (PROMPTS, len(policy.tokens))
    return policy, torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)


def exact_values(policy: SoftmaxTree, reference: Tensor, rewards: Tensor) -> SoftValues:
    """Soft values of these rewards, with the weight of the loss."""
    return soft_values(policy, reference[0], outcome_rewards(policy, rewards), BETA)


def preferred(policy: SoftmaxTree, rewards: Tensor) -> TokenBatch:
    """Every two responses twice, once with each as the better, weighing as often as Bradley and Terry label them so."""
    once = every_pair(Bandit(policy, rewards), policy.table().detach())
    assert once.prompt is not None and once.response is not None
    two, asked = once.response.view(-1, 2), once.prompt.view(-1, 2)[:, 0]
    first = (rewards[asked, two[:, 0]] - rewards[asked, two[:, 1]]).sigmoid()
    both = once.rows(torch.arange(len(once)).repeat(2))
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).repeat_interleave(len(two), 0)
    chance = torch.cat([first, 1 - first])
    return both.replace(
        group=torch.arange(2 * len(two)).repeat_interleave(2), episode=torch.arange(len(both)), scores=scores.flatten(),
        weights=chance.repeat_interleave(2), reference_logp=both.behaviour_logp,
        advantages=torch.zeros_like(both.rewards),
    )  # fmt: skip
