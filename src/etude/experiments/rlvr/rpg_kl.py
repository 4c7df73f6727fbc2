"""RPG's claim: exact optima with stale data on bandits, and stale minibatches on language."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.method import Method
from etude.core.registry import get_method
from etude.experiments.arms import SEEDS, Question, findings, language, variant
from etude.loops.bed import Bed
from etude.loops.credit import loss as loss_of
from etude.objectives.surrogate import Surrogate
from etude.policies.tabular import SoftmaxTree
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference

BANDITS, ARMS, BETA = 64, 10, 0.3
UPDATES, STALE = 1600, 8
NEAR = 1e-3
"""KL in nats below which a policy is said to have reached the optimum."""
STEPS, RUNS, RATE = 20, 3, 3e-4
TOLERANCE = 0.03


def experiment() -> dict[str, Any]:
    """Both halves of the claim."""
    weighted, plain = (settle(with_kl(w), stale=STALE) for w in (True, False))
    own = {d: settle(of_divergence(d), stale=UPDATES) for d in ("rkl", "urkl")}
    changes = {"minibatches": 16, "optimizer.lr": RATE}
    runs = language({k: variant(k, changes) for k in ("rpg-kl", "dapo")}, _compose(), seeds=RUNS, steps=STEPS)
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


def with_kl(weighted: bool) -> Method:
    """Importance-weighted policy gradient with GRPO's KL term to a fixed reference, itself weighted or not."""
    term = KLToReference(coefficient=BETA, estimator="k3", weighted=weighted)
    return get_method("rpg-kl").replace(objective=Surrogate(), regularizers=(term,), reference=Frozen())


def of_divergence(divergence: str) -> Method:
    """RPG-REINFORCE without its clip: its reference is the policy that sampled."""
    free = {"low": 1.0, "high": 1e9, "dual": 1e9}
    found = get_method("rpg-kl")
    assert found.objective is not None
    return found.replace(objective=found.objective.replace(divergence=divergence, beta=BETA, **free))


def settle(method: Method, *, stale: int) -> list[float]:
    """KL(pi || pi*) of every bandit after exact-gradient updates, `stale` of them on data of the same policy.

    pi* maximises E[r] - beta KL(pi || pi_0), pi_0 being the first policy.
    """
    policy = SoftmaxTree(BANDITS, ARMS, spread=1.0, seed=SEEDS)
    bed = Bed(policy, torch.rand(BANDITS, ARMS, generator=torch.Generator().manual_seed(SEEDS)).double())
    first = policy.table().detach()
    best = (first[0, :, 0] + bed.rewards / BETA).log_softmax(-1)
    optimizer = torch.optim.Adam([policy.logits[0]], 0.02)
    prompt, response = (x.flatten() for x in torch.meshgrid(torch.arange(BANDITS), torch.arange(ARMS), indexing="ij"))
    for update in range(UPDATES):
        if update % stale == 0:
            batch = _every_arm(bed, prompt, response, first)
        optimizer.zero_grad()
        loss: Tensor = loss_of(method, batch, policy.rows(0, prompt, response, policy.table()), policy.length)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    logp = policy.logp().detach()[0]
    return [float(x) for x in (logp.exp() * (logp - best)).sum(-1)]


def _every_arm(bed: Bed, prompt: Tensor, response: Tensor, reference: Tensor) -> Any:
    """All arms of all bandits, each weighing as often as the policy now draws it."""
    said = bed.policy.rows(0, prompt, response, bed.policy.table().detach())
    held = bed.policy.rows(0, prompt, response, reference).logp
    batch = bed.batch(prompt, response, said, held)
    chance = said.logp[:, 0].exp()
    mean = (chance * batch.scores).view(BANDITS, ARMS).sum(1)[prompt]
    return batch.replace(weights=chance * ARMS, advantages=(batch.scores - mean)[:, None])


def _compose() -> Any:
    from etude.tasks import resolve_task

    return resolve_task("compose")
