"""The loss of every token method, written out from its paper's equation and from nothing of the library.

Each formula takes a `World` and gives the loss of one optimizer step as a scalar, differentiable in `new`, `entropy`
and `values_now`. What a paper treats as a constant is detached.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pinned_agents as agents
import pinned_rlvr as rlvr
import pinned_world as worlds
import torch
from pinned_shared import (
    EPSILON,
    Losses,
    centred,
    clipped,
    dapo_scores,
    deviation,
    differing,
    k3,
    left_out,
    likelihoods,
    mean,
    overlong,
    paid,
    sequence_mean,
    standardised,
    summed,
    surrogates,
    token_mean,
)  # fmt: skip
from pinned_world import COMMA, World
from torch import Tensor

# Foundation


def reinforce(w: World) -> Tensor:
    base = mean(w.rewards)
    return token_mean(likelihoods(w, {i: r - base for i, r in paid(w).items()}))


def sft(w: World) -> Tensor:
    return token_mean({i: -w.of("new", i) for i in range(w.count)})


def gae(w: World, rewards: dict[int, list[float]], lam: float = 0.95) -> dict[int, list[float]]:
    """Undiscounted; the value after the last token is 0, cut or not: the reward has been paid."""
    found = {}
    for i, r in rewards.items():
        v, credit, ahead = [*w.of("values", i).tolist(), 0.0], [], 0.0
        for t in reversed(range(len(r))):
            ahead = r[t] + v[t + 1] - v[t] + lam * ahead
            credit.insert(0, ahead)
        found[i] = credit
    return found


def at_the_end(w: World) -> dict[int, list[float]]:
    return {i: [0.0] * (w.lengths[i] - 1) + [r] for i, r in paid(w).items()}


def actor_and_critic(
    w: World, advantages: dict[int, list[float]], targets: dict[int, list[float]], standard: bool = True
) -> Losses:
    """PPO's surrogate on advantages, standardised over all tokens, and half of half the clipped squared error."""
    every = [a for row in advantages.values() for a in row]
    base, size = (mean(every), deviation(every)) if standard else (0.0, 1.0)
    found = {}
    for i, row in advantages.items():
        found[i] = clipped(w, i, torch.tensor([(a - base) / size for a in row], dtype=torch.float64))
        now, before, goal = w.of("values_now", i), w.of("values", i), torch.tensor(targets[i], dtype=torch.float64)
        moved = now - before
        near = before + torch.where(moved.abs() < 0.2, moved, 0.2 * moved.sign())
        found[i] = found[i] + 0.25 * torch.maximum((now - goal) ** 2, (near - goal) ** 2)
    return found


def returns(w: World, advantages: dict[int, list[float]]) -> dict[int, list[float]]:
    return {i: [a + v for a, v in zip(row, w.of("values", i).tolist())] for i, row in advantages.items()}


def ppo(w: World) -> Tensor:
    advantages = gae(w, at_the_end(w))
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def t_ppo(w: World) -> Tensor:
    """A row that goes on keeps its last value; the critic learns whole rows that ended, by what they were paid."""
    each = {}
    for i in range(w.count):
        v, credit, ahead = w.of("values", i).tolist(), [], 0.0
        v.append(v[-1] if i in w.going else 0.0)
        r = [0.0] * (len(v) - 2) + [0.0 if i in w.going else w.rewards[i]]
        for t in reversed(range(len(r))):
            ahead = r[t] + v[t + 1] - v[t] + 0.95 * ahead
            credit.insert(0, ahead)
        each[i] = credit
    every = [a for row in each.values() for a in row]
    base, size = mean(every), deviation(every)
    losses = {
        i: clipped(w, i, torch.tensor([(a - base) / size for a in row], dtype=torch.float64)) for i, row in each.items()
    }
    ended = [i for i in range(w.count) if i not in w.going]
    error = sum(((w.values_now[i, : w.lengths[i]] - w.rewards[i]) ** 2).sum() for i in ended)
    return token_mean(losses) + error / 2 / sum(w.lengths[i] for i in ended)


# Preference


def dpo(w: World) -> Tensor:
    gain = [(w.of("new", i) - w.of("ref", i)).sum() for i in range(w.count)]
    return -sum(torch.nn.functional.logsigmoid(0.1 * (gain[i] - gain[j])) for i, j in better(w)) / 3


def tulu_3_dpo(w: World) -> Tensor:
    """Each log-ratio per token of its own answer, 5 to a nat."""
    gain = [(w.of("new", i) - w.of("ref", i)).sum() / w.lengths[i] for i in range(w.count)]
    return sum((1 + (-5 * (gain[i] - gain[j])).exp()).log() for i, j in better(w)) / 3


def ipo(w: World) -> Tensor:
    gain = [(w.of("new", i) - w.of("ref", i)).sum() for i in range(w.count)]
    return sum((gain[i] - gain[j] - 5.0) ** 2 for i, j in better(w)) / 3


def simpo(w: World) -> Tensor:
    gain = [w.of("new", i).mean() for i in range(w.count)]
    return -sum(torch.nn.functional.logsigmoid(2 * gain[i] - 2 * gain[j] - 1) for i, j in better(w)) / 3


def orpo(w: World) -> Tensor:
    p = [w.of("new", i).mean().exp() for i in range(w.count)]
    odds = [x / (1 - x) for x in p]
    each = (-p[i].log() - 0.1 * torch.nn.functional.logsigmoid((odds[i] / odds[j]).log()) for i, j in better(w))
    return sum(each) / 3


def rebel(w: World) -> Tensor:
    """All pairs of a problem; -1 for what was cut, and a twentieth of the distance from the reference is paid."""
    scores = {i: -1.0 if i in w.cut else w.rewards[i] for i in range(w.count)}
    worth = {i: r - 0.05 * float((w.of("old", i) - w.of("ref", i)).sum()) for i, r in scores.items()}
    gain = {i: (w.of("new", i) - w.of("old", i)).sum() for i in worth}
    return of_pairs(w, lambda i, j: (gain[i] - gain[j] - (worth[i] - worth[j])) ** 2)


