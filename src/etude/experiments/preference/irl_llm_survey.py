"""The claim of irl-llm-survey: what small heads on frozen states make of pairs, noisy ones, demonstrations and queries.

Answers are those of the writer of `digest`, so all of their words are in the prompt, and a reader that was fine-tuned
on them is frozen. Each seed draws the pairs and their labels, the demonstrations (of four answers the best one, so that
log p_demonstrations - log p_writer = log 4 + 3 log F(gold) rises with gold), the answers that are chosen from, and the
heads. Arms of a measure differ in what is said of its row below, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from etude.core.episodes import Problem, Segment
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.evaluation.reward_models import best_of_n, pair_accuracy, proxy_gap
from etude.experiments.arms import pairs, started
from etude.experiments.cells import recorded, spread
from etude.learners.queries import d_optimal_pairs, disagreed_pairs, random_pairs
from etude.learners.score_heads import Compared, Feedback, Labelled, ScoreHeads, mean_states
from etude.tasks.language.digest import Digest, copied, gold, words_of

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

TASK, MODEL, WARM, RATE = Digest(), "blank:2x64x4", 300, 2e-3
PAIRS, NOISE, SHOWN, BEST_OF_SHOWN = 2000, 0.3, 1000, 4
"""Pairs, share of them that are turned round in the noisy set, demonstrations, and answers each is the best of."""
TESTED, ANSWERS, CHOSEN = 150, 64, 32
FIRST, EACH, ROUNDS = 60, 60, 3
"""Labels before anything is known, those of a round, and rounds: 240 labels in all."""


class Said(NamedTuple):
    """Answers by the writer: states [P, K, H] and what they are worth [P, K]."""

    states: Tensor
    gold: Tensor


@dataclass(frozen=True)
class World:
    """What a seed draws: pairs and for each whether the first was preferred, demonstrations, answers of the test."""

    pairs: Said
    first: Tensor
    turned: Tensor
    shown: Said
    test: Said

    def compared(self, noisy: bool = False, rows: Tensor | None = None) -> Compared:
        """The pairs (with these numbers) as they were labelled, with or without turned ones."""
        first = self.first ^ (self.turned & noisy)
        kept = torch.arange(len(first)) if rows is None else rows
        places = (~first[kept]).long()
        states = self.pairs.states[kept]
        every = torch.arange(len(kept))
        return Compared(states[every, places], states[every, 1 - places])


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Gold of the best of 32, by feedback; accuracy from as many labels, by who is asked about."""
    with started(TASK, steps=WARM, start=MODEL, changes={"optimizer.lr": RATE}) as reader:
        found = spread(partial(measured, reader.folder), seeds)

    def of(name: str) -> list[float]:
        return [f[name] for f in found]

    arm = {
        "gold, 30 % wrong": of("order, noisy"), "gold from demonstrations": of("demonstrations"),
        "accuracy, D-optimal pairs": of("d-optimal"), "gold, no label wrong": of("order"),
        "accuracy, disagreed pairs": of("disagreed"), "gap, best of 64": of("gap 64"),
    }  # fmt: skip
    baseline = {
        "gold, 30 % wrong": of("pairs, noisy"), "gold from demonstrations": of("writer"),
        "accuracy, D-optimal pairs": of("random"), "gold, no label wrong": of("pairs"),
        "accuracy, disagreed pairs": of("random"), "gap, best of 64": of("gap 4"),
    }  # fmt: skip
    labels = [float(FIRST + ROUNDS * EACH)] * len(seeds)
    return pairs(seeds, arm, baseline, start={"gold, 30 % wrong": of("writer")}, budgets={"labels": (labels, labels)})


def measured(reader: str, seed: int) -> dict[str, float]:
    """All that is measured with a seed."""
    sizes = [WARM, RATE, PAIRS, NOISE, SHOWN, BEST_OF_SHOWN, TESTED, ANSWERS, CHOSEN, FIRST, EACH, ROUNDS]
    return recorded(f"heads {seed}", [repr(TASK), MODEL, *sizes, seed], lambda: _measured(reader, seed))


