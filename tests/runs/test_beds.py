"""Beds: recipes that are read strictly, runs that are shared, and what a card says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError, UnknownNameError
from etude.evaluation.gates import Gate
from etude.evaluation.pairs import Pair
from etude.evaluation.verdicts import LOOKS
from etude.runs import beds as module
from etude.runs import tuning
from etude.runs.beds import CONFIRMING, Scores, beds, load_bed, runs_of, start_of
from etude.runs.cards import card_path, doubts, make_card, read_card
from etude.runs.code import code_in
from etude.runs.contest import both
from etude.runs.jobs import run_jobs
from etude.runs.measuring import pairs_of

RECIPE = """
about = "Four prompts, exactly known."
task = "enumerable"
steps = 20
set = { "task.prompts" = 2 }

[test]
every = 5

[sweep]
"optimizer.lr" = [0.001, 0.1]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.mark.slow
def test_every_recipe_can_be_read() -> None:
    assert beds()
    for name in beds():
        bed = load_bed(name)
        assert bed.name == name and bed.steps % bed.test.every == 0
        assert set(bed.goal.splits())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps = 20", "stepz = 20"), "no key of .*small.toml named 'stepz'. Did you mean 'steps'"),
        (("every = 5", "evry = 5"), r"key of .*small.toml, \[test\] named 'evry'"),
        (("steps = 20", "steps = 0"), "small.toml: steps must be"),
        (("steps = 20", ""), "small.toml lacks a key: .*steps"),
        (("every = 5", "every = "), "no TOML"),
        (("[test]\nevery = 5", "test = 5"), r"\[test\] must be a table"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(recipe: str, change: tuple[str, str], message: str) -> None:
    Path(recipe).write_text(RECIPE.replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_bed(recipe)


def test_a_bed_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="enumerable/twin"):
        load_bed("enumerable/twins")


MADE = """
[start]
method = "sft"
model = "blank:1x32"
steps = 3

[made.proxy]
method = "reward-model"
model = "{start}"
steps = 2
set = { "task.size" = 20 }
"""
DIGEST = RECIPE.replace('"enumerable"', '"digest"').replace(
    '"task.prompts" = 2', '"task.slips" = 0.5, "rewards.reward-model.model" = "{proxy}"'
)


@pytest.mark.slow
def test_what_a_bed_makes_once_is_handed_on_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start, then the reward model that begins from it, then the runs that are scored with that; each once."""
    made: list[Any] = []

    def run(jobs: Any, workers: int) -> None:
        for job in jobs:
            if not job.folder.exists():
                made.append(job)
                (job.folder / "checkpoints" / f"step-{job.steps}" / "model").mkdir(parents=True)

    monkeypatch.setattr(module, "run_jobs", run)
    path = tmp_path / "small.toml"
    path.write_text(DIGEST + MADE)
    bed = load_bed(str(path))
    jobs = [*runs_of(bed, "ppo-rlhf", 2, root=tmp_path / "runs"), *runs_of(bed, "rloo", 1, root=tmp_path / "runs")]
    assert [(job.arm, job.steps, job.seed) for job in made] == [("sft", 3, 99), ("reward-model", 2, 99)]
    start, proxy = (str(job.folder / "checkpoints" / f"step-{job.steps}" / "model") for job in made)
    assert made[0].model == "blank:1x32" and made[0].fields == ("task.slips=0.5",)
    assert made[1].model == start and made[1].fields == ("task.slips=0.5", "task.size=20")
    assert len(jobs) == 3
    for job in jobs:
        assert job.model == start and f"rewards.reward-model.model={proxy}" in job.fields
    (plain,) = runs_of(bed, "ghpo", 1, {"second_look.shows.text": "see {}"}, root=tmp_path / "runs")
    assert "second_look.shows.text=see {}" in plain.fields, "an empty place names no run"
    chain = {"runs.middle.set": ["curriculum.run={short}", "rewards.reward-model.model={proxy}"]}
    (phases,) = runs_of(bed, "qwenlong-l1", 1, chain, root=tmp_path / "runs")
    told = f"runs.middle.set=curriculum.run={{short}},rewards.reward-model.model={proxy}"
    assert told in phases.fields, "a run of the recipe is left for the recipe"
    with pytest.raises(UnknownNameError, match="no run of a bed named 'prox'"):
        runs_of(bed, "rloo", 1, {"rewards.reward-model.model": "{prox}"}, root=tmp_path / "runs")


@pytest.mark.slow
def test_what_is_made_once_may_have_a_task_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that the bed sets of its own task are not told to another one's run."""
    made: list[Any] = []

    def run(jobs: Any, workers: int) -> None:
        (job,) = jobs
        made.append((job.task, job.fields))
        (job.folder / "checkpoints" / f"step-{job.steps}" / "model").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(module, "run_jobs", run)
    path = tmp_path / "small.toml"
    path.write_text(DIGEST + MADE.replace("steps = 3", 'steps = 3\ntask = "facts"\nset = { "task.words" = 0.0 }'))
    module.model_of(load_bed(str(path)), "proxy", tmp_path / "runs")
    assert made == [("facts", ("task.words=0.0",)), ("digest", ("task.slips=0.5", "task.size=20"))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{proxy}", "{prox}"), "no run of a bed named 'prox'. Did you mean 'proxy'"),
        (('model = "{start}"', 'model = "{proxy}"'), r"\[made.proxy\] waits for itself"),
        (("steps = 2\nset", "stepz = 2\nset"), r"key of .*small.toml, \[made.proxy\] named 'stepz'"),
        (("[start]", "[made.other]"), "no run of a bed named 'start'"),
        (("steps = 3", 'steps = 3\ntask = "fakts"'), "no task named 'fakts'"),
    ],
)
def test_what_a_bed_cannot_make_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text((DIGEST + MADE).replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_bed(str(path))


def test_what_a_bed_sets_on_its_baseline_no_other_arm_gets(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a contest, and in claims whose baseline it is; what a claim sets goes over it."""
    Path(recipe).write_text(RECIPE + "\n[baseline_set]\nepochs = 3\n" + '"optimizer.lr" = 0.5\n')
    bed, asked = load_bed(recipe), []
    monkeypatch.setattr(tuning, "runs_of", lambda bed, arm, n, fields, **_: asked.append((arm, dict(fields))) or [])

    def claim(baseline: str, **changes: Any) -> Claim:
        return Claim(statement="x", measures=(Measure(name="end"),), bed="b", baseline=baseline, **changes)

    tuning.arms_of(bed, "rloo", claim("grpo", baseline_changes={"optimizer.lr": 0.2}), [1000], {})
    tuning.arms_of(bed, "grpo", claim("reinforce"), [1000], {})
    expected = {"epochs": 3, "optimizer.lr": 0.2}
    assert asked == [("rloo", {}), ("grpo", expected), ("grpo", {}), ("reinforce", {})]
    assert both(bed, "grpo").changes == {"epochs": 3, "optimizer.lr": 0.5} and both(bed, "rloo").changes == {}


def test_the_area_is_the_mean_along_the_run() -> None:
    """Trapezoids: (0 + 1) / 2 over the first half, (1 + 1) / 2 over the second: 0.75."""
    found = Scores(np.array([0.0, 5.0, 10.0]), np.array([[0.0, 1.0, 1.0], [0.2, 0.2, 0.2]]))
    assert found.area.tolist() == pytest.approx([0.75, 0.2])
    assert (found.start.tolist(), found.end.tolist()) == ([0.0, 0.2], [1.0, 0.2])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_card_says_what_was_measured_and_is_not_measured_twice(recipe: str, tmp_path: Path) -> None:
    Path(recipe).write_text(RECIPE + "\n[baseline_set]\nepochs = 2\n")
    bed = load_bed(recipe)
    card = make_card(bed, root=tmp_path / "runs", workers=1)
    assert set(card["sweep"]) == {"optimizer.lr=0.001", "optimizer.lr=0.1"}
    best = max(card["sweep"], key=lambda label: card["sweep"][label]["area"])
    assert card["tuned"] == {"optimizer.lr": float(best.partition("=")[2])}
    curve = card["baseline"]["curve"]
    assert curve["at"] == [0, 5, 10, 15, 20] and len(curve["mean"]) == 5
    assert card["start"]["pass@1"] == pytest.approx(curve["mean"][0], abs=1e-4)
    assert card["baseline"]["end"] > card["start"]["pass@1"]
    widths = [card["resolves"]["area"][str(n)] for n in LOOKS]
    assert widths == sorted(widths, reverse=True)
    folders = sorted(p.parent.name for p in (tmp_path / "runs").rglob("FINISHED"))
    assert folders == ["seeds-0-to-5"] * 2 + ["seeds-1000-to-1011"]
    methods = [json.loads(p.read_text()) for p in (tmp_path / "runs").rglob("method.json")]
    assert [method["epochs"] for method in methods] == [2, 2, 2]
    trained = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("metrics.jsonl")}
    again = make_card(bed, root=tmp_path / "runs", workers=1)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("metrics.jsonl")} == trained
    assert {k: v for k, v in again.items() if k != "measured"} == {k: v for k, v in card.items() if k != "measured"}


@pytest.mark.parametrize(
    ("start", "end", "area", "gates"),
    [
        (0.345, 0.355, 0.346, [Gate.LEARNED]),  # gains 0.01 where 0.02 is the least
        (0.345, 0.325, 0.330, [Gate.LEARNED]),
        (0.35, 0.93, 0.82, []),
        (0.35, 0.95, 0.89, [Gate.ROOM]),  # a tenth of 0.6 matters: twice that is 0.12, and 0.11 is left
        (0.0, 0.04, 0.018, [Gate.ROOM]),
    ],
)
def test_a_card_says_where_a_claim_would_be_void(
    recipe: str, start: float, end: float, area: float, gates: list[Gate]
) -> None:
    card = {"start": {"pass@1": start}, "baseline": {"end": end, "area": area}}
    assert [void.gate for void in doubts(load_bed(recipe), card)] == gates


@pytest.mark.slow
def test_runs_are_shared_only_where_they_could_be_equal(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = load_bed(recipe)
    (job,) = runs_of(bed, "grpo", 2)
    assert (job.seed, job.members) == (CONFIRMING, 2)
    assert runs_of(bed, "grpo", 2)[0].folder == job.folder
    assert runs_of(bed, "grpo", 2, {"optimizer.lr": 0.5})[0].folder != job.folder
    monkeypatch.setattr(module, "state", lambda: "another processor")
    assert runs_of(bed, "grpo", 2)[0].folder != job.folder


def test_comments_and_docstrings_change_no_number() -> None:
    plain = 'def f(x: int) -> str:\n    return "#" + f"{x}"\n\n\nclass A:\n    y = 1\n'
    told = '"""About."""\n\n# why\ndef f(x: int) -> str:\n    """What.\n\n    More.\n    """\n'
    told += '    return "#" + f"{x}"  # how\nclass A:\n    y = 1\n    """A field."""\n'
    assert code_in(told) == code_in(plain) != code_in(plain.replace("y = 1", "y = 2"))
    assert code_in(plain) != code_in(plain.replace('"#"', '"-"')), "a string is code"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "best", "left"),
    [
        ({}, {"optimizer.lr": 1e-4, "minibatches": 1}, {}),  # the rate that a model of this size gets
        ({}, {"optimizer.lr": 2e-4, "minibatches": 1}, {"optimizer.lr": 2e-4}),
        ({"optimizer.lr": 3e-4}, {"optimizer.lr": 3e-4}, {"optimizer.lr": 3e-4}),
        ({"optimizer.lr": 3e-4}, {"optimizer.lr": 1e-4}, {"optimizer.lr": 1e-4}),
        ({}, {"objective": "clipped-surrogate", "objective.low": 0.2}, {}),
        ({}, {"advantages": "gae", "minibatches": 1}, {"advantages": "gae"}),
        # eight is so of the part as it is, and not of the one that takes its place, which has four
        ({}, {"experience": "both-modes", "experience.size": 8}, {"experience": "both-modes", "experience.size": 8}),
    ],
)  # fmt: skip
def test_what_tuning_chose_and_is_so_anyway_makes_no_other_runs(
    tmp_path: Path, own: dict[str, Any], best: dict[str, Any], left: dict[str, Any]
) -> None:
    (tmp_path / "plain.toml").write_text('about = "x"\ntask = "compose"\nsteps = 2\n[test]\nevery = 1\n')
    bed = load_bed(str(tmp_path / "plain.toml"))
    assert tuning.changed(bed, "grpo", own, best, tmp_path) == {**own, **left}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_start_is_made_once(tmp_path: Path) -> None:
    start = '[start]\nmethod = "sft"\nsteps = 1\nset = { problems = 2 }\n'
    (tmp_path / "warm.toml").write_text(f'about = "x"\ntask = "compose"\nsteps = 2\n[test]\nevery = 1\n{start}')
    bed = load_bed(str(tmp_path / "warm.toml"))
    start = Path(start_of(bed, tmp_path / "runs"))
    assert (start / "config.json").is_file()
    written = start.stat().st_mtime_ns
    assert start_of(bed, tmp_path / "runs") == str(start) and start.stat().st_mtime_ns == written
    (job,) = runs_of(bed, "grpo", 1, root=tmp_path / "runs")
    assert json.loads(json.dumps(job.command())).count(str(start)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_pairs_of_language_say_which_problems_were_solved(tmp_path: Path) -> None:
    test = "[test]\nproblems = 5\nsamples = 2\nevery = 1\n"
    (tmp_path / "small.toml").write_text(f'about = "x"\ntask = "compose"\nset = {{ problems = 2 }}\nsteps = 1\n{test}')
    bed = load_bed(str(tmp_path / "small.toml"))
    arms = [runs_of(bed, arm, 1, root=tmp_path / "runs") for arm in ("dr-grpo", "grpo")]
    run_jobs([job for jobs in arms for job in jobs], workers=1, quiet=True)
    (pair,) = pairs_of(bed, ["end"], *arms)
    assert [len(right) for right in pair.solved] == [5, 5]
    assert [sum(right) / 10 for right in pair.solved] == [pair.arm["end"], pair.baseline["end"]]
    assert Pair.from_json(json.loads(json.dumps(pair.to_json()))).solved == ([*pair.solved[0]], [*pair.solved[1]])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_what_a_method_alone_logs_its_baseline_does_none_of(tmp_path: Path) -> None:
    test = "[test]\nproblems = 2\nsamples = 1\nevery = 2\n"
    (tmp_path / "small.toml").write_text(f'about = "x"\ntask = "compose"\nset = {{ problems = 2 }}\nsteps = 2\n{test}')
    bed = load_bed(str(tmp_path / "small.toml"))
    imitates = {"stages.1.chooser": "after-steps", "stages.1.chooser.steps": 1}
    arms = [runs_of(bed, arm, 1, fields, root=tmp_path / "runs") for arm, fields in (("sasr", imitates), ("grpo", {}))]
    run_jobs([job for jobs in arms for job in jobs], workers=1, quiet=True)
    with pytest.raises(UnknownNameError, match="other"):
        pairs_of(bed, ["mean:other"], *arms)
    (pair,) = pairs_of(bed, ["mean:other", "mean:loss"], *arms, own=["mean:other", "mean:loss"])
    assert pair.arm["mean:other"] > 0 == pair.baseline["mean:other"]
    lines = [json.loads(line) for line in (arms[1][0].folder / "metrics.jsonl").read_text().splitlines()]
    assert pair.baseline["mean:loss"] == pytest.approx(np.mean([line["loss"] for line in lines]))
    assert pair.start["mean:loss"] == lines[0]["loss"] != lines[1]["loss"], "a proxy begins where it was logged first"
    assert "mean:other" not in pair.start
    (pair,) = pairs_of(bed, ["mean:behaviour_kl"], arms[1], arms[1], own=["mean:behaviour_kl"])
    assert all("behaviour_kl" not in line for line in lines), "of rows that teach something alone"
    assert pair.arm["mean:behaviour_kl"] == pair.baseline["mean:behaviour_kl"] > 0
    assert pair.arm["mean:behaviour_kl"] == pytest.approx(np.mean([line["behaviour_kl/learned"] for line in lines]))


def test_the_card_of_a_bed_that_came_with_the_package_is_written_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own card is read until there is another, and never written to."""
    package, here = tmp_path / "package", tmp_path / "here"
    recipe = package / "beds" / "enumerable" / "one.toml"
    recipe.parent.mkdir(parents=True)
    here.mkdir()
    recipe.write_text('about = "x"\n')
    monkeypatch.setattr(module, "ROOT", package)
    monkeypatch.setattr(module, "PLACES", (package / "beds",))
    monkeypatch.chdir(here)
    assert read_card("enumerable/one") is None
    recipe.with_suffix(".json").write_text('{"of": "the package"}')
    assert read_card("enumerable/one") == {"of": "the package"}
    own = card_path("enumerable/one")
    assert own == Path("beds/enumerable/one.json")
    own.parent.mkdir(parents=True)
    own.write_text('{"of": "mine"}')
    assert read_card("enumerable/one") == {"of": "mine"}