def appraised() -> World:
    """One scored answer of each prompt; what the reference is worth on prompts is in `notes`."""
    world = World(range(8), [3, 5, 4, 2, 6, 1, 2, 8], [0.3, -0.5, 1.25, 0.0, 3.0, 0.5, 2.0, -1.0], written=range(8))
    world.notes["values"] = [-0.2, -1.0, 0.75, 0.5, 1.0, 0.5, -1.0, -0.5]
    return world


def a_lol_offline(w: World) -> Tensor:
    """The advantage, at least 0, times the whole answer's ratio to the reference between 0.1 and 1.9, as a constant."""
    losses = {}
    for i in range(w.count):
        ratio = math.exp(float((w.of("new", i) - w.of("ref", i)).sum().detach()))
        losses[i] = -min(max(ratio, 0.1), 1.9) * max(0.0, w.rewards[i] - w.notes["values"][i]) * w.of("new", i)
    return token_mean(losses)


def candidates() -> World:
    """Answers of which two to the first problem are equal; of the last problem none passes its tests."""
    world = plain(rewards=[1.5, 0.0, 1, -1, 1.5, 0.0, 1.25, 2, -0.5, 1, 0.5, 0, 0, -1, 0.5])
    world.said = list("abcdaabcdeabcde")
    return world


def perfrl(w: World) -> Tensor:
    """Pairs in the wrong order by the mean log-probability of tokens, and the best's likelihood; equal answers once."""
    each = []
    for problem in sorted(set(w.groups)):
        rows = [i for i in range(w.count) if w.groups[i] == problem]
        rows = [i for i in rows if w.said[i] not in [w.said[j] for j in rows if j < i]]
        p = {i: w.of("new", i).sum() / w.lengths[i] for i in rows}
        ranked = sum(torch.relu(p[i] - p[j]) for i in rows for j in rows if w.rewards[i] < w.rewards[j])
        best = max(rows, key=lambda i: w.rewards[i])
        each.append(ranked - (w.of("new", best).sum() if w.rewards[best] >= 1 else 0.0))
    assert len(rows) == 5 and w.said[4] == w.said[0]
    return sum(each) / len(each)


def compared() -> World:
    """Scores of which some are equal."""
    return plain(rewards=[3.0, 1, 2, 0.5, 0.5, 0.0, 1, 4, 1, 2, 0.25, 0, 0, -1, 0.5])


def brpo(w: World) -> Tensor:
    """Each completion against the one of its problem that was drawn; a problem of a sum beyond 0.6 G is left out."""
    signs = {}
    for problem in sorted(set(w.groups)):
        rows = [i for i in range(w.count) if w.groups[i] == problem]
        (other,) = [i for i in rows if w.notes["compared"][i]]
        own = {i: 0.0 if i == other else 1.0 if w.rewards[i] > w.rewards[other] else -1.0 for i in rows}
        if abs(sum(own.values())) / len(rows) <= 0.6 + 1e-6:
            signs |= own
    return sequence_mean({i: clipped(w, i, sign) for i, sign in signs.items()})


def p2r(w: World) -> Tensor:
    """An answer that was not said before against its problem's first, 100 times; what was is worth what it was then."""
    labels: dict[tuple[int, ...], float] = {}
    scores, first = [], {}
    for i, group in enumerate(w.groups):
        said = (group, *w.tokens[i, : w.lengths[i]].tolist())
        if group not in first:
            first[group], labels[said] = w.rewards[i], 0.0
        if said not in labels:
            chance = 1 / (1 + math.exp(first[group] - w.rewards[i]))
            won = sum(u < chance for u in w.notes["people"][i]) / 100
            labels[said] = min(max(math.log(won / (1 - won)), -1.0), 1.0)
        scores.append(labels[said])
    assert len({*scores}) > 5 and w.count > len(labels)
    base = mean(scores)
    return token_mean(likelihoods(w, {i: r - base for i, r in enumerate(scores)}))


def told_twice() -> World:
    """Rewards of several sizes, and an answer that is said twice."""
    world = plain(rewards=[1.0, 0, 1, 0.25, 0, 0, 0.5, 1, 0.5, 0.75, 0.25, 0, 0.5, 0.75, 0])
    world.lengths[6] = world.lengths[8]
    world.tokens[6, : world.lengths[8]] = world.tokens[8, : world.lengths[8]]
    return world


def refuel(w: World) -> Tensor:
    """Two answers at one turn of each dialogue, and what the dialogues came to; those with one that was cut are out."""
    gain = {i: (w.of("new", i) - w.of("old", i)).sum() for i in range(w.count)}
    pairs = [(i, i + 1) for i in range(0, w.count, 2) if not {i, i + 1} & w.cut]
    return sum((gain[i] - gain[j] - (w.rewards[i] - w.rewards[j])) ** 2 for i, j in pairs) / len(pairs)


def copg(w: World) -> Tensor:
    gain = [(w.of("new", i) - w.of("ref", i)).sum() for i in range(w.count)]
    return of_pairs(w, lambda i, j: (w.rewards[i] - w.rewards[j] - 0.1 * (gain[i] - gain[j])) ** 2 / 0.2)


def p3o(w: World) -> Tensor:
    """Each completion against every other of its problem; a twentieth of the distance from the reference is paid."""
    worth = {i: w.rewards[i] - 0.05 * float((w.of("old", i) - w.of("ref", i)).sum()) for i in range(w.count)}
    ratio = {i: (w.of("new", i) - w.of("old", i)).sum().exp() for i in worth}
    each = []
    for i in worth:
        others = [j for j in w.group(i) if j != i]
        terms = []
        for j in others:
            weight = (worth[i] - worth[j]) * ratio[j].detach()
            terms.append(torch.minimum(weight * ratio[i], weight * ratio[i].clamp(0.8, 1.2)))
        each.append(-sum(terms) / len(others))
    return sum(each) / w.count


