"""The claim of COS(M+O)S: a search against as many tokens of samples, and what is told at once after ORPO on its pairs.

All seeds begin from one policy that wrote stories for some supervised steps. Each draws its rounds and its searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs, started, variant
from etude.experiments.cells import Cell, spread, trained
from etude.methods.preference.cosmos_mcts import UCT, CuriousValue
from etude.planners.search import BestOf
from etude.tasks.language.grammar_stories import GrammarStories

if TYPE_CHECKING:
    from etude.evaluation.searched import Searched
    from etude.planners.search import Search
    from etude.policies.language import LanguagePolicy

TASK, MODEL, WARM, ROUNDS, SEARCHED, TOLD = GrammarStories(), "blank:2x64x4@stories", 300, 3, 80, 400
VALUE = CuriousValue(problems=128)
SEARCH = UCT(simulations=60, branch=4, exploration=0.5, guide=VALUE)
CHANGES = {"problems": 48, "optimizer.lr": 2e-4, "experience.search.guide.problems": 128}
TAUGHT = {"problems": 64, "optimizer.lr": 2e-3}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """What stories are worth that are found, and that are told at once."""
    method = variant("cosmos-mcts", CHANGES)
    with started(TASK, steps=WARM, start=MODEL, changes=TAUGHT) as first:
        cells = [Cell("cosmos-mcts", method, TASK, seed, ROUNDS, first.folder) for seed in seeds]
        found = spread(figures, cells)
    names = [{name.partition("/")[2] for name in found[0] if name.startswith(f"{arm}/")} for arm in ("arm", "base")]
    arm, base = (
        {name: [one[f"{arm}/{name}"] for one in found] for name in sorted(measured)}
        for arm, measured in zip(("arm", "base"), names)
    )
    return pairs(seeds, arm, base, start={"gold": [one["start"] for one in found]})


def figures(cell: Cell) -> dict[str, float]:
    """Gold by search and by samples before any round, and by either way of telling afterwards."""
    from etude.policies.language import LanguagePolicy

    before = LanguagePolicy.load(cell.start, device="cpu")
    after = trained(cell)[0].policy
    search, seed = searched(before, SEARCH, cell.seed), cell.seed
    told = {name: searched(policy, BestOf(samples=1), 0, TOLD) for name, policy in (("b", before), ("a", after))}
    count = -(-int(search.tokens.sum()) // int(told["b"].tokens[:SEARCHED].sum()))
    sampled = searched(before, BestOf(samples=count, guide=VALUE), seed)
    quick = searched(after, SEARCH.replace(simulations=SEARCH.simulations // 4), seed)
    return {
        "start": gold(told["b"]), "arm/gold": gold(search), "base/gold": gold(sampled),
        "arm/gold, told at once": gold(told["a"]), "base/gold, told at once": gold(told["b"]),
        "arm/gold, a quarter of the search": gold(quick), "base/gold, a quarter of the search": gold(search),
        "arm/tokens": float(search.tokens.mean()), "base/tokens": float(sampled.tokens.mean()),
    }  # fmt: skip


def searched(policy: LanguagePolicy, search: Search, seed: int, problems: int = SEARCHED) -> Searched:
    """One story for each of the first problems of the test."""
    from etude.evaluation.searched import search_split

    return search_split(policy, TASK, "test", search, problems=problems, seed=seed)


def gold(found: Searched) -> float:
    """The mean of what they are worth."""
    return float(sum(e.reward for e in found.episodes) / len(found.episodes))
