"""RPG's claim: exact optima with stale data on bandits, and stale minibatches on language."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Trained, drawdown, language, pairs, untrained, variant
from etude.experiments.cells import recorded, spread
from etude.experiments.optima import Bandits
from etude.objectives.surrogate import Surrogate
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.tasks.language.compose import Compose

BANDITS, ARMS, BETA = 8, 10, 0.3
UPDATES, STALE, STEP = 400, 8, 0.03
TASK, STEPS = Compose(levels=(3,)), 15
CHANGES = {"minibatches": 16, "optimizer.lr": 3e-4}
OPTIMUM = f"KL to the optimum, {STALE} stale updates"


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Both halves of the claim."""
    weighted, plain = (spread(partial(settle, with_kl(w), STALE), seeds) for w in (True, False))
    own = {d: spread(partial(settle, of_divergence(d), UPDATES), seeds) for d in ("rkl", "urkl")}
    runs = language({k: variant(k, CHANGES) for k in ("rpg-kl", "dapo")}, TASK, seeds=seeds, steps=STEPS)
    final, drops = ({k: [f(r) for r in v] for k, v in runs.items()} for f in (_accuracy, drawdown))
    begun = untrained(variant("grpo"), TASK).pass_at(1)
    return pairs(
        seeds,
        {"pass@1": final["rpg-kl"], OPTIMUM: weighted, "largest drop": drops["rpg-kl"], "weighted term's KL": weighted,
         **{f"KL to the optimum of one batch, {d}": kl for d, kl in own.items()}},
        {"pass@1": final["dapo"], OPTIMUM: plain, "largest drop": drops["dapo"]},
        start={"pass@1": [begun] * len(seeds), OPTIMUM: [bandits(s).away() for s in seeds]},
    )  # fmt: skip


def _accuracy(run: Trained) -> float:
    return run.pass_at(1)


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


def bandits(seed: int) -> Bandits:
    """A seed's rewards and first policy."""
    return Bandits(BANDITS, ARMS, BETA, seed)


def settle(method: TokenMethod, stale: int, seed: int) -> float:
    """KL(pi || pi*) after exact-gradient updates, `stale` of them on data of the same policy.

    pi* maximises E[r] - beta KL(pi || pi_0), pi_0 being the first policy.
    """
    matters = [method.to_json(), stale, BANDITS, ARMS, BETA, UPDATES, STEP, seed]
    return recorded(f"exact {method.id} {seed}", matters, lambda: _settled(method, stale, bandits(seed)))


def _settled(method: TokenMethod, stale: int, given: Bandits) -> float:
    torch.set_num_threads(1)
    kept: list[TokenBatch] = []

    def batch(update: int) -> TokenBatch:
        if update % stale == 0:
            kept[:] = [_every_arm(given)]
        return kept[0]

    return given.settle(method, UPDATES, STEP, batch)


def _every_arm(given: Bandits) -> TokenBatch:
    """All arms of all bandits, each weighing as often as the policy now draws it."""
    prompt, response = (x.flatten() for x in torch.meshgrid(torch.arange(BANDITS), torch.arange(ARMS), indexing="ij"))
    policy = given.policy
    said = policy.rows(0, prompt, response, policy.table().detach())
    held = policy.rows(0, prompt, response, given.first).logp
    batch = given.bandit.batch(prompt, response, said, held)
    chance = said.logp[:, 0].exp()
    mean = (chance * batch.scores).view(BANDITS, ARMS).sum(1)[prompt]
    return batch.replace(weights=chance * ARMS, advantages=(batch.scores - mean)[:, None])