def inpo(w: World) -> Tensor:
    """Every two answers of a problem are compared once; of equally many wins the last is best and the first worst."""
    drawn, wins = w.notes["preferred"], [0] * w.count
    for i in range(w.count):
        for j in range(i + 1, w.count):
            if w.groups[i] == w.groups[j]:
                chance = 1 / (1 + math.exp(-(w.rewards[i] - w.rewards[j]) / 0.25))
                wins[i if drawn[i, j] < chance else j] += 1
    each = []
    for problem in sorted(set(w.groups)):
        rows = [(wins[i], i) for i in range(w.count) if w.groups[i] == problem]
        best, worst = max(rows)[1], min(rows)[1]
        gain = [(w.of("new", i) - w.of("ref", i) / 3 - 2 * w.of("old", i) / 3).sum() for i in (best, worst)]
        each.append((gain[0] - gain[1] - 1 / 0.6) ** 2)
    return sum(each) / len(each)


def of_pairs(w: World, loss: Callable[[int, int], Tensor]) -> Tensor:
    """The mean over problems of the mean over all pairs of their rows."""
    each = []
    for problem in sorted(set(w.groups)):
        rows = [i for i in range(w.count) if w.groups[i] == problem]
        each.append(sum(loss(i, j) for i in rows for j in rows if i < j) / (len(rows) * (len(rows) - 1) / 2))
    return sum(each) / len(each)


def reward_model(w: World) -> Tensor:
    last = [w.of("values_now", i)[-1] for i in range(w.count)]
    return -sum(torch.nn.functional.logsigmoid(last[i] - last[j]) for i, j in better(w)) / 3


def irl_llm_survey(w: World) -> Tensor:
    """Cross-entropy of answers that are paid more than 1/2 and of the others, by the last value as log-odds."""
    last = [w.of("values_now", i)[-1] for i in range(w.count)]
    odds = [value.sigmoid() if w.rewards[i] > 0.5 else 1 - value.sigmoid() for i, value in enumerate(last)]
    return -sum(x.log() for x in odds) / w.count


def goal_conditioned_rm(w: World) -> Tensor:
    """And half the contrast of states of each pair, whose places are drawn as shares of the answers."""

    def states(row: int, shares: list[float]) -> list[Tensor]:
        return [w.hidden_now[row, int(u * w.lengths[row])] for u in shares]

    def likeness(some: list[Tensor], goals: list[Tensor]) -> float:
        cosines = [torch.cosine_similarity(a, b, dim=0) for a in some for b in goals]
        return mean(float(c.sigmoid()) for c in cosines)

    total, m = reward_model(w), 16
    for (i, j), u in zip(better(w), w.notes["goals"]):
        two = list(zip(u[:m], u[m : 2 * m]))
        near = likeness(states(i, [min(x) for x in two]), states(i, [max(x) for x in two]))
        far = likeness(states(i, u[2 * m : 3 * m]), states(j, u[3 * m :]))
        total = total + 0.5 * (-math.log(near) - math.log(1 - far)) / 3
    return total


def better(w: World) -> list[tuple[int, int]]:
    rows = range(w.count)
    return [(i, j) for i in rows for j in rows if w.groups[i] == w.groups[j] and w.rewards[i] > w.rewards[j]]


