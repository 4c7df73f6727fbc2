"""Claims: a plan that is committed first, pairs added until they decide, a verdict that follows from them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Cli

from etude.cli.claims import _figures
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.evaluation.pairs import Pair
from etude.runs import claim_runs, claims, plans
from etude.runs.code import text_hash
from etude.runs.plans import Plan, read_plan, to_toml, write_plan

MINE = """
from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo

mine = grpo.replace(
    id="mine",
    claim=Claim(
        statement="What is mine is better.",
        task="compose",
        measures=(Measure(name="pass@1", smallest=0.05), Measure(name="length", role="mechanism", bounds=(0, None))),
        equal=("completions",),
        learned_on="pass@1",
    ),
)
"""
Experiment = Callable[[Sequence[int]], list[Pair]]


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@y", *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[str], None]) -> Path:
    """A repository with a method of one's own, in which one works."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git("init", "-q")
    commit("a method")
    return tmp_path


def commit(about: str) -> None:
    git("add", ".")
    git("commit", "-qm", about)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """An experiment in which mine is better by 0.2 with a deviation of 0.05; which seeds were asked for."""
    return plant(monkeypatch, lambda seed: 0.2 + 0.05 * draw(seed, 1))


def plant(monkeypatch: pytest.MonkeyPatch, gain: Callable[[int], float], budget: float = 64.0) -> list[list[int]]:
    seen: list[list[int]] = []

    def experiment(seeds: Sequence[int]) -> list[Pair]:
        seen.append(list(seeds))
        return [
            Pair(
                seed=seed,
                arm={"pass@1": 0.5 + 0.05 * draw(seed, 0) + gain(seed), "length": 9.0 + draw(seed, 2)},
                baseline={"pass@1": 0.5 + 0.05 * draw(seed, 0), "length": 9.0},
                start={"pass@1": 0.2},
                budgets={"completions": (budget, 64.0)},
            )
            for seed in seeds
        ]

    monkeypatch.setattr("etude.experiments.experiment_of", lambda method: experiment)
    return seen


def draw(seed: int, purpose: int) -> float:
    return float(np.random.default_rng([seed, purpose]).normal())


def planned(cli: Cli) -> Path:
    """The folder of the claim, its plan written and committed."""
    answer = cli("claims", "plan", "mine.py:mine")
    assert answer.code == 0, answer.err
    commit("a plan")
    return Path("claims/mine")


# The plan


def test_a_plan_says_all_that_the_claim_says(tmp_path: Path) -> None:
    claim = Claim(
        statement='It is "better" in every way.',
        bed="language/compose-easy",
        baseline="grpo",
        changes={"optimizer.lr": 1e-3},
        baseline_changes={"minibatches": 4},
        measures=(
            Measure(name="area"),
            Measure(name="last:entropy", role="mechanism", direction="lower", minimum=0.5, bounds=(0, None)),
        ),
        equal=("steps", "completions"),
        sweep={"optimizer.lr": (1e-4, 2e-4), "minibatches": (1, 4)},
        baseline_sweep={"optimizer.lr": (1e-4, 2e-4, 3e-4, 4e-4)},
        paper_effect="+3 points",
        most_seeds=24,
    )
    write_plan(tmp_path, "x", claim)
    again = read_plan(tmp_path)
    assert plans.same(again, Plan("x", claim, plans.recipe_hash(claim)))
    assert again.claim.measures[0] == claim.measures[0]
    assert again.hash == text_hash((tmp_path / "plan.toml").read_text())
    assert to_toml(again) == (tmp_path / "plan.toml").read_text()


@pytest.mark.parametrize(("name", "refused"), [("end:pass@2", False), ("end:pass@8", True), ("area:pass@4", True)])
def test_what_a_bed_has_too_few_samples_for_is_not_planned(tmp_path: Path, name: str, refused: bool) -> None:
    claim = Claim(
        statement="It is better.", bed="language/sums-medium", baseline="grpo",
        measures=(Measure(name="end"), Measure(name=name, role="mechanism")),
    )  # fmt: skip
    if not refused:
        assert write_plan(tmp_path, "mine", claim).is_file()
        return
    with pytest.raises(ConfigError, match=f"measured by {name}, and language/sums-medium takes 2 samples of a problem"):
        write_plan(tmp_path, "mine", claim)
    assert not (tmp_path / "plan.toml").exists()


