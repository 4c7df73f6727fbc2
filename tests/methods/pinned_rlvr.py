"""The losses of methods for verifiable rewards that compare completions, look at the last layer or bend the loss."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from math import comb

import torch
from pinned_shared import (
    EPSILON,
    centred,
    clipped,
    dapo_scores,
    deviation,
    differing,
    k3,
    left_out,
    likelihoods,
    log_ratio,
    mean,
    paid,
    sequence_mean,
    standardised,
    summed,
    surrogates,
    token_mean,
)  # fmt: skip
from pinned_world import COMMA, PROMPT, RATE, World
from torch import Tensor

# What differs in how completions are compared


def agro(w: World) -> Tensor:
    """R - mean of the others' R, R = r - 0.1 log pi / ref, times -log pi."""
    gain = {i: float((w.of("new", i) - w.of("ref", i)).detach().sum()) for i in range(w.count)}
    return summed(likelihoods(w, left_out({i: r - 0.1 * gain[i] for i, r in paid(w).items()}, w)), w)


def rapid(w: World) -> Tensor:
    weight = {i: min(math.exp(float(log_ratio(w, i).detach())), 2.0) for i in range(w.count)}
    value = {i: mean(weight[j] * w.rewards[j] for j in w.group(i)) for i in range(w.count)}
    return summed(likelihoods(w, {i: weight[i] * (w.rewards[i] - value[i]) for i in range(w.count)}), w)


def pacs(w: World) -> Tensor:
    implicit = {i: log_ratio(w, i) for i in range(w.count)}
    psi, found = left_out(implicit, w), 0.0
    for i in range(w.count):
        own = w.group(i)
        alike = sum(w.solved[j] == w.solved[i] for j in own)
        omega = len(own) / (2 * alike) if alike < len(own) else 1.0
        chance = torch.sigmoid(psi[i])
        found = found - omega * (chance if w.solved[i] else 1 - chance).log() / w.count
    return found


def kimi_k1_5(w: World) -> Tensor:
    """0.2 of the length reward, 1 less for a loop; of the first problem, two completions ended earlier."""
    scores = {}
    for i in range(w.count):
        own = [w.lengths[j] for j in w.group(i)]
        lam = 0.5 - (w.lengths[i] - min(own)) / (max(own) - min(own))
        looped = i == 1  # nine times the same token
        scores[i] = w.rewards[i] + 0.2 * (lam if w.solved[i] else min(0.0, lam)) - float(looped)
    found = 0.0
    for i in range(w.count):
        earlier = [1.0, 0.0] if w.groups[i] == 0 else []
        advantage = scores[i] - mean([scores[j] for j in w.group(i)] + earlier)
        found = found + (advantage - 0.1 * log_ratio(w, i)) ** 2 / (2 * 0.1) / w.count
    return found


def t1(w: World) -> Tensor:
    """Loops, cuts and garbled text cost 1; the KL of all tokens is divided by its deviation over the batch."""
    k = {i: w.of("whole", i) - w.of("ref", i) for i in range(w.count)}
    size = deviation(float(x) for row in k.values() for x in row)
    outcome = {i: r - float(i in {1, 6} | w.cut) for i, r in paid(w).items()}
    scores = {i: outcome[i] - 0.01 * float(k[i].sum()) / size for i in outcome}
    kept = {i: scores[i] for i in differing(outcome, w)}
    bonus = sequence_mean({i: 0.001 * w.of("entropy", i) for i in kept})
    return summed(likelihoods(w, left_out(kept, w)), w) - bonus


def lens(w: World) -> Tensor:
    sure = {i: math.exp(mean(w.of("old", i).tolist())) for i in range(w.count)}
    scores, alpha = {}, {}
    for i in range(w.count):
        own = w.group(i)
        most, right = 2 * max(sure[j] for j in own), mean(w.rewards[j] / sure[j] for j in own)
        hardness = max(1 / right, most) if right else most
        scores[i] = w.rewards[i] - (1 - w.rewards[i]) / len(own) * sure[i] / (hardness - sure[i])
        alpha[i] = 1.0 if right else 0.25
    mixed, failed = standardised(scores, w), centred(scores, w)
    losses = surrogates(w, {i: mixed[i] if alpha[i] == 1 else failed[i] for i in scores})
    return sequence_mean({i: alpha[i] * x for i, x in losses.items()})


