"""The losses of language agents, written out from their papers."""

from __future__ import annotations

import math

from pinned_shared import clipped, k3, left_out, mean, paid, sequence_mean, standardised, surrogates, token_mean
from pinned_world import World
from torch import Tensor


def archer(w: World) -> Tensor:
    """-A sum_h log pi of each utterance said anew, over the limit of tokens; games teach the policy nothing."""
    worth = {i: w.notes["offers"]["utterance_advantage"][i] for i in w.going}
    return mean(-a * w.of("new", i).sum() for i, a in worth.items()) / w.limit


def empg(w: World) -> Tensor:
    """GRPO with A exp(-k h) / mean of that, less its mean; a completion of one turn has no next one."""
    advantages, turns = standardised(paid(w), w), range(w.count)
    entropy = [float(w.of("entropy", i).detach().mean()) for i in turns]
    h = [(e - min(entropy)) / (max(entropy) - min(entropy) + 1e-8) for e in entropy]
    sure = mean(math.exp(-x) for x in h)
    modulated = {i: advantages[i] * math.exp(-h[i]) / sure for i in turns}
    centre = mean(modulated.values())
    return sequence_mean(surrogates(w, {i: a - centre for i, a in modulated.items()}))


def loop(w: World) -> Tensor:
    """Leave-one-out advantages of at least 0.01, clipped at 1 / 1.1 and 1.1."""
    advantages = {i: a for i, a in left_out(paid(w), w).items() if abs(a) >= 0.01}
    return sequence_mean({i: clipped(w, i, a, 1 - 1 / 1.1, 0.1) for i, a in advantages.items()})


def ssp(w: World) -> Tensor:
    """Of its solvers: GRPO clipped at 0.8 and 1.285, and 0.01 of k3."""
    taught = surrogates(w, standardised(paid(w), w), 0.2, 0.285)
    return sequence_mean({i: taught[i] + 0.01 * k3(w, i) for i in taught})


def ssrl(w: World) -> Tensor:
    """GRPO and 0.001 of k3 for R = 0.9 EM + 0.1 F, over the tokens outside of what was found."""
    grammar = [1.0, 0.5 * 1 / 2, 0.5, 0.0, 2 / 3]
    worth = {i: 0.9 * w.rewards[i] + 0.1 * grammar[(i + i // 5) % 5] for i in range(w.count)}
    advantages, kept = standardised(worth, w), {}
    for i in range(w.count):
        inside, learned = False, []
        for token in w.tokens[i, : w.lengths[i]].tolist():
            inside = inside or token == 4
            learned.append(not inside)
            inside = inside and token != 5
        kept[i] = (clipped(w, i, advantages[i]) + 0.001 * k3(w, i))[learned]
    return sum(x.sum() / max(1, len(x)) for x in kept.values()) / w.count


def supo(w: World) -> Tensor:
    """GRPO's clip of standardised rewards, every token alike; here every completion has an answer."""
    return token_mean(surrogates(w, standardised(paid(w), w)))


def swe_rl(w: World) -> Tensor:
    """GRPO and 0.001 of k3; the diffs have 36 characters, of which one wrong digit leaves 35 matching."""
    worth = [1.0, 35 / 36, -1.0, 0.0, 1 / 2, -1.0]
    taught = surrogates(w, standardised({i: worth[(i + i // 5) % 6] for i in range(w.count)}, w))
    return sequence_mean({i: taught[i] + 0.001 * k3(w, i) for i in taught})


def toolrl(w: World) -> Tensor:
    """GRPO of R = 1 for the grammar + 6 S / 6 - 3; with one wrong value of one of two calls S = 1/2 + 1 + 1."""
    worth = [4.0, 1 + 2.5 - 3, 3.0, 1 - 3.0, -3.0, 4.0]
    return sequence_mean(surrogates(w, standardised({i: worth[(i + i // 5) % 6] for i in range(w.count)}, w)))


def tl_training(w: World) -> Tensor:
    """sum w CE / sum w of each call that did not fail: six others to two keys; eleven to one, at most nine; as many."""
    key, weight = {0: (2, 3), 1: (1,), 2: (), 4: ()}, {0: 3.0, 1: 9.0}
    found = []
    for i, keys in key.items():
        weights = [weight[i] if t in keys else 1.0 for t in range(w.lengths[i])]
        found.append(sum(-x * log for x, log in zip(weights, w.of("new", i))) / sum(weights))
    return sum(found) / len(found)