@pytest.mark.parametrize("learned_on", ["end", None])
@pytest.mark.parametrize("sweep", [None, {}, {"optimizer.lr": [1.0]}])
def test_nothing_and_none_are_told_apart(
    tmp_path: Path, learned_on: str | None, sweep: dict[str, list[float]] | None
) -> None:
    claim = Claim(
        statement="A.", bed="language/compose-easy", baseline="grpo", measures=(Measure(name="end"),),
        learned_on=learned_on, sweep=sweep,
    )  # fmt: skip
    write_plan(tmp_path, "x", claim)
    again = read_plan(tmp_path).claim
    assert (again.learned_on, again.sweep) == (learned_on, sweep)


def test_what_must_come_first_is_said(cli: Cli, project: Path, asked: list[list[int]]) -> None:
    answer = cli("claims", "run", "mine.py:mine")
    assert "There is no claims/mine/plan.toml: write it with `etude claims plan mine`" in answer.sentence
    cli("claims", "plan", "mine.py:mine")
    answer = cli("claims", "run", "mine.py:mine")
    assert "claims/mine/plan.toml must be committed before anything is run" in answer.sentence
    commit("a plan")
    (project / "mine.py").write_text(MINE + "further = 1\n")
    answer = cli("claims", "run", "mine.py:mine")
    assert "mine.py was changed since: commit first" in answer.sentence
    assert asked == []


def test_a_claim_that_moved_needs_another_plan(
    cli: Cli, project: Path, asked: list[list[int]], forget: Callable[[str], None]
) -> None:
    planned(cli)
    (project / "mine.py").write_text(MINE.replace("smallest=0.05", "smallest=0.025"))
    commit("a lower bar")
    forget("mine")
    answer = cli("claims", "run", "mine.py:mine")
    assert "is not what mine.py:mine claims now" in answer.sentence
    assert asked == []


# Pairs and looks


def test_pairs_are_added_until_they_decide(cli: Cli, project: Path, asked: list[list[int]]) -> None:
    folder = planned(cli)
    answer = cli("claims", "run", "mine.py:mine")
    assert answer.code == 0, answer.err
    assert "mine, as published: pairs 1 to 6 of at most 48." in answer.sentence
    assert asked == [list(range(1000, 1006))]
    record = json.loads((folder / "verdict.json").read_text())
    assert record["verdict"] == "held"
    assert record["published"]["pairs"] == 6
    assert record["plan"] == read_plan(folder).hash
    assert len(record["environment"]["commit"]) == 40
    rows = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert [row["pair"]["seed"] for row in rows] == list(range(1000, 1006))
    assert claims.check("mine.py:mine") == []
    shown = cli("claims", "show", "mine.py:mine").out
    assert "Verdict: held." in shown
    assert f"{record['published']['measures']['pass@1']['difference']['value']:+.3g}" in shown
    assert str(folder / "plan.toml") in shown


@pytest.mark.parametrize(
    ("verdicts", "overall", "shown"),
    [
        (("held", "reversed"), "reversed", "second: -3.0 (-4.0 to -2.0)"),
        (("equivalent", "inconclusive"), "equivalent", "first: +1.0 (+0.0 to +2.0)"),
        (("held", "held"), "void", "first: +1.0 (+0.0 to +2.0)"),
    ],
)
def test_the_difference_that_is_shown_is_one_that_decided(verdicts: tuple[str, str], overall: str, shown: str) -> None:
    claim = Claim(
        statement="s", task="compose", setting="x",
        measures=(Measure(name="beside", role="mechanism"), Measure(name="first"), Measure(name="second")),
    )  # fmt: skip
    values = {"beside": (9.0, overall), "first": (1.0, verdicts[0]), "second": (-3.0, verdicts[1])}
    measures = {
        k: {"verdict": v, "smallest": 1, "pairs": 6, "difference": {"value": x, "low": x - 1, "high": x + 1}}
        for k, (x, v) in values.items()
    }  # fmt: skip
    assert _figures({"verdict": overall, "published": {"measures": measures}}, claim) == (shown, 6)