def ppo_rlhf(w: World) -> Tensor:
    rewards = {}
    for i in range(w.count):
        rewards[i] = (-0.02 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += 0.2 * w.notes["judged"][i]
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def spa_rl(w: World) -> Tensor:
    """PPO of alpha c + beta g at the end, whatever was paid, and 0.02 of the distance; turns and episodes are one."""
    rewards = {}
    for i in range(w.count):
        rewards[i] = (-0.02 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += w.notes["judged"][i] + 0.5 * w.info[i]["said"]["valid"]
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def tl_training_ppo(w: World) -> Tensor:
    """PPO, nothing standardised, on the table of errors at the end and 0.4 of the distance all along."""
    table, rewards = [1.0, -0.25, -0.5, -0.8, -1.8, -1.5, -2.0], {}
    for i in range(w.count):
        rewards[i] = (-0.4 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += table[(i + i // 5) % 7]
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages), standard=False))


def spa_estimator(w: World) -> Tensor:
    """Every token of the world is one that ends a turn: their values add up to what was paid."""
    return sum((w.of("values_now", i).sum() - w.rewards[i]) ** 2 for i in range(w.count)) / w.count


def rl_perspective_llm(w: World) -> Tensor:
    """PPO on how much likelier a discriminator of prefixes finds each sampled text to be shown, token by token."""

    def even(x: Tensor) -> Tensor:
        return x / float(x.square().mean()) ** 0.5

    told, rewards = w.notes["discriminator"], {}
    for i in (i for i in range(w.count) if i not in w.written):
        odds, worth = 0.0, [math.log(2)]
        for t in range(w.lengths[i]):
            state, action = even(w.hidden[i, t]), even(w.head[w.tokens[i, t]])
            inner = torch.cat([state, state * action]) @ told["in"] + told["bias"]
            odds += float(inner.clamp(min=0) @ told["out"] + told["offset"][0])
            worth.append(math.log(1 + math.exp(odds)))
        away = (w.of("old", i) - w.of("ref", i)).tolist()
        rewards[i] = [b - a - 0.02 * d for a, b, d in zip(worth, worth[1:], away)]
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def away_from_start(w: World, price: float = 0.001) -> dict[int, list[float]]:
    """What was paid, and a share, a thousandth if not given, of the distance of each learned token."""
    rewards = {i: (-price * (w.of("old", i) - w.of("ref", i))).tolist() for i in range(w.count)}
    for i in rewards:
        rewards[i][-1] += w.rewards[i]
    return rewards


def rlgf(w: World) -> Tensor:
    """Tokens of a guide are none of the world's learned ones."""
    rewards = away_from_start(w)
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def hinted() -> World:
    """Keywords of x that a sign closes, and a reference that has two of them in a row."""
    world = plain()
    world.spelled = {COMMA: ";"}
    world.notes["listed"] = {"reference": "xx"}
    return world


def directional_stimulus_prompting(w: World) -> Tensor:
    """The sum of what keywords are paid, each where it is closed, and PPO of all of it. Nothing was masked."""
    rewards = away_from_start(w, 0.005)
    for i in range(w.count):
        begin, longest = 0, 0
        for t, token in enumerate(w.tokens[i, : w.lengths[i]].tolist()):
            if token == COMMA:
                new = longest < t - begin <= 2
                rewards[i][t] += 1.0 if new else -0.2
                begin, longest = t + 1, max(longest, t - begin)
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def selective_token_generation(w: World) -> Tensor:
    """Each text by its own length: reward less value for its tokens, and the squared error of values."""
    losses = {}
    for i in range(w.count):
        credit = w.rewards[i] - w.of("values", i)
        losses[i] = -credit * w.of("new", i) + (w.of("values_now", i) - w.rewards[i]) ** 2
    return sequence_mean(losses)


def rlgf_apart(w: World) -> Tensor:
    """The same, with a critic that is a network of its own."""
    return apart(w, away_from_start(w))


def ppo_max(w: World) -> Tensor:
    """Judged scores on the scale of all of them, cut; a twentieth of the distance is paid; a critic by itself."""
    judged = w.notes["judged"]
    base, size = mean(judged), deviation(judged)
    rewards = {i: (-0.05 * (w.of("old", i) - w.of("ref", i))).tolist() for i in range(w.count)}
    for i in rewards:
        rewards[i][-1] += max(-10.0, min(10.0, (judged[i] - base) / size))
    return apart(w, rewards)


def rto(w: World) -> Tensor:
    """What the world calls `new` is also what a model of DPO says."""
    judged = w.notes["judged"]
    base, size = mean(judged), deviation(judged)
    rewards = {}
    for i in range(w.count):
        shaped = (0.05 * (w.of("new", i).detach() - w.of("ref", i))).clamp(-0.05, 0.05)
        rewards[i] = (shaped - 0.01 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += max(-10.0, min(10.0, (judged[i] - base) / size))
    return apart(w, rewards)


def calibrated(w: World) -> dict[int, float]:
    """Of every fourth row, the worked answer of its problem, it is 1/2."""
    judged = w.notes["judged"]
    return {i: 1 / (1 + math.exp(judged[i // 4 * 4 + 3] - judged[i])) for i in range(w.count)}


def away(w: World, policy: str, i: int) -> float:
    """Nats over what is allowed."""
    return float((w.of(policy, i) - w.of("ref", i)).sum().detach()) / 8


def cgpo(w: World) -> Tensor:
    """What is refused is worth 0; worked answers are no part of the step."""
    own = [i for i in range(w.count) if i % 4 < 3]
    chance, refused = calibrated(w), w.notes["refused"]
    worth = {i: 0.0 if i in refused else chance[i] * max(0.0, 1 - away(w, "old", i)) for i in own}
    base = mean(worth.values())
    return -sum((worth[i] - base) * w.of("new", i).sum() for i in own) / len(own)


def cgpo_pairs(w: World) -> Tensor:
    """The best accepted against the worst refused, or accepted where none is refused; a problem may have neither."""
    judged, total = w.notes["judged"], torch.zeros((), dtype=torch.float64)
    for first in range(0, w.count, 4):
        own = range(first, first + 3)
        good = sorted((i for i in own if i not in w.notes["refused"]), key=lambda i: judged[i])
        poor = sorted((i for i in own if i in w.notes["refused"]), key=lambda i: judged[i])
        if not good or good[-1:] == (poor or good)[:1]:
            continue
        i, j = good[-1], (poor or good)[0]
        gain = [(w.of("new", k) - w.of("ref", k)).sum() for k in (i, j)]
        total = total - torch.nn.functional.logsigmoid(0.1 * (gain[0] - gain[1])) - w.of("new", i).mean()
    return total / 5


def cgpo_best(w: World) -> Tensor:
    """Of each problem the best that keeps what is asked of it, else the worked answer, as likely as it is now."""
    chance, total = calibrated(w), torch.zeros((), dtype=torch.float64)
    for first in range(0, w.count, 4):
        keeps = [i for i in range(first, first + 3) if i not in w.notes["refused"] and away(w, "old", i) <= 1]
        spare = [i for i in (first + 3,) if i not in w.notes["refused"] and away(w, "new", i) <= 1]
        for i in sorted(keeps, key=lambda k: chance[k])[-1:] or spare:
            total = total - chance[i] * w.of("new", i).sum()
    return total / w.count


def salsa(w: World) -> Tensor:
    """PPO-RLHF's, whatever the reference is."""
    return ppo_rlhf(w)


def pf_ppo(w: World) -> Tensor:
    """The best of each problem by its judge, and one other that was drawn; scores are normalised over all."""
    judged, kept = w.notes["judged"], w.notes["kept"]
    for group in set(w.groups):
        own = [i for i in range(w.count) if w.groups[i] == group]
        best = max(own, key=lambda i: (judged[i], -i))
        assert best in kept and len([i for i in own if i in kept]) == 2
    base, size = mean(judged), deviation(judged)
    rewards = {}
    for i in kept:
        rewards[i] = (-0.01 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += (judged[i] - base) / size
    advantages = gae(w, rewards)
    return token_mean(actor_and_critic(w, advantages, returns(w, advantages)))


def text2grad(w: World) -> Tensor:
    """Of each row the first token that is no comma is good, and the next two together are poor."""
    away, rewards = (w.sampling.exp() * (w.sampling - w.reference)).sum(-1), {}
    for i in range(w.count):
        said = [int(t) == COMMA for t in w.tokens[i, : w.lengths[i]]]
        scores, place = [0.0] * len(said), 0
        good = next((t for t in range(min(6, len(said))) if not said[t]), None)
        if good is not None:
            scores[good], place = 1.0, good + 1
        for t in range(place, min(place + 6, len(said) - 1)):
            if not said[t] and not said[t + 1]:
                scores[t] = scores[t + 1] = -1.0
                break
        rewards[i] = [s - 0.2 * float(k) for s, k in zip(scores, away[i])]
    advantages = gae(w, rewards)
    every = [a for row in advantages.values() for a in row]
    base, size, targets, losses = mean(every), deviation(every), returns(w, advantages), {}
    for i, row in advantages.items():
        losses[i] = clipped(w, i, torch.tensor([(a - base) / size for a in row], dtype=torch.float64))
        before, now, goal = w.of("values", i), w.of("values_now", i), torch.tensor(targets[i], dtype=torch.float64)
        near = torch.minimum(torch.maximum(now, before - 0.2), before + 0.2)
        losses[i] = losses[i] + 0.05 * torch.maximum((now - goal) ** 2, (near - goal) ** 2)
    return token_mean(losses)


def rlprompt(w: World) -> Tensor:
    """Of the values that the world has, as those of the slow copy; what is paid is standardised by problem, times 5."""
    losses = {}
    for i in range(w.count):
        own = [w.rewards[j] for j in w.group(i)]
        paid_here = 5 * (w.rewards[i] - mean(own)) / (deviation(own) + 1e-4)
        v, a = [*w.of("values", i).tolist(), paid_here], w.of("new", i)
        single = [(a[t] - (v[t + 1] - v[t])) ** 2 for t in range(len(a))]
        path = [(a[t:].sum() - (paid_here - v[t])) ** 2 for t in range(len(a))]
        losses[i] = (torch.stack(single) + torch.stack(path)) / 2
    return summed(losses, w)


def apart(w: World, rewards: dict[int, list[float]], lam: float = 0.95, clip: float = 0.2) -> Tensor:
    """PPO's surrogate, and half of the clipped squared error of a critic that is a network of its own."""
    advantages = gae(w, rewards, lam)
    every = [a for row in advantages.values() for a in row]
    base, size = mean(every), deviation(every)
    losses, errors = {}, {}
    for i, row in advantages.items():
        losses[i] = clipped(w, i, torch.tensor([(a - base) / size for a in row], dtype=torch.float64))
        before, now = w.of("values", i), w.of("values_now", i)
        goal = torch.tensor([a + v for a, v in zip(row, before.tolist())], dtype=torch.float64)
        near = torch.minimum(torch.maximum(now, before - clip), before + clip)
        errors[i] = torch.maximum((now - goal) ** 2, (near - goal) ** 2) / 2
    return token_mean(losses) + token_mean(errors)


def tulu_3_rlvr(w: World) -> Tensor:
    """Ten for what is right, less ten for what was cut, a twentieth of each token's distance; no clip of values."""
    rewards = {}
    for i in range(w.count):
        rewards[i] = (-0.05 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += -10.0 if i in w.cut else 10.0 * w.rewards[i]
    return apart(w, rewards, clip=math.inf)


def rlmt(w: World) -> Tensor:
    """GRPO by token on what the answers are worth, a thousandth of the distance and of the entropy beside it."""
    losses = surrogates(w, standardised(dict(enumerate(w.notes["judged"])), w))
    return token_mean({i: x + 0.001 * k3(w, i) - 0.001 * w.of("entropy", i) for i, x in losses.items()})


def rlmt_ppo(w: World) -> Tensor:
    """What an answer is worth is every token's return; a critic by itself, whose step is clipped at a half."""
    judged = {i: [0.0] * (w.lengths[i] - 1) + [r] for i, r in enumerate(w.notes["judged"])}
    return apart(w, judged, lam=1.0, clip=0.5)


def rlmt_dpo(w: World) -> Tensor:
    """Of each problem's completions the best against the worst: of equal ones the last, and the first."""
    judged, losses = w.notes["judged"], []
    gain = [0.1 * (w.of("new", i) - w.of("ref", i)).sum() for i in range(w.count)]
    for problem in sorted(set(w.groups)):
        rows = [i for i in range(w.count) if w.groups[i] == problem]
        best = max(rows, key=lambda i: (judged[i], i))
        worst = min(rows, key=lambda i: (judged[i], i))
        losses.append(-torch.nn.functional.logsigmoid(gain[best] - gain[worst]))
    return sum(losses) / len(losses)


def anchored() -> World:
    """A judge that favours longer answers, and what is shown first."""
    world = plain()
    world.notes["anchor"] = "a=3;"
    return world


def with_hints() -> World:
    """The second problem stands without a hint."""
    world = plain()
    world.notes["hints"] = ["+*", "", "--"]
    return world


def rlad_solver(w: World) -> Tensor:
    """DAPO where there is a hint; without one nothing is paid, and a hundredth of the distance is all there is."""
    bare = {i for i in range(w.count) if not w.notes["hints"][w.groups[i]]}
    scores = differing({i: w.rewards[i] + overlong(w, i) for i in range(w.count) if i not in bare}, w)
    losses = surrogates(w, standardised(scores, w), 0.2, 0.28)
    kept = {i: losses.get(i, 0.0) + 0.01 * k3(w, i) for i in range(w.count) if i in losses or i in bare}
    assert bare and len(kept) == 10
    return token_mean(kept)


def judged_hints() -> World:
    """What is asked about is known; of the second problem no hint helps."""
    world = plain()
    world.notes["listed"] = {"asked_about": "?"}
    world.notes["without"] = [1.0, 6.0, 0.0]
    return world


def rlad_writer(w: World) -> Tensor:
    """RPO: the best hint against the worst by what a solver makes of them, and the best one's likelihood per token."""
    judged, losses = w.notes["judged"], []
    gain = [0.1 * (w.of("new", i) - w.of("ref", i)).sum() for i in range(w.count)]
    for problem in sorted(set(w.groups)):
        rows = [i for i in range(w.count) if w.groups[i] == problem]
        best, worst = max(rows, key=judged.__getitem__), min(rows, key=judged.__getitem__)
        losses.append((1 + (gain[worst] - gain[best]).exp()).log() - w.of("new", best).sum() / w.lengths[best])
    return sum(losses) / len(losses)


def rlad_writer_rft(w: World) -> Tensor:
    """The likelihood of the best hint to each problem, where it is better than none."""
    judged, losses = w.notes["judged"], {}
    for problem, bare in enumerate(w.notes["without"]):
        best = max((i for i in range(w.count) if w.groups[i] == problem), key=judged.__getitem__)
        if judged[best] > bare:
            losses[best] = -w.of("new", best)
    assert len(losses) == 2
    return token_mean(losses)


TOLD = (
    ('<think>1</think>{"scores":{"A":1,"B":2,"C":3},"best-to-worst":["C","B","A"]}', 0.95, (1, 2, 3)),
    ('{"scores":{"A":2,"B":2,"C":2},"best-to-worst":["A","B","C"]}', 0.8, (2, 2, 2)),
    ('<think>{"scores":{"A":5,"B":1},"best-to-worst":["B","A"]}', 0.05 + 0.35 + 0.4 / 3, (5, 1, None)),
    ('<think></think>so {"scores":{"A":2,"B":1,"C":4}}', 0.15 + 0.25 + 0.2, (2, 1, 4)),
    ("nothing", 0.0, (None, None, None)),
)
"""Verdicts on three answers, how well each is formed, and the scores in it."""


def ranked() -> World:
    """Verdicts on a list, turned round by a place from problem to problem."""
    world = plain()
    world.notes["verdicts told"] = [TOLD[(i + i // 5) % 5] for i in range(world.count)]
    world.said = [text for text, *_ in world.notes["verdicts told"]]
    world.notes["listed"] = {"asked": "?", "candidates": ["x", "y", "z"], "targets": [1.0, 2.5, 5.0]}
    return world


def reward_anything(w: World) -> Tensor:
    """A tenth of the form, and nine of what is lost on no pair: a pair weighs 1 and the distance of its targets."""
    targets, worth = w.notes["listed"]["targets"], []
    for _, form, scores in w.notes["verdicts told"]:
        lost, total = 0.0, 0.0
        for a, b in ((0, 1), (0, 2), (1, 2)):  # targets rise
            if scores[a] is not None and scores[b] is not None:
                total += 1 + targets[b] - targets[a]
                lost += (1 + targets[b] - targets[a]) * (0.0, 0.5, 1.0)[
                    (scores[a] >= scores[b]) + (scores[a] > scores[b])
                ]
        worth.append(0.1 * form + (0.9 * (1 - lost / total) if total else 0.0))
    w.rewards = worth
    return grpo(w)


def shown_first(first: str, second: str) -> float:
    """The chance that a judge gives to the first of two answers."""
    return (2 + len(first)) / (3 + len(first) + 2 * len(second))


def pairwise_ppo(w: World) -> Tensor:
    """Chances against the anchor, averaged over both orders; a critic of its own learns what GAE says, unclipped."""
    rewards = {}
    for i in range(w.count):
        forth, back = shown_first(w.text(i), w.notes["anchor"]), shown_first(w.notes["anchor"], w.text(i))
        rewards[i] = (-0.02 * (w.of("old", i) - w.of("ref", i))).tolist()
        rewards[i][-1] += (forth + 1 - back) / 2
    advantages = gae(w, rewards)
    every = [a for row in advantages.values() for a in row]
    base, size = mean(every), deviation(every)
    losses = {
        i: clipped(w, i, torch.tensor([(a - base) / size for a in row], dtype=torch.float64))
        for i, row in advantages.items()
    }
    goals = returns(w, advantages)
    error = sum(((w.of("values_now", i) - torch.tensor(goals[i], dtype=torch.float64)) ** 2).sum() for i in goals)
    return token_mean(losses) + error / 2 / len(every)


# From verifiable rewards: what differs in credit or aggregation alone


def grpo(w: World) -> Tensor:
    return sequence_mean(surrogates(w, standardised(paid(w), w)))


def roll(w: World) -> Tensor:
    """GRPO over the problems whose completions are not all worth the same."""
    scores = paid(w)
    teach = [i for i in scores if len({scores[j] for j in w.group(i)}) > 1]
    losses = surrogates(w, standardised(scores, w))
    return sequence_mean({i: losses[i] for i in teach})


def dr_grpo(w: World) -> Tensor:
    return summed(surrogates(w, centred(paid(w), w)), w)


def dapo(w: World) -> Tensor:
    return token_mean(surrogates(w, standardised(dapo_scores(w), w), 0.2, 0.28))


def gpg(w: World) -> Tensor:
    """Two of three problems teach: 67 % is enough, so all stay, and alpha = 3 / 2."""
    return token_mean(likelihoods(w, {i: 1.5 * a for i, a in centred(paid(w), w).items()}))


def lite_ppo(w: World) -> Tensor:
    size = deviation(w.rewards) + EPSILON
    return token_mean(surrogates(w, {i: a / size for i, a in centred(paid(w), w).items()}))


def maxrl(w: World) -> Tensor:
    scores = paid(w)
    size = {i: mean(scores[j] for j in w.group(i)) + EPSILON for i in scores}
    return sequence_mean(surrogates(w, {i: a / size[i] for i, a in centred(scores, w).items()}))


def rloo(w: World) -> Tensor:
    return summed(likelihoods(w, left_out(paid(w), w)), w)


def remax(w: World) -> Tensor:
    """What a completion is paid less what the greedy one of its problem is."""
    greedy = {w.info[i]["prefix"]: w.rewards[i] for i in range(w.count) if "prefix" in w.info[i]}
    own = [i for i in range(w.count) if "prefix" not in w.info[i]]
    return summed(likelihoods(w, {i: w.rewards[i] - greedy[w.groups[i]] for i in own}), w)


def rl_llm_technical_survey(w: World) -> Tensor:
    """RLOO on a learned score, each token's distance from the reference being paid for."""
    scores = {i: w.notes["judged"][i] - 0.05 * float((w.of("old", i) - w.of("ref", i)).sum()) for i in range(w.count)}
    return summed(likelihoods(w, left_out(scores, w)), w)


def chain_traversal_rl(w: World) -> Tensor:
    base = mean(w.rewards)
    return summed(likelihoods(w, {i: r - base for i, r in paid(w).items()}), w)


def rl_knowledge_traversal(w: World) -> Tensor:
    return grpo(w) + sequence_mean({i: 0.001 * k3(w, i) for i in range(w.count)})


def planning_pg_vs_q(w: World) -> Tensor:
    losses = likelihoods(w, paid(w))
    return summed({i: x + 0.001 * (w.of("ref", i) - w.of("new", i)) ** 2 / 2 for i, x in losses.items()}, w)


def bilevel_mle(w: World) -> Tensor:
    """-1 for a wrong answer, and a hundredth of each token's surprise."""
    scores = {i: (0.0 if w.solved[i] else -1.0) - 0.01 * float(w.of("old", i).sum()) for i in range(w.count)}
    return summed(likelihoods(w, left_out(scores, w)), w)


def forking_tokens(w: World) -> Tensor:
    losses = surrogates(w, standardised(dapo_scores(w), w), 0.2, 0.28)
    every = sorted((float(h) for i in losses for h in w.of("entropy", i).detach()), reverse=True)
    least = every[math.floor(0.2 * (len(every) - 1))]
    return sum((x * (w.of("entropy", i).detach() >= least)).sum() for i, x in losses.items()) / len(every)


def open_rs(w: World) -> Tensor:
    scores = {}
    for i in range(w.count):
        right = w.solved[i] and i not in w.cut
        wave = (1 + math.cos(math.pi * w.lengths[i] / w.limit)) / 2
        form = i not in w.cut and "=" in w.text(i)
        scores[i] = 2 * (0.5 + 0.5 * wave if right else -0.5 - 0.5 * wave) + float(form)
    return sequence_mean(surrogates(w, standardised(scores, w)))


def derl(w: World) -> Tensor:
    """The formula is the one that the outer policy wrote."""
    scores = {}
    for i in range(w.count):
        said = w.text(i)
        marks = (w.solved[i], i not in w.cut and "=" in said, "," in said, "3" in said)
        g = {f"g{k + 1}": float(mark) + 1e-6 for k, mark in enumerate(marks)}
        scores[i] = float(eval(w.notes["formula"], {"__builtins__": {}}, g))  # arithmetic of four names
    return sequence_mean(surrogates(w, standardised(scores, w)))


# Sets of completions


def poly_ppo(w: World) -> Tensor:
    """Six continuations of each state in four random sets of four; the first six tokens get the sets' credit."""
    each = gae(w, at_the_end(w))
    advantages, drawn = {i: list(row) for i, row in each.items()}, w.notes["sets"]
    for state, sets in enumerate(drawn):
        own = [i for i in range(w.count) if w.info[i].get("vine") == state]
        scores = []
        for chosen in sets:
            said = {w.info[own[k]]["signature"] for k in chosen}
            scores.append(mean(w.rewards[own[k]] for k in chosen) * len(said) / len(chosen))
        for k, i in enumerate(own):
            inside = [s - mean(scores) for s, chosen in zip(scores, sets) if k in chosen]
            for t in range(min(6, w.lengths[i]) if inside else 0):
                advantages[i][t] = mean(inside)
    losses = actor_and_critic(w, advantages, returns(w, each))
    for i in losses:
        d = w.of("new", i) - w.of("old", i)
        losses[i] = losses[i] + 0.01 * (d.exp() - d - 1)
    return token_mean(losses)


plain = worlds.plain
FORMULAS: dict[str, tuple[Callable[[], World], Callable[[World], Tensor]]] = {
    "archer": (worlds.said_anew, agents.archer),
    "a-lol-offline": (appraised, a_lol_offline),
    "agro": (plain, rlvr.agro),
    "alpine": (worlds.demonstrations, sft),
    "o1-roadmap": (worlds.settled, rlvr.o1_roadmap),
    "asyncflow": (plain, grpo),
    "roll": (plain, roll),
    "backtracking-rl": (plain, rlvr.backtracking_rl),
    "bilevel-mle": (plain, bilevel_mle),
    "brpo": (compared, brpo),
    "capo": (plain, rlvr.capo),
    "cgpo": (worlds.refused, cgpo),
    "cgpo-best": (worlds.refused, cgpo_best),
    "cgpo-pairs": (worlds.refused, cgpo_pairs),
    "chain-traversal-rl": (plain, chain_traversal_rl),
    "clip-cov": (plain, rlvr.clip_cov),
    "copg": (worlds.scored, copg),
    "cosmos-mcts": (worlds.pairs, orpo),
    "dapo": (plain, dapo),
    "deepsearch": (worlds.searched, rlvr.deepsearch),
    "derl": (plain, derl),
    "dpo": (worlds.pairs, dpo),
    "dr-grpo": (plain, dr_grpo),
    "dump": (plain, rlvr.dump),
    "empg": (plain, agents.empg),
    "forking-tokens": (plain, forking_tokens),
    "critique-grpo": (worlds.mended, rlvr.critique_grpo),
    "g2rl": (plain, rlvr.g2rl),
    "gdro-grpo": (worlds.large_group, rlvr.gdro_grpo),
    "ghpo": (plain, rlvr.ghpo),
    "goal-conditioned-rm": (worlds.pairs, goal_conditioned_rm),
    "gpg": (plain, gpg),
    "grpo": (plain, grpo),
    "hgpo": (worlds.in_modes, rlvr.hgpo),
    "hpt": (worlds.with_demonstrations, rlvr.hpt),
    "inpo": (plain, inpo),
    "ipo": (worlds.pairs, ipo),
    "kimi-k1-5": (worlds.continued, rlvr.kimi_k1_5),
    "kl-cov": (plain, rlvr.kl_cov),
    "irl-llm-survey": (worlds.pairs, irl_llm_survey),
    "lens": (plain, rlvr.lens),
    "lite-ppo": (plain, lite_ppo),
    "loop": (plain, agents.loop),
    "max-at-k": (plain, rlvr.max_at_k),
    "maxrl": (plain, maxrl),
    "memory-r-plus": (plain, rlvr.memory_r_plus),
    "model-task-alignment": (plain, rlvr.model_task_alignment),
    "nft": (plain, rlvr.nft),
    "oblr-po": (plain, rlvr.oblr_po),
    "one-shot-rlvr": (worlds.cooled, rlvr.one_shot_rlvr),
    "open-rs": (worlds.even_lengths, open_rs),
    "orpo": (worlds.pairs, orpo),
    "pacs": (plain, rlvr.pacs),
    "planning-pg-vs-q": (plain, planning_pg_vs_q),
    "poly-ppo": (worlds.vines, poly_ppo),
    "ppo": (plain, ppo),
    "perfrl": (candidates, perfrl),
    "pf-ppo": (plain, pf_ppo),
    "ppo-max": (plain, ppo_max),
    "directional-stimulus-prompting": (hinted, directional_stimulus_prompting),
    "rlgf": (worlds.guided, rlgf),
    "selective-token-generation": (plain, selective_token_generation),
    "rlgf-aggrevated": (worlds.finished, rlgf),
    "rlgf-d2lols": (worlds.guided, rlgf_apart),
    "rlgf-lols": (worlds.guided, rlgf_apart),
    "rlprompt": (plain, rlprompt),
    "rto": (plain, rto),
    "salsa": (plain, salsa),
    "text2grad": (plain, text2grad),
    "ppo-rlhf": (plain, ppo_rlhf),
    "rl-perspective-llm": (worlds.with_demonstrations, rl_perspective_llm),
    "qwenlong-l1-phase": (worlds.cooled, rlvr.qwenlong_l1_phase),
    "qwenlong-l1-5-phase": (worlds.kinds, rlvr.qwenlong_l1_5_phase),
    "r3l": (worlds.retries, rlvr.r3l),
    "rapid": (plain, rlvr.rapid),
    "p2r": (told_twice, p2r),
    "p3o": (plain, p3o),
    "pairwise-ppo": (anchored, pairwise_ppo),
    "rebel": (plain, rebel),
    "refuel": (worlds.futures, refuel),
    "reinforce": (plain, reinforce),
    "relift": (plain, rlvr.relift),
    "reward-model": (worlds.pairs, reward_model),
    "reward-anything": (ranked, reward_anything),
    "rft": (plain, rlvr.rft),
    "rl-compositionality": (plain, rlvr.rl_compositionality),
    "rl-compositionality-rft": (plain, rlvr.rl_compositionality_rft),
    "rl-knowledge-traversal": (plain, rl_knowledge_traversal),
    "rlanything": (plain, rlvr.rlanything),
    "rlad-solver": (with_hints, rlad_solver),
    "rlad-writer": (judged_hints, rlad_writer),
    "rlad-writer-rft": (judged_hints, rlad_writer_rft),
    "rlmt": (plain, rlmt),
    "rlmt-dpo": (plain, rlmt_dpo),
    "rlmt-ppo": (plain, rlmt_ppo),
    "rlp": (worlds.thoughts, rlvr.rlp),
    "remax": (worlds.beside_greedy, remax),
    "rl-llm-technical-survey": (plain, rl_llm_technical_survey),
    "rloo": (plain, rloo),
    "rlpt-text": (worlds.segments, rlvr.rlpt_text),
    "rpg-kl": (plain, rlvr.rpg_kl),
    "sasr": (plain, rlvr.sasr),
    "self-prm": (plain, grpo),
    "sft": (worlds.demonstrations, sft),
    **dict.fromkeys(("ilql", "lmrl-gym", "mc-returns"), (worlds.demonstrations, sft)),  # of the policy, which clones
    "simpo": (worlds.pairs, simpo),
    "sparkle": (worlds.cooled, rlvr.sparkle),
    "spo": (worlds.forked, rlvr.spo),
    "spo-tree": (worlds.nodes, rlvr.spo_tree),
    "ssrl": (worlds.informed, agents.ssrl),
    "ssp": (plain, agents.ssp),
    "supo": (plain, agents.supo),
    "swe-rebench": (worlds.demonstrations, sft),
    "swe-rl": (worlds.patched, agents.swe_rl),
    "t-ppo": (worlds.windows, t_ppo),
    "t1": (worlds.truncated, rlvr.t1),
    "spa-estimator": (worlds.scored, spa_estimator),
    "spa-rl": (worlds.executed_now_and_then, spa_rl),
    "tl-training": (worlds.dialogues, agents.tl_training),
    "tl-training-ppo": (worlds.erring, tl_training_ppo),
    "toolrl": (worlds.called, agents.toolrl),
    "tulu-3-dpo": (worlds.pairs, tulu_3_dpo),
    "tulu-3-rlvr": (plain, tulu_3_rlvr),
}
"""By method: the batch, and the loss on it."""
BETWEEN: dict[str, tuple[Callable[[], World], Callable[[World], Tensor]]] = {
    "ppo-max": (worlds.demonstrations, sft),
    "rlgf-d2lols": (worlds.finished, rlgf_apart),
    "rlgf-lols": (worlds.finished, rlgf_apart),
    "relift": (worlds.demonstrations, rlvr.relift_tuning),
    "sasr": (worlds.demonstrations, sft),
}
"""Of steps that follow another method between the method's own."""