def _measured(reader: str, seed: int) -> dict[str, float]:
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    world = drawn(LanguagePolicy.load(reader, device="cpu"), seed)
    plain, noisy = world.compared(), world.compared(noisy=True)
    samples = world.shown.states[:, 0]
    best = world.shown.states[torch.arange(len(samples)), world.shown.gold.argmax(1)]
    feedback: dict[str, Feedback] = {
        "pairs": plain, "order": Labelled(plain.better, plain.worse), "pairs, noisy": noisy,
        "order, noisy": Labelled(noisy.better, noisy.worse), "demonstrations": Labelled(best, samples),
    }  # fmt: skip
    said = {name: heads(world, seed).learn(f).mean(world.test.states) for name, f in feedback.items()}
    found = {name: float(best_of_n(scores, world.test.gold, CHOSEN).mean()) for name, scores in said.items()}
    found |= {f"gap {n}": proxy_gap(said["pairs, noisy"], world.test.gold, n) for n in (4, 64)}
    found |= {rule: asked(world, seed, rule) for rule in ("random", "disagreed", "d-optimal")}
    return found | {"writer": float(world.test.gold.mean())}


def heads(world: World, seed: int) -> ScoreHeads:
    """Ten heads that have learned nothing yet."""
    return ScoreHeads(world.pairs.states.flatten(0, 1), seed=seed)


def asked(world: World, seed: int, rule: str) -> float:
    """Pair accuracy on the test from labels that were asked for in rounds, heads being trained anew in each."""
    generator = Stream(seed).split("asked").torch
    chosen = random_pairs(FIRST, PAIRS, generator)
    one, other = world.pairs.states.unbind(1)
    for _ in range(ROUNDS):
        left = torch.ones(PAIRS, dtype=torch.bool).index_fill(0, chosen, False).nonzero()[:, 0]
        if rule == "random":
            new = random_pairs(EACH, len(left), generator)
        else:
            now = heads(world, seed).learn(world.compared(rows=chosen))
            margins = now(one[left]) - now(other[left])
            new = (
                disagreed_pairs(margins, EACH) if rule == "disagreed"
                else d_optimal_pairs((one - other)[left] / now.scale, margins.mean(0).sigmoid(), EACH)
            )  # fmt: skip
        chosen = torch.cat([chosen, left[new]])
    learned = heads(world, seed).learn(world.compared(rows=chosen))
    return pair_accuracy(learned.mean(world.test.states), world.test.gold)


# What a seed draws


def drawn(reader: LanguagePolicy, seed: int) -> World:
    """Pairs with labels, demonstrations and the answers of the test."""
    pool, test, place = TASK.problems("train"), TASK.problems("test"), Stream(seed).split("place").numpy
    order = place.permutation(len(pool))[: PAIRS + SHOWN].tolist()
    compared = written([pool[i] for i in order[:PAIRS]], 2, reader, seed)
    shown = written([pool[i] for i in order[PAIRS:]], BEST_OF_SHOWN, reader, seed)
    chance = (compared.gold[:, 0] - compared.gold[:, 1]).sigmoid()
    uniform = torch.rand(2, PAIRS, generator=Stream(seed).split("labels").torch)
    tested = written([test[i] for i in range(TESTED)], ANSWERS, reader, seed)
    return World(compared, uniform[0] < chance, uniform[1] < NOISE, shown, tested)


def written(problems: Sequence[Problem], count: int, reader: LanguagePolicy, seed: int) -> Said:
    """So many answers by the writer to each problem, as the reader sees them."""
    from etude.policies.written import written as episode

    episodes, worth = [], []
    for problem in problems:
        shown = words_of(problem)
        texts = copied(shown, count, 0.0, Stream(seed).split("answers", problem.id).numpy)
        worth.append([gold(shown, text) for text in texts])
        asks = [[Segment("user", str(problem.prompt)), Segment("assistant", text)] for text in texts]
        episodes += [episode(problem, segments, 0, reader) for segments in asks]
    return Said(mean_states(reader, episodes).view(len(problems), count, -1), torch.tensor(worth))