def test_a_claim_that_was_never_run_is_shown_with_what_to_do(cli: Cli, project: Path) -> None:
    shown = cli("claims", "show", "mine.py:mine").out
    assert "Verdict: not run yet." in shown
    assert "No plan yet: `etude claims plan mine.py:mine`." in shown


def test_a_claim_whose_pairs_do_not_decide_yet_says_how_many_there_are(cli: Cli, project: Path) -> None:
    lines = [
        {"tuning": {}},
        *({"setting": "tuned", "pair": {}} for _ in range(6)),
        {"setting": "published", "pair": {}},
    ]
    Path("claims/mine").mkdir(parents=True)
    Path("claims/mine/runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "Verdict: open after 6 tuned and 1 published pairs." in cli("claims", "show", "mine.py:mine").out
    assert claims.check("mine.py:mine") == ["mine.py:mine has no verdict: open after 6 tuned and 1 published pairs."]


def test_a_look_needs_no_plan_and_leaves_nothing(cli: Cli, project: Path, asked: list[list[int]]) -> None:
    answer = cli("claims", "look", "mine.py:mine", "--seeds", "2", "--first", "3")
    assert answer.code == 0, answer.err
    assert asked == [[3, 4]]
    mean = sum(0.5 + 0.05 * draw(s, 0) for s in (3, 4)) / 2
    gain = sum(0.2 + 0.05 * draw(s, 1) for s in (3, 4)) / 2
    row = next(line for line in answer.out.splitlines() if line.startswith("pass@1"))
    assert row.split() == ["pass@1", "0.2", f"{mean:.4g}", f"{mean + gain:.4g}", "0.05"]
    assert "Would be void" not in answer.out
    assert "2 seeds decide nothing." in answer.out
    assert not Path("claims").exists()
    assert not git_status()


def git_status() -> bytes:
    return subprocess.run(["git", "status", "--porcelain"], check=True, capture_output=True).stdout


def test_a_look_says_what_would_be_void(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda seed: 0.0, budget=65.0)
    said = cli("claims", "look", "mine.py:mine", "--seeds", "1").out
    assert "Would be void, the budgets are unequal: The method used 65 completions, its baseline 64" in said
    assert "One seed decides nothing." in said


@pytest.mark.parametrize("which", [("--seeds", "0"), ("--first", "999"), ("--first", "-1")])
def test_a_look_is_at_no_seed_of_a_verdict(
    cli: Cli, project: Path, asked: list[list[int]], which: tuple[str, str]
) -> None:
    assert "A look is at one or more seeds below 1000" in cli("claims", "look", "mine.py:mine", *which).err
    assert asked == []


@pytest.mark.slow
def test_nothing_there_takes_all_pairs_and_is_void_where_the_spread_is_too_wide(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with 48 pairs of a deviation of 0.5 the interval is +-0.18, and 0.05 is a tenth of the deviation
    asked = plant(monkeypatch, lambda seed: 0.5 * (seed % 2) - 0.25)
    folder = planned(cli)
    assert cli("claims", "run", "mine.py:mine").code == 0
    assert [len(seeds) for seeds in asked] == [6, 6, 12, 24]
    record = json.loads((folder / "verdict.json").read_text())
    assert record["verdict"] == "void"
    assert record["published"]["void"][0]["gate"] == "resolution"


def measured(seed: int, arm: float, baseline: float) -> Pair:
    """A pair that comes to about these scores."""
    return Pair(
        seed=seed,
        arm={"pass@1": arm + 0.02 * draw(seed, 0), "length": 9.0 + draw(seed, 2)},
        baseline={"pass@1": baseline + 0.02 * draw(seed, 1), "length": 9.0},
        start={"pass@1": 0.1},
        budgets={"completions": (1.0, 1.0)},
    )


@pytest.mark.slow
def test_an_own_experiment_is_tuned_by_what_must_be_learned(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = 'learned_on="pass@1", sweep={"optimizer.lr": (0.1, 0.2)}, baseline_sweep={"epochs": (1, 2)},'
    (project / "mine.py").write_text(MINE.replace('learned_on="pass@1",', swept))
    commit("swept")
    seen: list[tuple[list[int], dict[str, float], dict[str, float]]] = []

    def experiment(
        seeds: Sequence[int], arm: dict[str, float] | None = None, baseline: dict[str, float] | None = None
    ) -> list[Pair]:
        """Mine is ahead by 0.2; a rate of 0.2 is worth another 0.1, a second epoch 0.4 to the baseline."""
        own, other = arm or {}, baseline or {}
        seen.append((list(seeds), own, other))
        better = {
            "arm": 0.5 + 0.1 * (own.get("optimizer.lr") == 0.2),
            "baseline": 0.3 + 0.4 * (other.get("epochs") == 2),
        }
        return [measured(seed, better["arm"], better["baseline"]) for seed in seeds]

    monkeypatch.setattr("etude.experiments.experiment_of", lambda method: experiment)
    folder = planned(cli)
    answer = cli("claims", "run", "mine.py:mine")
    assert answer.code == 0, answer.err
    record = json.loads((folder / "verdict.json").read_text())
    assert (record["published"]["verdict"], record["tuned"]["verdict"]) == ("held", "reversed")
    assert record["verdict"] == "reversed", "the tuned one decides"
    assert record["tuning"]["best"] == {"arm": {"optimizer.lr": 0.2}, "baseline": {"epochs": 2}}
    confirming = list(range(1000, 1006))
    assert seen == [
        ([0, 1], {"optimizer.lr": 0.1}, {"epochs": 1}),
        ([0, 1], {"optimizer.lr": 0.2}, {"epochs": 2}),
        (confirming, {"optimizer.lr": 0.2}, {"epochs": 2}),
        (confirming, {}, {}),
    ]
    assert claims.check("mine.py:mine") == []


def test_as_published_takes_no_more_pairs_than_what_decides(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undecided as published, it is left so, and what follows is the same with the pairs that were there before."""
    swept = 'learned_on="pass@1", sweep={"optimizer.lr": (0.1, 0.2)},'
    (project / "mine.py").write_text(MINE.replace('learned_on="pass@1",', swept))
    commit("swept")

    def experiment(
        seeds: Sequence[int], arm: dict[str, float] | None = None, baseline: dict[str, float] | None = None
    ) -> list[Pair]:
        gap = {seed: 0.2 if arm else 0.5 * (seed % 2) - 0.25 for seed in seeds}
        return [measured(seed, 0.3 + gap[seed], 0.3) for seed in seeds]

    monkeypatch.setattr("etude.experiments.experiment_of", lambda method: experiment)
    folder = planned(cli)
    assert cli("claims", "run", "mine.py:mine").code == 0
    record = json.loads((folder / "verdict.json").read_text())
    assert [(record[k]["verdict"], record[k]["pairs"]) for k in ("published", "tuned")] == [
        ("inconclusive", 6), ("held", 6)
    ]  # fmt: skip
    assert record["published"]["measures"]["pass@1"]["needed"] > 6
    more = claim_runs.Lines(folder / "runs.jsonl", read_plan(folder))
    more.add("0" * 40, [{"setting": "published", "pair": p.to_json()} for p in experiment(range(1006, 1012))])
    assert claims.derive(more.plan, more)["published"]["pairs"] == 12, "those that are there count"


def test_unequal_budgets_are_void(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda seed: 0.2 + 0.05 * draw(seed, 1), budget=65.0)
    folder = planned(cli)
    assert "void" in cli("claims", "run", "mine.py:mine").out
    record = json.loads((folder / "verdict.json").read_text())
    assert [v["gate"] for v in record["published"]["void"]] == ["budget"]


def test_what_was_stopped_goes_on(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plant(monkeypatch, lambda seed: 0.05 * draw(seed, 1))
    folder = planned(cli)
    assert cli("claims", "run", "mine.py:mine").code == 0
    whole, count = (folder / "runs.jsonl").read_text(), len(asked)
    verdict = json.loads((folder / "verdict.json").read_text())
    kept = "".join(line + "\n" for line in whole.splitlines()[:4])
    (folder / "runs.jsonl").write_text(kept + whole.splitlines()[4][:30])  # killed in the middle of a line
    (folder / "verdict.json").unlink()
    del asked[:]
    assert cli("claims", "run", "mine.py:mine").code == 0
    assert asked[0] == [1004, 1005]
    assert len(asked) == count
    assert (folder / "runs.jsonl").read_text() == whole
    again = json.loads((folder / "verdict.json").read_text())
    assert {**again, "seconds": 0} == {**verdict, "seconds": 0}


def test_a_complete_record_is_left_as_it_is(
    cli: Cli, project: Path, asked: list[list[int]], forget: Callable[[str], None]
) -> None:
    """It rests on the code that its runs were made with, and asking for it again makes no run."""
    verdict = planned(cli) / "verdict.json"
    cli("claims", "run", "mine.py:mine")
    (project / "mine.py").write_text(MINE.replace('id="mine",', 'id="mine",\n    problems=3,'))
    commit("other problems")
    forget("mine")
    before = verdict.read_bytes()
    assert cli("claims", "run", "mine.py:mine").code == 0
    assert verdict.read_bytes() == before
    assert claims.verdict_of("mine.py:mine") == "held (stale)"
    verdict.write_text(verdict.read_text().replace('"verdict": "held"', '"verdict": "reversed"'))
    assert cli("claims", "run", "mine.py:mine").code == 0
    assert claims.recorded("mine.py:mine")["verdict"] == "held"


def test_a_stale_verdict_is_run_again_and_the_old_one_kept(
    cli: Cli, project: Path, asked: list[list[int]], forget: Callable[[str], None]
) -> None:
    folder = planned(cli)
    again = ("claims", "run", "mine.py:mine", "--again")
    assert "has no verdict yet: run it without --again" in cli(*again).sentence
    cli("claims", "run", "mine.py:mine")
    assert "so the same runs would come again" in cli(*again).sentence
    before = [(folder / name).read_bytes() for name in ("plan.toml", "runs.jsonl", "verdict.json")]
    (project / "mine.py").write_text(MINE.replace('id="mine",', 'id="mine",\n    problems=3,'))
    commit("other problems")
    forget("mine")
    del asked[:]
    assert cli(*again).code == 0
    assert asked[0] == [1000, 1001, 1002, 1003, 1004, 1005]
    kept = [(folder / "earlier" / "1" / name).read_bytes() for name in ("plan.toml", "runs.jsonl", "verdict.json")]
    assert kept == before
    assert claims.verdict_of("mine.py:mine") == "held"
    assert claims.check("mine.py:mine") == []


def test_a_number_that_was_changed_is_noticed(cli: Cli, project: Path, asked: list[list[int]]) -> None:
    folder = planned(cli)
    cli("claims", "run", "mine.py:mine")
    path = folder / "runs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["pair"]["arm"]["pass@1"] += 0.1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert claims.check("mine.py:mine") == ["mine.py:mine: published in verdict.json does not follow from runs.jsonl."]


def test_a_verdict_older_than_the_code_says_so(
    cli: Cli, project: Path, asked: list[list[int]], forget: Callable[[str], None]
) -> None:
    planned(cli)
    cli("claims", "run", "mine.py:mine")
    (project / "mine.py").write_text(MINE.replace('id="mine",', 'id="mine",\n    problems=3,'))
    forget("mine")
    assert claims.verdict_of("mine.py:mine") == "held (stale)"
    assert claims.check("mine.py:mine") == ["mine.py:mine: the method changed since the verdict."]


def test_a_verdict_on_the_same_parts_and_values_holds_however_their_code_is_written(
    cli: Cli, project: Path, asked: list[list[int]]
) -> None:
    """A field that came since is at its default in what was written before; one that is gone says something else."""
    path = planned(cli) / "verdict.json"
    cli("claims", "run", "mine.py:mine")
    record = json.loads(path.read_text())
    assert [each["problems"] for each in record["made_of"]["method"]] == [32]
    assert "title" not in record["made_of"]["method"][0]
    record["rests_on"] |= {"method": "edited"}
    del record["made_of"]["method"][0]["renew_after"]
    path.write_text(json.dumps(record))
    assert claims.edited("mine.py:mine", record) == ["method"]
    assert claims.stale("mine.py:mine", record) == []
    assert claims.verdict_of("mine.py:mine") == "held"
    assert "; the code of its method was edited since." in cli("claims", "show", "mine.py:mine").out
    (made,) = record["made_of"]["method"]
    for field, value in (("problems", 33), ("gone", 1), ("optimizer", {"part": "nobody"})):
        other = {**record, "made_of": {"method": [{**made, field: value}]}}
        assert claims.stale("mine.py:mine", other) == ["method"]
    del record["made_of"]
    assert claims.stale("mine.py:mine", record) == ["method"]


@pytest.mark.slow
def test_a_second_plan_keeps_the_first_and_says_why(
    cli: Cli, project: Path, asked: list[list[int]], forget: Callable[[str], None]
) -> None:
    folder = planned(cli)
    cli("claims", "run", "mine.py:mine")
    assert "says the same already" in cli("claims", "plan", "mine.py:mine", "--reason", "again").sentence
    # each of another length: an import looks at a file's size and second
    for number, smallest in enumerate(("0.041", "0.0301", "0.02001"), 1):
        (project / "mine.py").write_text(MINE.replace("smallest=0.05", f"smallest={smallest}"))
        forget("mine")
        assert "give --reason" in cli("claims", "plan", "mine.py:mine").sentence or number == 3
        answer = cli("claims", "plan", "mine.py:mine", "--reason", "The bar was too high.")
        if number == 3:
            assert "was planned 3 times, which is the most" in answer.sentence
            return
        assert answer.code == 0, answer.err
        commit("another plan")
        cli("claims", "run", "mine.py:mine")
        assert sorted(p.name for p in (folder / f"earlier/{number}").iterdir()) == [
            "plan.toml",
            "runs.jsonl",
            "verdict.json",
        ]
        assert 'reason = "The bar was too high."' in (folder / "plan.toml").read_text()
        first = 1000 + 48 * number
        assert asked[-1] == list(range(first, first + 6))


def test_a_plan_on_the_same_bed_takes_seeds_that_no_plan_has_taken(tmp_path: Path) -> None:
    def plan(bed: str, **other: Any) -> int:
        claim = Claim(statement="A.", bed=bed, baseline="grpo", measures=(Measure(name="end"),), **other)
        write_plan(tmp_path, "dapo", claim, reason="Another.")
        (tmp_path / "runs.jsonl").touch()
        return read_plan(tmp_path).first_seed

    assert plan("enumerable/twin", most_seeds=12, runs=4) == 1000
    assert plan("language/compose-easy") == 1000
    assert plan("enumerable/twin") == 1048


def test_a_plan_without_runs_has_taken_no_seeds(tmp_path: Path) -> None:
    claim = Claim(statement="A.", bed="enumerable/twin", baseline="grpo", measures=(Measure(name="end"),))
    write_plan(tmp_path, "dapo", claim)
    write_plan(tmp_path, "dapo", claim)
    assert read_plan(tmp_path).first_seed == 1000


@pytest.mark.slow
def test_runs_of_another_plan_are_refused(cli: Cli, project: Path, asked: list[list[int]]) -> None:
    folder = planned(cli)
    cli("claims", "run", "mine.py:mine")
    plan = folder / "plan.toml"
    plan.write_text(plan.read_text() + "\n# a remark\n")
    commit("a remark")
    assert "belongs to the plan" in cli("claims", "run", "mine.py:mine").sentence


def test_outside_of_a_repository_it_is_refused(cli: Cli, tmp_path: Path, forget: Callable[[str], None]) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    cli("claims", "plan", "mine.py:mine")
    assert "Claims are run from a git repository" in cli("claims", "run", "mine.py:mine").sentence


def test_no_claim_and_nothing_to_run_are_refused(cli: Cli, project: Path) -> None:
    (project / "none.py").write_text(MINE.replace("claim=Claim", "claim=None and Claim").replace("mine", "none"))
    assert "none.py:none makes no claim" in cli("claims", "plan", "none.py:none").sentence
    assert "Say whose claims to run" in cli("claims", "run").sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"measures": ()}, "one to three core measures, got 0"),
        ({"measures": (Measure(name="a"), Measure(name="a", role="mechanism"))}, "measures each thing once"),
        ({"bed": "language/compose-easy", "task": ""}, "has a baseline"),
        ({"task": ""}, "is about a bed, or says the task"),
        ({"sweep": {"a": (1, 2)}, "baseline_sweep": {"b": (1, 2, 3)}}, "over as many settings"),
    ],
)
def test_a_claim_must_make_sense(changes: dict[str, object], sentence: str) -> None:
    whole: dict[str, object] = {"statement": "A.", "task": "compose", "measures": (Measure(name="a"),)}
    with pytest.raises(ConfigError, match=sentence):
        Claim(**{**whole, **changes})  # type: ignore[arg-type]  # some of it is wrong on purpose


# The claim of a second world


@pytest.mark.slow
def test_the_claim_of_a_second_world_has_a_name_and_a_folder_of_its_own(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, claim = claims.claim_of("ppo/control")
    asked: list[Sequence[int]] = []

    def experiment(seeds: Sequence[int]) -> list[Pair]:
        asked.append(seeds)
        baseline = {m.name: 0.5 + 0.02 * draw(seeds[0], 0) for m in claim.measures}
        return [
            Pair(
                seed=seed, arm={k: v + 0.2 + 0.02 * draw(seed, 1) for k, v in baseline.items()}, baseline=baseline,
                start=dict.fromkeys(baseline, 0.0), budgets={"environment_steps": (64.0, 64.0)},
            )
            for seed in seeds
        ]  # fmt: skip

    monkeypatch.setattr(claims, "PLACES", (Path("claims"),))
    monkeypatch.setattr("etude.experiments.experiment_of", lambda method: experiment)
    assert list(claims.claims_in("ppo")) == ["ppo", "ppo/control"]
    assert method is claims.claims()["ppo/control"] and method.worlds == {"control"}
    assert "`etude claims plan ppo/control`" in cli("claims", "run", "ppo/control").sentence
    assert cli("claims", "plan", "ppo/control").code == 0
    commit("a plan")
    assert claims.waiting() == ["ppo/control"]
    answer = cli("claims", "run", "ppo/control")
    assert answer.code == 0, answer.err
    assert asked == [list(range(1000, 1006))]
    record = json.loads(Path("claims/ppo/control/verdict.json").read_text())
    assert (record["method"], record["verdict"]) == ("ppo/control", "held")
    assert set(record["rests_on"]) == {"method", "experiment"}
    assert claims.waiting() == [] and claims.check("ppo/control") == [] and claims.verdict_of("ppo") is None
    assert all(c.claim.statement in cli("methods", "show", "ppo").out for c in claims.claims_in("ppo").values())


# All that is recorded here


@pytest.mark.parametrize("name", claims.claims())
def test_what_a_verdict_rests_on_can_be_named(name: str) -> None:
    """Also of a method that lacks something before it can be trained, a reward model for instance."""
    assert all(claims.rests_on(*claims.claim_of(name)).values())


@pytest.mark.parametrize("name", [n for n in claims.claims() if claims.recorded(n)])
def test_every_verdict_follows_from_its_runs(name: str) -> None:
    folder = claims.folder_of(name)
    plan = read_plan(folder)
    record = claims.recorded(name) or {}
    again = json.loads(json.dumps(claims.derive(plan, claim_runs.Lines(folder / plans.RUNS, plan))))
    assert [k for k in again if not claims.same(record[k], again[k])] == []


def test_a_word_of_a_verdict_is_whole_on_a_narrow_screen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("claims", "show", "qr-dqn").out
    assert "inconclusive" in said and "…" not in said
