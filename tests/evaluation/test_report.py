"""The report: complete when everything is there, whole when things are missing, harmless whatever the policy said."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import RunFolderError
from etude.core.worlds import World
from etude.evaluation import report_curves, report_entropy, report_evaluation, report_rollouts
from etude.evaluation.page import duration, escape, visible
from etude.evaluation.report import write_report
from etude.evaluation.report_curves import Curve, repeats_of
from etude.runs.worlds import world_of

METHOD = {
    "id": "dapo", "title": "Decoupled clip", "paper": "arXiv:2503.14476", "kind": "method", "parent": "grpo",
    "objective": {"part": "clipped-surrogate", "low": 0.2, "high": 0.28}, "regularizers": [], "problems": 16,
    "filters": [{"part": "informative-groups", "resample": True, "inner": {"part": "limits", "low": 0.0}}],
}  # fmt: skip
EPISODE = {
    "id": "p1", "level": "easy", "group": 0, "prompt": "2 + 2 =", "completion": "4", "scores": {"task": 1.0},
    "reward": 1.0, "advantage": 0.5, "stop": "end_of_text",
}  # fmt: skip


class Page(HTMLParser):
    """Checks that tags nest, and collects them and the text."""

    VOID = frozenset({"meta", "br", "rect", "circle", "line", "polyline", "polygon"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def run_folder(path: Path, **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        name = {"FINISHED": name}.get(name, f"{name}.json")
        if isinstance(content, list):
            (path / f"{name}l").write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            (path / name).write_text(json.dumps(content))
    return path


def read(path: Path) -> Page:
    source = path.read_text(encoding="utf-8")
    assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")  # nothing comes from elsewhere
    return Page(source)


def test_a_whole_run(tmp_path: Path) -> None:
    entry = {"value": 0.25, "low": 0.2, "high": 0.3}
    folder = run_folder(
        tmp_path,
        method=METHOD,
        config={"task": "compose", "model": "models/tiny", "seed": 7, "steps": 50},
        environment={"versions": {"torch": "2.13"}, "commit": "abc"},
        evaluation={"before": {"test": {"pass@1": 0.0}}, "after": {"test": {"pass@1": entry}}},
        metrics=[{"step": s, "seconds": 2.0 * s, "reward": s / 50, "reward/task": s / 60, "reward/format": 1 - s / 50,
                  "test/pass@1": s / 100, "lr": 0.001} for s in range(1, 51)],
        episodes=[{"step": s, **EPISODE} for s in (1, 25, 50)],
        FINISHED={"step": 50, "seconds": 100.0},
    )  # fmt: skip
    path = write_report(folder)
    assert path == folder / "report.html"
    page = read(path)
    for said in ("dapo on compose", "derived from grpo", "1 min 40 s", "finished", "0.0%", "25.0%", "+25.0 points",
                 "[20.0%, 30.0%]", "reward by component", "test/pass@1", "lr 0.001", "Early: step 1",
                 "Halfway: step 25",
                 "Late: step 50", "2 + 2 =", "end of text", "clipped-surrogate", "low = 0.2, high = 0.28", "limits",
                 "torch 2.13"):  # fmt: skip
        assert said in page.text, said
    assert page.tags.count("svg") == 4  # before and after, reward, its components, pass@1
    assert "script" not in page.tags and "regularizers" not in page.text  # an empty slot
    assert '<span class="slot">paper</span>' not in path.read_text()  # said at the top, not a slot


@pytest.mark.parametrize("missing", ["method", "config", "environment", "evaluation", "metrics", "episodes"])
def test_a_missing_file_leaves_its_section_out(missing: str, tmp_path: Path) -> None:
    files = {
        "method": METHOD, "config": {"task": "compose", "steps": 5}, "environment": {"cores": 2},
        "evaluation": {"before": {"accuracy": 0.5}}, "metrics": [{"step": 1, "reward": 1.0}],
        "episodes": [{"step": 1, **EPISODE}],
    }  # fmt: skip
    titles = {
        "method": "Method", "config": "Settings", "environment": "Environment", "evaluation": "Before and after",
        "metrics": "Training", "episodes": "Rollouts",
    }  # fmt: skip
    del files[missing]
    text = read(write_report(run_folder(tmp_path, **files))).text
    assert [t for t in titles.values() if t not in text] == [titles[missing]]
    assert "not finished" in text


def test_why_a_run_ended_early_is_its_status(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, method=METHOD, metrics=[{"step": 1, "reward": 1.0}])
    (folder / "STOPPED").write_text('{"why": "Stopped early: 30 minutes are over."}')
    text = read(write_report(folder)).text
    assert "Stopped early: 30 minutes are over." in text and "not finished" not in text


def test_torn_and_foreign_lines_are_counted(tmp_path: Path) -> None:
    lines = [b'{"step": 1, "reward": 0.5}\n', b'{"step": 2, "rew', b"\n\n", b"[1, 2]\n", b"\xff\xfe{\n", b'{"step": 3}']
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    (tmp_path / "method.json").write_text('{"id": "gr')
    text = read(write_report(tmp_path)).text
    assert "3 damaged lines of metrics.jsonl left out" in text
    assert "reward" in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run to report on"):
        write_report(tmp_path)


def test_what_a_policy_says_stays_text(tmp_path: Path) -> None:
    hostile = '</pre><script>alert(1)</script><img src=x onerror=alert(1)>"\x00\x1b[2J\u202e\ud800' + "x" * 20_000
    episode = {**EPISODE, "step": 1, "id": hostile[:30], "prompt": hostile, "completion": hostile, "level": hostile[:9]}
    episode["scores"], episode["stop"] = {hostile[:20]: hostile[:20]}, hostile[:20]
    page = read(write_report(run_folder(tmp_path, episodes=[episode], metrics=[{"step": 1, hostile[:40]: 1.0}])))
    assert not {"script", "img"} & set(page.tags)
    for name in ("NUL", "ESC", "U+202E", "U+D800"):
        assert name in page.text
    assert "more characters" in page.text and page.text.count("x" * 8000) == 0
    assert not any(ord(c) < 32 and c not in "\n\t" for c in page.text)


def test_visible_and_escape() -> None:
    assert visible("a\tb\nc é 漢") == "a\tb\nc é 漢"
    assert visible("\r\x7f") == '<span class="control">CR</span><span class="control">DEL</span>'
    assert visible("abcdef", limit=4) == 'abcd<span class="soft"> … 2 more characters</span>'
    assert escape("<\"'&\ud800") == "&lt;&quot;&#x27;&amp;?"


# Curves


def test_curves_are_collected_by_name() -> None:
    rows = [{"step": 10, "seconds": 1, "a": 1, "stop": {"eos": 0.5}, "note": "x"}, {"step": 20, "a": None, "b": True}]
    curves = report_curves.collect(rows)
    found = {name: curve[:2] for name, curve in curves.items()}
    assert found == {"a": ([10, 20], [1.0, None]), "stop/eos": ([10], [0.5]), "b": ([20], [1.0])}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("reward", "Reward"), ("reward/format", "Reward"), ("test/pass@8", "Success"), ("accuracy", "Success"),
        ("entropy", "Policy"), ("kl", "Policy"), ("logp_gap", "Policy"), ("gradient_norm", "Optimisation"),
        ("loss", "Optimisation"), ("completion_length", "Episodes"), ("stop/max_tokens", "Episodes"),
        ("tokens_per_second", "Speed"), ("seconds/rollout", "Speed"), ("rewards/failed", "Checks"), ("xyz", "Other"),
    ],
)  # fmt: skip
def test_metrics_find_their_group(name: str, group: str) -> None:
    assert report_curves.group_of(name) == group


def test_every_metric_is_shown_once() -> None:
    names = ["reward", "reward/a", "reward/b", "stop/x", "kl", "odd"]
    rows = [{"step": s, **{name: s + i for i, name in enumerate(names)}} for s in (1, 2)]
    html = report_curves.render(report_curves.collect(rows))
    assert html.count("<svg") == 5  # reward's two components share one
    for label in ("reward by component", "stop/x", "kl", "odd"):
        assert html.count(f"<b>{label}</b>") == 1


def test_smoothing_and_thinning_by_hand() -> None:
    assert report_curves.smooth([1, 2, 6, None, 4], 3) == [1.5, 3.0, 4.0, 5.0, 4.0]
    assert report_curves.smooth([None, None, 3], 1) == [None, None, 3.0]
    long = report_curves.Curve([float(i) for i in range(1, 11)], [1.0, 3.0, None, 5.0, 7.0, 9.0, None, None, 2.0, 4.0])
    assert report_curves.thin(long, 5)[:2] == ([1.5, 3.5, 5.5, 7.5, 9.5], [2.0, 5.0, 8.0, None, 3.0])
    assert report_curves.thin(long, 10) is long


# Before and after


def test_entries_of_an_evaluation() -> None:
    side = {
        "test": {"pass@1": [0.5, 0.4, 0.6], "length": 3, "note": "x", "open": {"value": 1.0, "low": None}},
        "kl": 0.1,
    }
    assert report_evaluation.measured(side) == {
        ("test", "pass@1"): (0.5, 0.4, 0.6), ("test", "length"): (3, 3, 3), ("test", "open"): (1.0, 1.0, 1.0),
        ("", "kl"): (0.1, 0.1, 0.1),
    }  # fmt: skip
    assert report_evaluation.measured(None) == {}
    assert report_evaluation.render({"before": {}, "after": {"test": {}}}) == ""


def test_the_report_says_which_numbers_are_not_to_be_trusted() -> None:
    found = {
        "fqe": {"value": 7.0, "low": 6.0, "high": 8.0, "reason": "Q < ran away"},
        "logged": {"value": 1.0, "reason": ""},
    }
    html = report_evaluation.render({"after": {"logs": found}})
    assert '<p class="down">fqe: Q &lt; ran away.</p>' in html and "logged:" not in html


def test_what_was_not_trained_on_comes_first() -> None:
    html = report_evaluation.render({"after": {"train": {"pass@1": 0.9}, "test": {"pass@1": 0.6}}})
    assert html.index("60.0%") < html.index("90.0%")


# Rollouts


def test_rollouts_spread_over_rewards() -> None:
    found = report_rollouts.spread([{"reward": r} for r in (0, 3, None, 1, 2, 5, 4)], 4)
    assert [r["reward"] for r in found] == [5, 3, 1, None]


def test_two_steps_are_early_and_late() -> None:
    html = report_rollouts.render([{"step": 1, **EPISODE}, {"step": 2, **EPISODE}])
    assert "Early: step 1" in html and "Late: step 2" in html and "Halfway" not in html


def test_several_turns_are_shown_in_order_and_once() -> None:
    segments = [
        {"role": "user", "text": "find it"},
        {"role": "assistant", "text": "look"},
        {"role": "tool", "text": "key"},
    ]
    record = {**EPISODE, "prompt": "find it", "segments": segments}
    html = report_rollouts.render([record])
    assert html.count("find it") == 1
    assert html.index("look") < html.index("key")
    chat = {**EPISODE, "prompt": [{"role": "system", "content": "be brief"}], "completion": ""}
    assert "be brief" in report_rollouts.render([chat]) and "(nothing)" in report_rollouts.render([chat])


def test_durations() -> None:
    assert [duration(s) for s in (0.5, 48, 200, 7500)] == ["0.5 s", "48 s", "3 min 20 s", "2 h 5 min"]


def test_what_was_asked_stands_once_above_the_rollouts_of_a_problem() -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is asked"}]
    same = [{**EPISODE, "prompt": turns, "completion": f"said {i}", "reward": i, "scores": {"task": i}} for i in (1, 2)]
    other = {**EPISODE, "id": "p2", "prompt": "another", "scores": {"task": 0.5, "form": 0.5}}
    html = report_rollouts.render([*same, other])
    assert html.count("what is asked") == html.count("be brief") == html.count("another") == 1
    assert html.index("what is asked") < html.index("said 2") < html.index("said 1") < html.index("another")
    assert html.count("<b>p1 · easy</b>") == 1 and html.count("group 0") == 1  # of the one that stands alone
    assert html.count('<span class="soft">task</span>') == 1  # where it is the whole reward it is not said again


def test_nothing_is_said_three_times_and_what_is_none_takes_one_line(tmp_path: Path) -> None:
    config = {"task": "compose", "model": "tiny", "seed": 7, "steps": 2000, "until": None, "sinks": [], "keep": 2}
    environment = {"seed": 7, "memory_bytes": 25_276_502_016}
    method = {**METHOD, "preset": {"name": "ppo/CartPole-v1", "changes": {}}}
    folder = run_folder(tmp_path, method=method, config=config, environment=environment, metrics=[{"step": 2000}])
    html = write_report(folder).read_text()
    assert "<dt>seed</dt><dd>7</dd>" in html and "<td>seed</td>" not in html
    assert "<dt>steps</dt><dd>2,000</dd>" in html
    assert "<dt>task</dt>" not in html and "<td>task</td>" not in html  # the headline says it
    assert "None: until, sinks." in html and "<td>keep</td><td><code>2</code></td>" in html
    assert "<td>memory</td><td><code>25.3 GB</code></td>" in html
    assert "name = ppo/CartPole-v1, changes = none" in html


def test_a_task_by_its_path_stays_among_the_settings(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, method=METHOD, config={"task": "data/mine.jsonl"})
    page = read(write_report(folder))
    assert "dapo on mine.jsonl" in page.text and "data/mine.jsonl" in page.text


# What is not drawn


def test_rounding_and_repetitions_are_named_not_drawn() -> None:
    rows = [
        {"step": s, "reward": 0.1 * s, "reward/task": 0.1 * s, "accuracy": 0.1 * s, "loss": s * 1e-9,
         "logp_gap": s * 1e-5,
         "weights_moved": 1 - s * 1e-5, "learning_rate": s * 1e-7, "kl": 0.01 * s, "cut": 0.0}
        for s in range(1, 6)
    ]  # fmt: skip
    html = report_curves.render(report_curves.collect(rows))
    assert html.count("<svg") == 3
    for drawn in ("reward", "learning rate", "kl"):
        assert html.count(f"<b>{drawn}</b>") == 1
    assert '<h3>The same at every step</h3><p class="soft">cut 0.</p>' in html
    assert "logp gap at most 5.0e-05, loss at most 5.0e-09, weights moved 1.000." in html
    assert "accuracy is reward, reward/task is reward." in html


def test_evaluations_in_between_are_drawn_with_their_intervals_and_the_best_is_named(tmp_path: Path) -> None:
    looks = [{"step": s, "test": {"pass@1": v}, "intervals": {"pass@1": [v - 0.1, v + 0.1]}}
             for s, v in ((10, 0.5), (20, 0.75), (30, 0.7))]  # fmt: skip
    after = {"test": {"pass@1": 0.7, "reward": 0.7}}
    folder = run_folder(tmp_path, method=METHOD, metrics=[{"step": 1}], evaluation={"after": after})
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in looks))
    page = read(write_report(folder))
    best = "Best of 3 evaluations by test/pass@1: 0.75 [0.65, 0.85] after step 20; the last, after step 30, 0.7."
    assert best in page.text
    assert "0.500 → 0.700" in page.text and page.tags.count("svg") == 2  # after, and the curve
    assert "test reward" not in page.text  # it is pass@1


def test_control_has_no_language_in_it(tmp_path: Path) -> None:
    config = {"task": "cartpole", "world": "control", "model": "tiny", "seeds": 3, "evaluate_samples": 8}
    episodes = [{"step": 1, "member": 0, "return": 9.0, "length": 9}]
    rows = [{"step": s, "return": 1.0 * s, "members": {"return": [1.0 * s]}} for s in (1, 2)]
    folder = run_folder(tmp_path, method=METHOD, config=config, metrics=rows, episodes=episodes)
    text = read(write_report(folder, world_of(World.CONTROL).WORDING)).text
    assert "seeds" in text
    assert not any(word in text for word in ("tiny", "Rollouts", "evaluate samples", "(nothing)"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("tiny", "tiny"),
        ("runs/sft-a/checkpoints/step-40/model", "sft-a at step 40"),
    ],
)
def test_the_model_is_named(model: str, said: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, method=METHOD, config={"task": "compose", "model": model})
    html = write_report(folder).read_text()
    assert f"<dt>model</dt><dd>{said}</dd>" in html


def test_what_float32_cannot_tell_apart_is_drawn_once() -> None:
    sides = [{"reward": Curve([1, 2], [0.05937500298, 0.05]), "reward/own": Curve([1, 2], [0.05937500088, 0.05])}]
    assert repeats_of(sides) == {"reward/own": "reward"}
    sides[0]["reward/own"] = Curve([1, 2], [0.05937600088, 0.05])
    assert repeats_of(sides) == {}


def falling(steps: int) -> list[dict[str, float]]:
    """Entropy falls by half of the covariance, accuracy rises by the law."""
    rows, entropy = list[dict[str, float]](), 1.0
    for step in range(1, steps + 1):
        covariance = 0.02 + 0.01 * (step % 3)
        accuracy = 0.9 - 0.2 * math.exp(entropy)
        rows.append({"step": step, "entropy_estimate": entropy, "covariance": covariance, "accuracy": accuracy})
        entropy -= 0.5 * covariance
    return rows


def test_entropy_is_shown_beside_its_law_and_what_it_was_traded_for(tmp_path: Path) -> None:
    page = read(write_report(run_folder(tmp_path, method=METHOD, metrics=falling(20))))
    text = " ".join(page.text.split())
    assert "η = 0.500 fits best, and explains 100% of the squared changes" in text
    fit = re.search(r"R = −a exp\(H\) \+ b with a = 0.200, b = 0.900; residual (\S+) .*b − a = 0.700", text)
    assert fit is not None and float(fit[1]) < 1e-9
    assert "Entropy" not in read(write_report(run_folder(tmp_path, metrics=falling(9)))).text


def test_a_score_by_entropy_is_that_of_evaluations_where_there_are_enough() -> None:
    """An evaluation after step s is of the policy that step s + 1 begins with."""
    rows = falling(20)
    curves = report_curves.collect(rows)
    steps = [float(s) for s in range(20)]
    tested = Curve(steps, [0.5 - 0.1 * math.exp(row["entropy_estimate"]) for row in rows])
    found = report_entropy.render(curves, {"test/reward": tested, "test/pass@1": tested})
    assert "with a = 0.100, b = 0.500;" in found and "test/pass@1 by entropy" in found
    few = Curve(steps[:5], tested.values[:5])
    assert "accuracy by entropy" in report_entropy.render(curves, {"test/pass@1": few})
    still = [{**row, "entropy_estimate": 0.5, "covariance": 0.0} for row in rows]
    assert report_entropy.render(report_curves.collect(still)) == ""
