"""What there is: methods, tasks and parts, for people and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import Cli

import etude
from etude.cli.parts import OF_VERBS
from etude.core.kind_names import all_slots
from etude.core.kinds import ReplayMethod
from etude.core.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_methods_json(cli: Cli) -> None:
    entries = json.loads(cli("methods", "--json").out)
    assert {e["id"] for e in entries} == set(etude.methods())
    for entry in entries:
        assert list(entry) == [
            "id", "title", "family", "row", "kinds", "worlds", "parent", "paper", "changes", "claims", "claim"
        ]  # fmt: skip
        for name in ("id", "title", "family", "row", "paper"):
            assert isinstance(entry[name], str) and entry[name], (entry["id"], name)
        assert entry["parent"] is None or entry["parent"] in etude.methods()
        assert bool(entry["changes"]) == (entry["parent"] is not None)
        known = [["control"], ["enumerable", "language"], ["control", "enumerable", "language"]]
        assert entry["worlds"] in (known + [["language"]] * (entry["kinds"] == ["Recipe"]))
        assert entry["claim"] == (entry["claims"][0] if entry["claims"] else None)
        for claim in entry["claims"]:
            assert set(claim) == {"name", "statement", "verdict", "stale"} and claim["statement"]
            assert claim["verdict"] in (
                None, "held", "reversed", "equivalent", "inconclusive", "void", "not held",
            )  # fmt: skip
    changed = {e["id"]: e["changes"] for e in entries}
    assert [c["name"] for e in entries if e["id"] == "ppo" for c in e["claims"]] == ["ppo", "ppo/control"]
    assert changed["dr-grpo"] == ["advantages", "aggregation"]
    assert [e["id"] for e in entries if e["claim"] is None] == [
        "spa-estimator", "tl-training-ppo",
        "bc-discrete", "bear", "bear-discrete", "cal-ql-online", "cql-discrete", "kl-control", "spibb", "rem", "bve",
        "mce", "a-lol-offline", "cgpo-pairs", "cgpo-best",
        "pairwise-ppo", "rlgf-aggrevated", "rlgf-lols", "rlhf-survey-ppo", "rlmt-ppo", "rlmt-dpo", "tulu-3-dpo",
        "tulu-3-rlvr", "backtracking-rl", "interplay-rl-alone", "clip-cov", "rft", "planning-q-learning",
        "qwenlong-l1-phase", "qwenlong-l1-5-phase", "rl-compositionality-rft", "rlad-solver", "rlad-writer",
        "rlad-writer-rft", "rlpt-text", "sparkle-two-stages", "spo-tree",
    ]  # fmt: skip


def test_tasks_json(cli: Cli) -> None:
    entries = json.loads(cli("tasks", "--json").out)
    assert {e["id"] for e in entries} == set(etude.tasks())
    for entry in entries:
        assert list(entry) == ["id", "family", "summary", "world", "splits", "fields"]
        assert ("test" if entry["world"] == "control" else "train") in entry["splits"]
        assert entry["summary"].endswith(".")
    assert next(e for e in entries if e["id"] == "compose")["fields"]["levels"] == [2]


@pytest.mark.parametrize("method", etude.methods())
def test_every_method_is_shown(cli: Cli, method: str) -> None:
    answer = cli("methods", "show", method)
    found = etude.method(method)
    assert answer.code == 0
    assert found.title in answer.out
    slot = {ReplayMethod: "policy", Recipe: "runs"}.get(type(found), "optimizer")
    held = found.slots()[slot]
    assert f"{slot:<14} {type(held[0] if isinstance(held, tuple) else held).__name__}(" in answer.out
    assert found.claim is None or found.claim.statement in answer.out
    if found.parent:
        assert f"Against {found.parent} (for tasks of " in answer.out


def test_a_method_of_ones_own_is_shown_with_what_its_file_says(cli: Cli, tmp_path: Path) -> None:
    own = '''"""Pairs: GRPO with two completions."""\nfrom etude.methods.rlvr.grpo import grpo\n'''
    (tmp_path / "pairs.py").write_text(own + "pairs = grpo.replace(id='pairs')\n")
    for name in ("pairs.py", "pairs.py:pairs"):
        assert cli("methods", "show", name).out.startswith("Pairs: GRPO with two completions.\n")


@pytest.mark.parametrize("task", etude.tasks())
def test_every_task_is_shown(cli: Cli, task: str) -> None:
    answer = cli("tasks", "show", task, "--count", "2")
    assert answer.code == 0
    if etude.task(task).world == "control":
        assert "observations  Box(" in answer.out or "observations  Dict(" in answer.out
        return
    assert answer.out.count("  prompt  ") == 2
    assert etude.task(task).problems("train")[0].id in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slot", "names"),
    [
        ("network", ("mlp", "cnn", "sized-cnn", "multi-input", "own-module")),
        ("observations", ("frame-stack", "normalize-observations")),
        ("memory", ("gru", "lstm")),
    ],
)
def test_what_a_policy_of_control_is_made_of_is_listed(cli: Cli, slot: str, names: tuple[str, ...]) -> None:
    listed = [line.split()[0] for line in cli("parts", slot).out.splitlines() if line[2:3].strip()]
    assert {*names} <= {*listed}


@pytest.mark.slow
def test_parts_are_those_that_can_be_set(cli: Cli) -> None:
    answer = cli("parts")
    heads = [line for line in answer.out.splitlines() if line and not line.startswith(" ")]
    assert "objective" in heads
    of_methods = [head for head in heads if " of " not in head]
    assert set(of_methods) <= {*all_slots(), *OF_VERBS}
    inside = dict(head.split(" of ") for head in heads[len(of_methods) :])
    assert inside["search"] == "candidate-sets, groups-by-search, pairs-by-search"
    assert inside["centre"] == "group-advantage, reward-to-go, tree-value-advantage"
    assert "actor-policy" in inside["network"].split(", ")
    assert inside["guide"] == "beam, best-of, filtered-vote, lookahead, tree-search, uct"
    assert inside["denominator"] == inside["mask"] == "unified-gradient" and not set(inside) & set(all_slots())
    assert "leave-one-out" in cli("parts", "centre").out and "group-std" not in cli("parts", "centre").out
    assert "low = 0.2: a number in (0, 1)" in answer.out
    assert "gradient-norm-chance" in cli("parts", "chance").out  # of a part of a part
    rewards = cli("parts", "rewards").out
    assert "      function, to be given: text\n" in rewards and "MISSING" not in rewards
    only = cli("parts", "critic").out
    assert "token-critic" in only
    assert "clipped-surrogate" not in only


@pytest.mark.slow
def test_the_tables_name_everything(cli: Cli) -> None:
    methods, tasks, claims = (cli(verb).out for verb in ("methods", "tasks", "claims"))
    assert all(name in methods for name in etude.methods())
    assert all(name in tasks for name in [*etude.tasks(), "data.jsonl", "reasoning-gym:NAME"])
    assert all(name in claims for name in etude.methods() if etude.method(name).claim)


@pytest.mark.slow
def test_train_help_explains_every_option(cli: Cli) -> None:
    import inspect

    from etude.cli.train import train

    text = inspect.getdoc(train) or ""
    for name in inspect.signature(train).parameters:
        assert f"\n{name}\n" in text, f"{name} is not explained"
    helped = cli("train", "--help").out
    assert "[default: ()]" not in helped
    assert "--checkpoint-every" in helped


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_it_without_a_traceback() -> None:
    asked = [sys.executable, "-m", "etude", "beds", "show", "control/acrobot"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as said:
        assert said.stdout and said.stderr
        said.stdout.close()
        assert said.stderr.read() == b"" and said.wait() == 141


def test_beds_are_listed_with_their_figures_whole_on_a_narrow_screen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("beds").out
    assert "…" not in said and max(map(len, said.splitlines())) <= 80
    card = json.loads((ROOT / "beds/enumerable/twin.json").read_text())
    start, base = card["start"]["pass@1"], card["baseline"]
    first = said.partition("enumerable/twin\n")[2].splitlines()[0].strip()
    assert first == (
        f"pass@1 of grpo: {start:.4g} to {base['end']:.4g}, area {base['area']:.4g}; "
        f"12 pairs resolve {card['resolves']['area']['12']:.4g}"
    )
    assert "return of sac: not measured" in said
