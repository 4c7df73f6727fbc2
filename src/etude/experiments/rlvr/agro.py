"""AGRO's claim: exact optima from data of the reference, and language models offline and online."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS, Question, findings, language, variant
from etude.experiments.cells import Cell, recorded, spread, trained
from etude.experiments.optima import Bandits
from etude.objectives.preference import DPO
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.tasks.language.compose import compose

PROMPTS, RESPONSES, EXACT_BETA, UPDATES, RATE = 64, 20, 0.5, 500, 0.05
NEAR = 1e-6
"""KL in nats below which a policy is said to have reached the optimum."""
OFFLINE = {"problems": 256, "minibatches": 16, "epochs": 2, "optimizer.lr": 1e-4}
BETA, ONLINE_BETA = 0.1, 0.5
STEPS, RUNS, TOLERANCE = 20, 3, 0.03


def experiment() -> dict[str, Any]:
    """Both halves of the claim."""
    exact = {k: settle(m) for k, m in arms(EXACT_BETA).items() if k != "dpo"}
    jobs = [Cell(k, variant(m, OFFLINE), compose, SEEDS + s, 1) for s in range(RUNS) for k, m in arms(BETA).items()]
    done = [(job.label, found) for job, found in zip(jobs, spread(offline, jobs))]
    final = {k: [f["pass@1"] for name, f in done if name == k] for k in arms(BETA)}
    online = arms(ONLINE_BETA)
    online = {"agro": variant(online["agro"], {"objective.extra": 1.0}), "policy gradient": online["policy gradient"]}
    runs = {k: [r.pass_at(1) for r in v] for k, v in language(online, compose, seeds=RUNS, steps=STEPS).items()}
    bound = [NEAR] * PROMPTS
    questions = [
        Question("KL to the optimum from data of the reference", exact, "lower"),
        Question("AGRO reaches it", {"agro": exact["agro"], "bound": bound}, "lower"),
        Question("policy gradient does not", {"policy gradient": exact["policy gradient"], "bound": bound}),
        *(Question("pass@1 offline", {"agro": final["agro"], k: final[k]}) for k in ("policy gradient", "dpo")),
        Question(f"pass@1 online, the baseline's less {TOLERANCE}",
                 {"agro": runs["agro"], "policy gradient": [x - TOLERANCE for x in runs["policy gradient"]]}),
    ]  # fmt: skip
    nats = {k: [f["kl"] for name, f in done if name == k] for k in arms(BETA)}
    about = {"offline": OFFLINE, "beta": BETA, "online_beta": ONLINE_BETA, "exact_beta": EXACT_BETA, "offline_kl": nats}
    return findings(questions, task=f"{RESPONSES} responses, compose", steps=STEPS, seeds=RUNS, settings=about)


def arms(beta: float) -> dict[str, TokenMethod]:
    """AGRO for a fixed sampler, KL-regularised policy gradient and DPO, all with the same beta."""
    rloo, reference = variant("rloo"), Frozen()
    term = KLToReference(coefficient=beta, estimator="k2")  # on fresh samples its gradient is the KL's
    return {
        "agro": variant("agro", {"objective.beta": beta, "objective.extra": 0.0}),
        "policy gradient": rloo.replace(regularizers=(term,), reference=reference),
        "dpo": rloo.replace(objective=DPO(beta=beta), advantages=None, reference=reference),
    }


def settle(method: TokenMethod) -> list[float]:
    """KL(pi || pi*) for every prompt after exact-gradient updates on data of the reference.

    Every pair of different responses is a group that weighs as often as the reference draws it.
    """
    matters = [method.to_json(), PROMPTS, RESPONSES, EXACT_BETA, UPDATES, RATE, SEEDS]
    return recorded(f"exact {method.id}", matters, lambda: _settled(method))


def _settled(method: TokenMethod) -> list[float]:
    bandits = Bandits(PROMPTS, RESPONSES, EXACT_BETA)
    prompt, response = _pairs()
    said = bandits.policy.rows(0, prompt, response, bandits.first)
    batch = bandits.bandit.batch(prompt, response, said, said.logp)
    chance = said.logp[:, 0].exp().view(-1, 2).prod(1).repeat_interleave(2)
    batch = batch.replace(weights=chance * len(prompt), group=torch.arange(len(prompt)) // 2)
    batch = batch.replace(advantages=method.advantages(batch) if method.advantages else torch.zeros_like(batch.rewards))
    return bandits.settle(method, UPDATES, RATE, lambda _: batch)


def _pairs() -> tuple[Tensor, Tensor]:
    """Prompts and responses of all pairs, two rows each."""
    pairs = torch.combinations(torch.arange(RESPONSES)).flatten()
    return torch.arange(PROMPTS).repeat_interleave(len(pairs)), pairs.repeat(PROMPTS)


def offline(job: Cell) -> dict[str, float]:
    """pass@1 on test problems and KL(pi || pi_ref) in nats per completion, after all epochs over the one batch.

    Its completions are all sampled once, by the first policy.
    """
    from etude.core.rows import to_batch
    from etude.evaluation.language import evaluate_split
    from etude.loops.language import MICRO_TOKENS
    from etude.loops.whole_batch import reference_all

    policy = trained(job)[0].policy
    looked = evaluate_split(policy, job.task, "test", problems=100, samples=8, seed=SEEDS)
    said = [e for row in looked.episodes for e in row]
    batch = to_batch(said, policy.tokenizer.pad_token_id, 1.0, policy.device)
    away = (batch.behaviour_logp - reference_all(policy, batch, MICRO_TOKENS)) * batch.action_mask
    return {"pass@1": float(looked.correct.mean()), "kl": float(away.sum(1).mean())}
