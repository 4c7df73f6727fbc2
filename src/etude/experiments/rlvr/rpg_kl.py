"""RPG's claim: exact optima with stale data on bandits, and stale minibatches on language."""

from __future__ import annotations

from typing import Any

import torch

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.experiments.arms import SEEDS, Question, findings, language, variant
from etude.experiments.cells import recorded
from etude.experiments.optima import Bandits
from etude.objectives.surrogate import Surrogate
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.tasks.language.compose import compose

BANDITS, ARMS, BETA = 64, 10, 0.3
UPDATES, STALE, STEP = 1600, 8, 0.02
NEAR = 1e-3
"""KL in nats below which a policy is said to have reached the optimum."""
STEPS, RUNS, RATE = 20, 3, 3e-4
TOLERANCE = 0.03


def experiment() -> dict[str, Any]:
    """Both halves of the claim."""
    weighted, plain = (settle(with_kl(w), stale=STALE) for w in (True, False))
    own = {d: settle(of_divergence(d), stale=UPDATES) for d in ("rkl", "urkl")}
    changes = {"minibatches": 16, "optimizer.lr": RATE}
    runs = language({k: variant(k, changes) for k in ("rpg-kl", "dapo")}, compose, seeds=RUNS, steps=STEPS)
    final = {k: [r.pass_at(1) for r in found] for k, found in runs.items()}
    begun = [r.metrics[0]["accuracy"] for r in runs["rpg-kl"]]
    questions = [
        Question("KL to the optimum, reference fixed, 8 stale updates", {"weighted": weighted, "GRPO": plain}, "lower"),
        Question("the weighted term reaches it", {"weighted": weighted, "bound": [NEAR] * BANDITS}, "lower"),
        Question("GRPO's does not", {"GRPO": plain, "bound": [NEAR] * BANDITS}),
        *(Question(f"KL to the optimum of one batch, {d}", {d: kl, "bound": [NEAR] * BANDITS}, "lower")
          for d, kl in own.items()),
        Question(f"pass@1, DAPO's less {TOLERANCE}",
                 {"rpg-kl": final["rpg-kl"], "dapo": [x - TOLERANCE for x in final["dapo"]]}),
        Question("no collapse: pass@1 against the first step's accuracy", {"rpg-kl": final["rpg-kl"], "before": begun}),
    ]  # fmt: skip
    about = {"bandits": BANDITS, "updates": UPDATES, "stale": STALE, "beta": BETA, "changes": changes}
    return findings(questions, task="10-armed bandits, compose", steps=STEPS, seeds=RUNS, settings=about)


def with_kl(weighted: bool) -> TokenMethod:
    """Importance-weighted policy gradient with GRPO's KL term to a fixed reference, itself weighted or not."""
    term = KLToReference(coefficient=BETA, estimator="k3", weighted=weighted)
    return variant("rpg-kl").replace(objective=Surrogate(), regularizers=(term,), reference=Frozen())


def of_divergence(divergence: str) -> TokenMethod:
    """RPG-REINFORCE without its clip: its reference is the policy that sampled."""
    free = {"low": 1.0, "high": 1e9, "dual": 1e9}
    found = variant("rpg-kl")
    assert found.objective is not None
    return found.replace(objective=found.objective.replace(divergence=divergence, beta=BETA, **free))


def settle(method: TokenMethod, *, stale: int) -> list[float]:
    """KL(pi || pi*) of every bandit after exact-gradient updates, `stale` of them on data of the same policy.

    pi* maximises E[r] - beta KL(pi || pi_0), pi_0 being the first policy.
    """
    matters = [method.to_json(), stale, BANDITS, ARMS, BETA, UPDATES, STEP, SEEDS]
    return recorded(f"exact {method.id}", matters, lambda: _settled(method, stale))


def _settled(method: TokenMethod, stale: int) -> list[float]:
    bandits = Bandits(BANDITS, ARMS, BETA)
    kept: list[TokenBatch] = []

    def batch(update: int) -> TokenBatch:
        if update % stale == 0:
            kept[:] = [_every_arm(bandits)]
        return kept[0]

    return bandits.settle(method, UPDATES, STEP, batch)


def _every_arm(bandits: Bandits) -> TokenBatch:
    """All arms of all bandits, each weighing as often as the policy now draws it."""
    prompt, response = (x.flatten() for x in torch.meshgrid(torch.arange(BANDITS), torch.arange(ARMS), indexing="ij"))
    policy = bandits.policy
    said = policy.rows(0, prompt, response, policy.table().detach())
    held = policy.rows(0, prompt, response, bandits.first).logp
    batch = bandits.bandit.batch(prompt, response, said, held)
    chance = said.logp[:, 0].exp()
    mean = (chance * batch.scores).view(BANDITS, ARMS).sum(1)[prompt]
    return batch.replace(weights=chance * ARMS, advantages=(batch.scores - mean)[:, None])