def max_at_k(w: World) -> Tensor:
    """All subsets of 4 of a problem's 5 completions, one by one; a completion's own delta is left to its ratio."""
    delta = {i: min(math.exp(float(log_ratio(w, i).detach())) - 1, 1.0) for i in range(w.count)}
    worth = dict.fromkeys(range(w.count), 0.0)
    for g in set(w.groups):
        own = [i for i in range(w.count) if w.groups[i] == g]
        for chosen in combinations(own, 4):
            best = max(w.rewards[j] for j in chosen)
            for i in chosen:
                worth[i] += (1 + sum(delta[j] for j in chosen if j != i)) * best / comb(len(own), 4)
    teaches = differing(paid(w), w)
    advantages = {i: a if i in teaches else 0.0 for i, a in standardised(worth, w).items()}
    losses = surrogates(w, advantages)
    return sequence_mean({i: x + 0.01 * k3(w, i) for i, x in losses.items()})


def gdro_grpo(w: World) -> Tensor:
    """All problems are in the easiest bin, at score 0.8: their weight is exp(0.65 * 0.8), on advantages up to 5."""
    advantages = standardised(paid(w), w)
    assert max(advantages.values()) > 5
    weighed = {i: math.exp(0.65 * 0.8) * min(max(a, -5.0), 5.0) for i, a in advantages.items()}
    return sequence_mean(surrogates(w, weighed, 0.2, 0.28))


# What looks at the policy's last layer


def residuals(w: World, i: int) -> Tensor:
    """[T, V] onehot(y) - p under the policy that sampled."""
    p = w.sampling[i, : w.lengths[i]].exp()
    return torch.nn.functional.one_hot(w.tokens[i, : w.lengths[i]], p.shape[1]) - p


def oblr_po(w: World) -> Tensor:
    """The others' rewards weighted by |sum_t d_t h_t'|^2."""
    size, advantages = {}, {}
    for i in range(w.count):
        size[i] = float((residuals(w, i).T @ w.hidden[i, : w.lengths[i]]).square().sum())
    for i in differing(paid(w), w):
        others = [j for j in w.group(i) if j != i]
        advantages[i] = w.rewards[i] - sum(size[j] * w.rewards[j] for j in others) / sum(size[j] for j in others)
    return summed(likelihoods(w, {i: advantages.get(i, 0.0) for i in range(w.count)}), w)


def g2rl(w: World) -> Tensor:
    feature = [(residuals(w, i) @ w.head).mean(0) for i in range(w.count)]
    sign = [2 * r - 1 for r in w.rewards]
    nu, scores = {}, {}
    for i in range(w.count):
        others = [j for j in w.group(i) if j != i]
        look = {j: math.exp(sign[j]) for j in others}
        alike = {j: float(torch.cosine_similarity(feature[i], feature[j], dim=0)) ** 2 for j in others}
        nu[i] = max(1 - sum(look[j] * alike[j] for j in others) / sum(look.values()), 0.0)
    for i in range(w.count):
        own = [nu[j] for j in w.group(i)]
        scores[i] = min(max(sign[i] * (1 + (nu[i] - min(own)) / (max(own) - min(own))), -3.0), 3.0)
    return sequence_mean(surrogates(w, standardised(scores, w)))


def capo(w: World) -> Tensor:
    """A step along one token's gradient g = A v h' moves the logits by RATE u, u = A v |h|^2."""
    advantages, found = centred(paid(w), w), {}
    for i, a in advantages.items():
        kept = []
        for t in range(w.lengths[i]):
            h = w.hidden_now[i, t]
            p = (w.head @ h).softmax(0)
            v = torch.nn.functional.one_hot(w.tokens[i, t], len(p)) - p
            u = a * v * (h @ h)
            spread = (p * u**2).sum() - (p @ u) ** 2
            objective = RATE * a * (v @ u) + RATE**2 / 2 * a * ((v @ u) ** 2 - spread)
            policy = RATE**2 / 2 * (v @ u) ** 2
            kept.append(-0.01 <= float(objective) <= 0.01 and float(policy) <= 1e-4)
        losses = clipped(w, i, a)
        found[i] = losses[torch.tensor(kept)].sum() / max(1, sum(kept)) / w.count
    return sum(found.values())


# What differs in the loss


