"""`etude train`, `evaluate` and `report` from the shell: folders, seeds, going on, scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import TINY, Cli, tiny

pytestmark = pytest.mark.slow


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_whole_folder_and_says_where(cli: Cli, tmp_path: Path) -> None:
    answer = cli("train", "grpo", *TINY)
    folder = Path(answer.out.strip())
    assert answer.code == 0
    assert folder == Path("runs/grpo-compose-0")
    assert answer.err == ""
    found = {p.name for p in folder.iterdir()}
    assert found == {
        "method.json", "config.json", "environment.json", "metrics.jsonl", "episodes.jsonl", "checkpoints",
        "inputs.json", "run.toml", "evaluation.json", "report.html", "run.lock", "FINISHED",
    }  # fmt: skip
    assert steps(folder) == [1, 2]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert set(evaluation["before"]) == set(evaluation["after"]) == {"test", "heldout"}
    for split, right in evaluation["solved"]["after"].items():
        assert sum(right) / (8 * len(right)) == pytest.approx(evaluation["after"][split]["pass@1"]["value"])
    again = cli("train", "grpo", *TINY)
    assert again.out.strip() == "runs/grpo-compose-0-2", "a second run does not touch the first"
    assert (folder / "metrics.jsonl").read_text().count("accuracy") == 2


def test_what_it_prints_at_the_end_can_be_typed(cli: Cli, tmp_path: Path) -> None:
    answer = cli("train", "grpo", *(f for f in TINY if f != "--quiet"), "--out", "a run")
    commands = [line.strip() for line in answer.out.splitlines() if line.startswith("  etude ")]
    assert commands == [
        "etude evaluate 'a run' --k 1,8,64",
        "etude compare reinforce grpo --task compose --seeds 3",
        "etude methods show grpo",
    ]
    assert "a run/report.html" in answer.out
    assert "step 2/2  accuracy" in answer.err
    assert answer.err.count("Sampling 2 problems per split") == 2


def test_seeds_get_a_folder_each_and_an_interval(cli: Cli, tmp_path: Path) -> None:
    answer = cli("train", "grpo", *TINY, "--seeds", "2", "--seed", "3", "--out", "both")
    assert answer.code == 0
    assert "both/seed-3" in answer.out
    assert "test: interquartile mean of pass@1 over 2 seeds" in answer.out
    configs = [json.loads((tmp_path / f"both/seed-{n}/config.json").read_text())["seed"] for n in (3, 4)]
    assert configs == [3, 4]


def test_a_finished_folder_is_refused_and_can_be_resumed(cli: Cli, tmp_path: Path) -> None:
    cli("train", "grpo", *TINY, "--out", "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    refused = cli("train", "grpo", *TINY, "--out", "run")
    assert refused.code == 2
    assert "run holds a finished run. Go on with it (etude train --resume run)" in refused.sentence
    same = cli("train", "--resume", "run", "--quiet")
    assert (same.code, same.out.strip()) == (0, "run")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before, "nothing was left to do"

    first = json.loads((tmp_path / "run/evaluation.json").read_text())
    (tmp_path / "run/evaluation.json").write_text(json.dumps({**first, "after": {"test": "of an earlier end"}}))
    longer = cli("train", "--resume", "run", "--steps", "6", "--quiet")
    assert longer.code == 0
    assert steps(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    assert json.loads((tmp_path / "run/config.json").read_text())["steps"] == 6
    second = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert second["before"] == first["before"]
    assert set(second["after"]["test"]) == {"pass@1", "pass@8", "reward"}, "sampled again, as the end is elsewhere"

    shorter = cli("train", "--resume", "run", "--steps", "3")
    assert shorter.code == 2
    assert "run has 6 training steps already, more than 3 asks for" in shorter.sentence
    changed = cli("train", "--resume", "run", "--set", "optimizer.lr=1", "--model", "other")
    assert changed.code == 2
    assert "--model and --set cannot be given with it" in changed.sentence


def test_a_longer_run_equals_one_that_was_resumed(cli: Cli, tmp_path: Path) -> None:
    cli("train", "grpo", *TINY, "--out", "short")
    cli("train", "--resume", "short", "--steps", "4", "--quiet")
    cli("train", "grpo", *tiny(steps=4), "--out", "long")
    weights = [tmp_path / name / "checkpoints/step-4/state.safetensors" for name in ("short", "long")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_run_killed_before_its_first_checkpoint_can_be_started_again(cli: Cli, tmp_path: Path) -> None:
    cli("train", "grpo", *TINY, "--out", "run")
    for name in ("FINISHED", "metrics.jsonl", "episodes.jsonl", "report.html"):
        (tmp_path / "run" / name).unlink()
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    stale = json.loads((tmp_path / "run/evaluation.json").read_text())
    (tmp_path / "run/evaluation.json").write_text(json.dumps({"before": "stale", "samples": {}}))
    assert cli("train", "grpo", *TINY, "--out", "run").code == 0
    assert json.loads((tmp_path / "run/evaluation.json").read_text()) == stale


def test_nothing_of_a_run_that_never_started_is_taken_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/evaluation.json").write_text(json.dumps({"before": {"test": "of another model"}}))
    assert cli("train", "grpo", *tiny(evaluate=0), "--out", "run").code == 0
    assert not (tmp_path / "run/evaluation.json").exists()


@pytest.mark.parametrize("method", ["gpg", "grpo"])
def test_stacking_the_kl_trains(cli: Cli, tmp_path: Path, method: str) -> None:
    assert cli("train", method, "--with", "kl-to-reference", *tiny(evaluate=0), "--out", "kl").code == 0
    assert cli("train", method, *tiny(evaluate=0), "--out", "plain").code == 0
    first = {n: json.loads((tmp_path / n / "metrics.jsonl").read_text().split("\n")[0]) for n in ("kl", "plain")}
    assert steps(tmp_path / "kl") == [1, 2]
    assert "kl-to-reference" in json.dumps(json.loads((tmp_path / "kl/method.json").read_text())["regularizers"])
    assert first["kl"]["reward"] == first["plain"]["reward"], "the first batch is the same"


def test_a_critic_can_be_stacked_on_grpo(cli: Cli) -> None:
    assert cli("train", "grpo", "--with", "gae", "--with", "token-critic", *tiny(evaluate=0)).code == 0


def test_a_method_and_part_of_ones_own_can_be_resumed_elsewhere(cli: Cli, tmp_path: Path, forget: object) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/steady.py").write_text(
        "from etude.core.slots import Reward\nfrom etude.methods.rlvr.grpo import grpo\n\n\n"
        "class Bonus(Reward):\n    amount: float = 0.5\n\n"
        "    def score(self, episodes, context):\n"
        "        return [self.amount * (i % 2) for i in range(len(episodes))]\n\n\n"
        "steady = grpo.replace(id='steady', rewards=(*grpo.rewards, Bonus()))\n"
    )
    assert cli("train", "mine/steady.py:steady", *tiny(evaluate=0), "--out", "run").code == 0
    forget("steady")  # type: ignore[operator]
    answer = cli("train", "--resume", "run", "--steps", "3", "--quiet")
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["reward/bonus"] == 0.25


def test_evaluate_a_run_a_checkpoint_and_a_model(cli: Cli) -> None:
    cli("train", "grpo", *TINY, "--set", "task.levels=1", "--out", "run")
    sizes = ("--problems", "4", "--k", "1,4", "--json")
    run = json.loads(cli("evaluate", "run", *sizes).out)
    checkpoint = json.loads(cli("evaluate", "run/checkpoints/step-2", *sizes).out)
    assert run == checkpoint
    assert set(run) == {"test", "heldout"}
    assert list(run["test"]) == ["pass@1", "pass@4", "avg@4", "maj@4", "reward"]
    assert run["test"]["pass@1"]["low"] <= run["test"]["pass@1"]["value"] <= run["test"]["pass@4"]["value"]
    base = json.loads(cli("evaluate", "tiny", "--task", "compose", "--set", "task.levels=1", *sizes).out)
    assert base["test"]["reward"]["value"] > 0.5, "the base model knows the atomic functions"
    shown = cli("evaluate", "run", "--problems", "2", "--split", "test", "--k", "1")
    assert "pass@1" in shown.out
    assert "heldout" not in shown.out


def test_report_is_written_for_a_run_at_any_time(cli: Cli, tmp_path: Path) -> None:
    cli("train", "grpo", *tiny(evaluate=0), "--out", "run")
    (tmp_path / "run/report.html").unlink()
    (tmp_path / "run/FINISHED").unlink()
    answer = cli("report", "run")
    assert answer.code == 0
    assert Path(answer.out.strip()).read_text().startswith("<!")
