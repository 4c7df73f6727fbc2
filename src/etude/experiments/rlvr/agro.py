"""AGRO's claim: exact optima from data of the reference, and language models offline and online."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, language, pairs, untrained, variant
from etude.experiments.cells import Cell, by_label, recorded, spread, trained
from etude.experiments.optima import Bandits, every_pair
from etude.objectives.preference import DPO
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.tasks.language.compose import Compose

BETA = 0.1
PROMPTS, RESPONSES, UPDATES, RATE = 4, 20, 250, 0.05
OPTIMUM, OFFLINE, ONLINE = "KL to the optimum", "pass@1 offline", "pass@1 online"
TASK = Compose(levels=(3,))
BATCH = {"problems": 256, "minibatches": 16, "epochs": 2, "optimizer.lr": 1e-4}
STEPS, ONLINE_RATE, ONLINE_BETA = 20, 2e-4, 0.5


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Both halves of the claim."""
    exact = {k: spread(partial(settle, m), seeds) for k, m in arms(BETA).items() if k != "dpo"}
    jobs = [Cell(k, variant(m, BATCH), TASK, seed, 1) for seed in seeds for k, m in arms(BETA).items()]
    done = by_label([job.label for job in jobs], spread(offline, jobs))
    off, away = ({k: [f[what] for f in found] for k, found in done.items()} for what in ("pass@1", "kl"))
    on = online(seeds)
    begun = [untrained(variant("grpo"), TASK).pass_at(1)] * len(seeds)
    return pairs(
        seeds,
        {OFFLINE: off["agro"], f"{OFFLINE} against dpo": off["agro"], OPTIMUM: exact["agro"],
         "AGRO's KL to the optimum": exact["agro"],
         ONLINE: on["agro"], "KL offline": away["agro"]},
        {OFFLINE: off["policy gradient"], f"{OFFLINE} against dpo": off["dpo"], OPTIMUM: exact["policy gradient"],
         ONLINE: on["policy gradient"], "KL offline": away["policy gradient"]},
        start={OFFLINE: begun, ONLINE: begun, OPTIMUM: [bandits(seed).away() for seed in seeds]},
    )  # fmt: skip


def arms(beta: float) -> dict[str, TokenMethod]:
    """AGRO for a fixed sampler, KL-regularised policy gradient and DPO, all with the same beta."""
    rloo, reference = variant("rloo"), Frozen()
    term = KLToReference(coefficient=beta, estimator="k2")  # on fresh samples its gradient is the KL's
    return {
        "agro": variant("agro", {"objective.beta": beta, "objective.extra": 0.0}),
        "policy gradient": rloo.replace(regularizers=(term,), reference=reference),
        "dpo": rloo.replace(objective=DPO(beta=beta), advantages=None, reference=reference),
    }


def online(seeds: Sequence[int]) -> dict[str, list[float]]:
    """pass@1 after training on fresh samples, with AGRO's second term."""
    made = arms(ONLINE_BETA)
    rate = {"optimizer.lr": ONLINE_RATE}
    methods = {
        "agro": variant(made["agro"], {**rate, "objective.extra": 1.0}),
        "policy gradient": variant(made["policy gradient"], rate),
    }
    return {k: [r.pass_at(1) for r in v] for k, v in language(methods, TASK, seeds=seeds, steps=STEPS).items()}


def bandits(seed: int) -> Bandits:
    """A seed's rewards and first policy."""
    return Bandits(PROMPTS, RESPONSES, BETA, seed)


def settle(method: TokenMethod, seed: int) -> float:
    """KL(pi || pi*) after exact-gradient updates on data of the reference.

    Every pair of different responses is a group that weighs as often as the reference draws it.
    """
    matters = [method.to_json(), PROMPTS, RESPONSES, BETA, UPDATES, RATE, seed]
    return recorded(f"exact {method.id} {seed}", matters, lambda: _settled(method, bandits(seed)))


def _settled(method: TokenMethod, given: Bandits) -> float:
    torch.set_num_threads(1)
    batch = every_pair(given.bandit, given.first)
    chance = batch.behaviour_logp[:, 0].exp().view(-1, 2).prod(1).repeat_interleave(2)
    batch = batch.replace(weights=chance * len(batch))
    batch = batch.replace(advantages=method.advantages(batch) if method.advantages else torch.zeros_like(batch.rewards))
    return given.settle(method, UPDATES, RATE, lambda _: batch)


def offline(job: Cell) -> dict[str, float]:
    """pass@1 on test problems and KL(pi || pi_ref) in nats per completion, after all epochs over the one batch.

    Its completions are all sampled once, by the first policy.
    """
    from etude.core.rows import to_batch
    from etude.evaluation.language import evaluate_split
    from etude.loops.whole_batch import reference_all
    from etude.policies.footprint import MICRO_TOKENS

    policy = trained(job)[0].policy
    looked = evaluate_split(policy, job.task, "test", problems=400, samples=2, seed=START)
    said = [e for row in looked.episodes for e in row]
    batch = to_batch(said, policy.tokenizer.pad_token_id, 1.0, policy.device)
    away = (batch.behaviour_logp - reference_all(policy, batch, MICRO_TOKENS)) * batch.action_mask
    return {"pass@1": float(looked.correct.mean()), "kl": float(away.sum(1).mean())}