def rpg_kl(w: World) -> Tensor:
    """URKL with beta 1e-4: W = w (A - beta log w); which tokens still teach goes by the sign of W."""
    found = {}
    for i, a in centred(dapo_scores(w), w).items():
        terms = []
        for new, old in zip(w.of("new", i), w.of("old", i)):
            ratio = math.exp(float(new.detach() - old))
            weight = ratio * (a - 1e-4 * math.log(ratio))
            teaches = ratio < 1.28 if weight >= 0 else 0.8 < ratio < 10
            terms.append(-weight * (new if teaches else new.detach()))
        found[i] = torch.stack(terms)
    return token_mean(found)


def hpt(w: World) -> Tensor:
    """The mean over problems of Dr. GRPO's loss without a clip, or of imitation where nothing was right."""
    found, advantages, problems = 0.0, centred(paid(w), w), sorted(set(w.groups))
    for g in problems:
        rows = [i for i in range(w.count) if w.groups[i] == g]
        own = [i for i in rows if i not in w.written]
        if any(w.solved[i] for i in own):
            for i in own:
                rho = (w.of("new", i) - w.of("old", i)).exp()
                each = -rho * advantages[i] - 0.001 * w.of("entropy", i)
                found = found + each.sum() / (len(own) * w.limit) / len(problems)
        else:
            (shown,) = (i for i in rows if i in w.written)
            found = found - w.of("new", shown).mean() / len(problems)
    return found


def ghpo(w: World) -> Tensor:
    """GRPO's clip of advantages by the sample deviation (n - 1), averaged over all tokens; what is shown is prompt."""
    advantages = {}
    for i, r in paid(w).items():
        own = [w.rewards[j] for j in w.group(i)]
        size = math.sqrt(sum((x - mean(own)) ** 2 for x in own) / (len(own) - 1))
        advantages[i] = (r - mean(own)) / (size + EPSILON) if size else 0.0
    return token_mean(surrogates(w, advantages))


def hgpo(w: World) -> Tensor:
    """A_within of all tokens, A_between of the mode's as well; clip 0.5, 0.001 of the KL to the reference."""
    best, won = {}, {}
    for i in range(w.count):
        modes = [[j for j in w.group(i) if w.info[j]["mode"] == m] for m in (0, 1)]
        own = modes[w.info[i]["mode"]]
        best[i] = float(i == min(own, key=lambda j: (-w.rewards[j], w.lengths[j], j)))
        think, direct = (mean(w.rewards[j] for j in rows) for rows in modes)
        won[i] = float((think > direct + 0.2) == (w.info[i]["mode"] == 0))
    within, between = standardised(best, w), standardised(won, w)
    losses = {}
    for i in range(w.count):
        credit = [within[i] + between[i] * (t < w.info[i]["mode_tokens"]) for t in range(w.lengths[i])]
        losses[i] = clipped(w, i, torch.tensor(credit, dtype=torch.float64), 0.5, 0.5)
    return sequence_mean(losses) + sequence_mean({i: 0.001 * k3(w, i) for i in range(w.count)})


def critique_grpo(w: World) -> Tensor:
    """-rho A of attempts, -p / (p + 0.1) A of mended ones, A = r - mean r of all; less 0.001 of the entropy."""
    losses = {}
    for i, a in centred(paid(w), w).items():
        p = w.of("new", i).exp()
        losses[i] = -a * (p / (p + 0.1) if i in w.elsewhere else (w.of("new", i) - w.of("old", i)).exp())
    return summed(losses, w) - 0.001 * summed({i: w.of("entropy", i) for i in losses}, w)


def relift(w: World) -> Tensor:
    """-rho A, A = r - mean r, without a clip; less 0.001 of the entropy. Problems that are never solved have A = 0."""
    losses = {i: -(w.of("new", i) - w.of("old", i)).exp() * a for i, a in centred(paid(w), w).items()}
    return summed(losses, w) - 0.001 * summed({i: w.of("entropy", i) for i in losses}, w)


def relift_tuning(w: World) -> Tensor:
    """The mean over all tokens of worked answers of -log pi - 0.001 H."""
    return token_mean({i: -w.of("new", i) - 0.001 * w.of("entropy", i) for i in range(w.count)})


def rlp(w: World) -> Tensor:
    """What thoughts tell (`judged`, by a judge here) against the mean of the others; on a thought's tokens alone."""
    told, losses = w.notes["judged"], {}
    for i in range(w.count):
        others = [told[j] for j in w.group(i) if j != i]
        losses[i] = clipped(w, i, told[i] - mean(others), 0.2, 0.2)
    return sequence_mean(losses)


def sasr(w: World) -> Tensor:
    """GRPO and 0.04 of k3."""
    advantages = standardised(paid(w), w)
    return sequence_mean({i: x + 0.04 * k3(w, i) for i, x in surrogates(w, advantages).items()})


def memory_r_plus(w: World) -> Tensor:
    """GRPO on r + exploit; all problems are asked alike, and one success, b=3, is known of them."""

    def pieces(text: str) -> Counter[str]:
        framed = chr(1) + text + chr(2) * 2
        return Counter(framed[i : i + 3] for i in range(len(framed) - 2))

    def size(text: str) -> float:
        return math.sqrt(sum(n * n for n in pieces(text).values()))

    def raw(i: int) -> float:
        one, other = pieces(w.text(i)), pieces("b=3")
        cosine = sum(n * other[k] for k, n in one.items()) / size(w.text(i)) / size("b=3")
        return -math.sqrt(max(0.0, 2 - 2 * cosine))

    low, high = (end(map(raw, range(w.count))) for end in (min, max))
    scores = {i: r + (raw(i) - low) / (high - low + 1e-8) for i, r in paid(w).items()}
    return sequence_mean(surrogates(w, standardised(scores, w)))


def r3l(w: World) -> Tensor:
    advantages = {}
    compared = {i: w.rewards[i] for i in range(w.count) if i not in w.imitated}
    for i, a in centred(compared, w).items():
        advantages[i] = 3 * a if a >= 0 else a
    advantages |= {i: 1.0 for i in range(w.count) if i in w.imitated}
    return token_mean({i: x / 2 for i, x in likelihoods(w, advantages).items()})


def rlanything(w: World) -> Tensor:
    """A step earns the outcome, +1 or -1, and the mean of its three verdicts; solved between 1/8 and 7/8."""
    earned, place = {}, {}
    for i in differing({i: float(s) for i, s in enumerate(w.solved)}, w):
        tokens = w.tokens[i, : w.lengths[i]].tolist()
        ends = [t for t, token in enumerate(tokens) if token == COMMA or t == len(tokens) - 1]
        place[i] = [sum(e < t for e in ends) for t in range(len(tokens))]
        verdicts = w.notes["verdicts"][i]
        earned[i] = [(1.0 if w.solved[i] else -1.0) + mean(verdicts[e]) for e in ends]
    found = {}
    for i, own in earned.items():
        credit = []
        for k, value in enumerate(own):
            compared = [earned[j][k] for j in w.group(i, earned) if len(earned[j]) > k]
            size = deviation(compared)
            credit.append((value - mean(compared)) / size if size > 1e-6 else 0.0)
        each = clipped(w, i, torch.tensor([credit[k] for k in place[i]], dtype=torch.float64))
        found[i] = each + 0.01 * k3(w, i)
    return sequence_mean(found)


def covariances(w: World, advantages: dict[int, float]) -> dict[tuple[int, int], float]:
    """(log pi - mean log pi)(A - mean A) of every token, by row and place."""
    logp = {(i, t): float(x) for i in advantages for t, x in enumerate(w.of("new", i).detach())}
    middle, credit = mean(logp.values()), mean(advantages[i] for i, _ in logp)
    return {(i, t): (x - middle) * (advantages[i] - credit) for (i, t), x in logp.items()}


def kl_cov(w: World) -> Tensor:
    """-rho A, and |log rho| of the hundredth of the tokens, at least one, with the largest covariance."""
    advantages = standardised(differing(paid(w), w), w)
    c = covariances(w, advantages)
    chosen = sorted(c, key=c.__getitem__)[-max(1, int(0.01 * len(c))) :]
    found = {}
    for i, a in advantages.items():
        log_rho = w.of("new", i) - w.of("old", i)
        held = torch.tensor([float((i, t) in chosen) for t in range(len(log_rho))], dtype=torch.float64)
        found[i] = -log_rho.exp() * a + held * log_rho.abs()
    return token_mean(found)


def clip_cov(w: World) -> Tensor:
    """GRPO's clip; of the tokens with 1 < C < 5 that it lets through, a share of 0.005, at least one, has no loss."""
    advantages = standardised(differing(paid(w), w), w)
    c = covariances(w, advantages)

    def stopped(i: int, t: int) -> bool:
        rho = math.exp(float(w.of("new", i)[t].detach() - w.of("old", i)[t]))
        return rho > 1.2 if advantages[i] > 0 else rho < 0.8

    band = [(i, t) for (i, t), x in c.items() if 1 < x < 5 and not stopped(i, t)]
    assert len(band) > 1
    drawn = w.notes["numbers"]
    out = sorted(band, key=lambda at: drawn[at[0]][at[1]])[: max(1, int(0.005 * len(c)))]
    found = {}
    for i, a in advantages.items():
        kept = torch.tensor([float((i, t) not in out) for t in range(w.lengths[i])], dtype=torch.float64)
        found[i] = clipped(w, i, a) * kept
    return token_mean(found)


def nft(w: World, negative: bool = True) -> Tensor:
    """With r the share of right answers, held within [0.02, 0.98], and eps = 1, so that wrong ones have max(x, 1)."""
    found = {}
    scores = differing(paid(w), w)
    for i in scores:
        r = min(max(mean(scores[j] for j in w.group(i, scores)), 0.02), 0.98)
        log_ratio = (w.of("new", i) - w.of("old", i)).clamp(max=10)
        if scores[i] == 1:
            found[i] = -log_ratio * ((1 - r) if negative else 1.0)
        elif negative:
            x = (1 - r * log_ratio.exp()) / (1 - r)
            value = x.detach().clamp(min=1.0)
            found[i] = -(1 - r) * (value.log() + (x - x.detach()) / value)  # the value of max, the slope of x over it
        else:
            found[i] = 0.0 * log_ratio
    return summed(found, w)


def rft(w: World) -> Tensor:
    return nft(w, negative=False)


def dump(w: World) -> Tensor:
    advantages = standardised(paid(w), w)
    return sequence_mean({i: x + 0.001 * k3(w, i) for i, x in surrogates(w, advantages).items()})


def one_shot_rlvr(w: World) -> Tensor:
    """DUMP's loss, less a thousandth of the entropy."""
    return dump(w) - sequence_mean({i: 0.001 * w.of("entropy", i) for i in range(w.count)})


def model_task_alignment(w: World) -> Tensor:
    """DAPO's loss of the task's reward alone."""
    return token_mean(surrogates(w, standardised(differing(paid(w), w), w), 0.2, 0.28))


def backtracking_rl(w: World) -> Tensor:
    """GRPO's loss of 0.9 for a right answer and 0.1 for one that was found and not cut."""
    answers = {i: w.text(i).partition("=")[2] for i in range(w.count)}
    scores = {i: 0.9 * r + 0.1 * bool(answers[i] and i not in w.cut) for i, r in paid(w).items()}
    return sequence_mean(surrogates(w, standardised(scores, w)))


def rl_compositionality(w: World) -> Tensor:
    """DAPO's scores, clipped at a fifth on both sides."""
    return token_mean(surrogates(w, standardised(dapo_scores(w), w)))


def rl_compositionality_rft(w: World) -> Tensor:
    """-log pi of right completions, over their tokens."""
    return token_mean(likelihoods(w, {i: 1.0 for i, r in paid(w).items() if r >= 1}))


def o1_roadmap(w: World) -> Tensor:
    """-log pi of the answers that a search settled on, of those the right ones, over their tokens."""
    return token_mean(likelihoods(w, {i: 1.0 for i, r in paid(w).items() if r >= 1 and w.info[i]["chosen"]}))


def qwenlong_l1_phase(w: World) -> Tensor:
    """PPO's clip on 1 for the answer 3 that was not cut, and -1 at the limit: a tenth of it is not gone gradually."""
    answers = {i: w.text(i).partition("=")[2] for i in range(w.count)}
    scores = {i: float(a == "3" and i not in w.cut) - float(w.lengths[i] >= w.limit) for i, a in answers.items()}
    return token_mean(surrogates(w, standardised(differing(scores, w), w)))


def qwenlong_l1_5_phase(w: World) -> Tensor:
    """REINFORCE's over the deviation of a kind; above 0.3 nats only what was better than its group is learned."""
    answers = {i: w.text(i).partition("=")[2] for i in range(w.count)}
    scores = {i: float(a == "3" and i not in w.cut) for i, a in answers.items()}
    spread = {}
    for i in scores:
        kind = [scores[j] for j in scores if w.levels.get(w.groups[j]) == w.levels.get(w.groups[i])]
        spread[i] = deviation(kind) + EPSILON
    advantages = {i: a / spread[i] for i, a in centred(scores, w).items()}
    assert mean(w.of("entropy", i).mean().item() for i in scores) > 0.3 and min(advantages.values()) < 0
    return token_mean(likelihoods(w, {i: max(a, 0.0) for i, a in advantages.items()}))


def rlpt_text(w: World) -> Tensor:
    """GRPO's on 1 for the segment that follows, half of it in the second problem, which is one of the middle."""
    scores = {i: float(w.text(i) == "[b=3]") for i in range(w.count)}
    halved = {i: a * (0.5 if w.groups[i] == 1 else 1.0) for i, a in standardised(scores, w).items()}
    return sequence_mean(surrogates(w, halved))


def over_unlikely(w: World, advantages: dict[int, Tensor]) -> Tensor:
    """PPO's clip and 1e-4 KL, a mean over the tokens that pi_old gave less than 0.9."""
    kept = {i: (w.of("old", i).exp() < 0.9).double() for i in advantages}
    loss = sum(((clipped(w, i, a) + 1e-4 * k3(w, i)) * kept[i]).sum() for i, a in advantages.items())
    left, count = sum(int(k.sum()) for k in kept.values()), sum(map(len, kept.values()))
    assert 0 < left < count
    return loss / left


def spo(w: World) -> Tensor:
    """V of a text: what its fresh completions were paid, on average. One that lost them begins no segment."""
    paid_for: dict[int, list[float]] = {}
    for i in range(w.count):
        if "prefix" in w.info[i]:
            paid_for.setdefault(w.info[i]["prefix"], []).append(w.rewards[i])
    value, advantages = {n: mean(scores) for n, scores in paid_for.items()}, {}
    for i in range(w.count):
        if "prefix" in w.info[i]:
            continue
        at = {place - PROMPT: value[n] for place, n in w.info[i]["prefixes"] if n in value}
        begins = sorted(at)
        worth = [*(at[t] for t in begins), w.rewards[i]]
        segment = [sum(b <= t for b in begins) - 1 for t in range(w.lengths[i])]
        advantages[i] = torch.tensor([worth[k + 1] - worth[k] for k in segment], dtype=torch.float64)
    return over_unlikely(w, advantages)


def spo_tree(w: World) -> Tensor:
    """V of a node is the mean of those below it; nodes worth as much as the one above are left out."""

    def below(i: int | None, group: int) -> list[int]:
        number = -1 if i is None else w.info[i]["node"]
        return [j for j in range(w.count) if w.info[j]["above"] == number and w.groups[j] == group]

    def value(i: int | None, group: int) -> float:
        under = below(i, group)
        return mean(value(j, group) for j in under) if under or i is None else w.rewards[i]

    advantages = {}
    for i in range(w.count):
        above = None if w.info[i]["above"] < 0 else w.info[i]["above"]
        a = value(i, w.groups[i]) - value(above, w.groups[i])
        if abs(a) > 1e-9:
            advantages[i] = torch.full((w.lengths[i] - w.skip[i],), a, dtype=torch.float64)
    assert len(advantages) == w.count - 3
    return over_unlikely(w, advantages)


def deepsearch(w: World) -> Tensor:
    """Score less the mean; on steps before the last, tanh q takes the outcome's place. A wrong loop is left out."""
    scores = {}
    for i in range(w.count):
        if i == 1:  # nine times the same token
            continue
        late = 1.0 if i in w.cut else max(0.0, w.lengths[i] - 7.5) / 2.5
        scores[i] = (1.0 if w.solved[i] else -1.0) - late
    advantages = {}
    for i, a in centred(scores, w).items():
        q = w.info[i].get("worth", [0.0])
        step = w.info[i]["said"]["step"] if "said" in w.info[i] else [0] * w.lengths[i]
        shift = [math.tanh(x) - q[-1] for x in q[:-1]] + [0.0]
        advantages[i] = torch.tensor([a + shift[k] for k in step], dtype=torch.float64)
    return token_mean({i: clipped(w, i, a, 0.2, 0.28) for i, a in advantages.items()})


def sparkle(w: World) -> Tensor:
    """2 for a right answer behind a sign of equality, 1 for one without, -1 for a wrong one; 0.01 of the KL."""
    scores = {i: (2.0 if "=" in w.text(i) and i not in w.cut else 1.0) if w.solved[i] else -1.0 for i in range(w.count)}
    losses = surrogates(w, standardised(scores, w))
    return sequence_mean({i: x + 0.01 * k3(w, i) for i, x in losses.items()})
