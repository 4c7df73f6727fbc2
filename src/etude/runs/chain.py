"""The folder of a recipe: which of its runs are done, what they made, and their logs put together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from etude.core.errors import DataError
from etude.core.method import Method
from etude.core.recipe import Planned, Recipe
from etude.core.task import LanguageTask, Task
from etude.runs.training import Options, Result
from etude.runs.worlds import world_of
from etude.runtime import checkpoints, disk
from etude.runtime.folder import RunFolder
from etude.runtime.jsonl import JsonLines
from etude.stages.chain import Collect, Combine, Derive, DeriveByPolicy

DATA = "data.jsonl"
"""What a run makes that trains nothing."""
RECORD, METHOD = "run.json", "method.json"
COUNTERS = ("step", "environment_steps")
"""What the logs count on from one run to the next."""


class Chain:
    """A recipe's folder while its runs are done.

    A checkpoint of it is what a run of the chain ended with, written when that run is done, so a kill at any moment
    leaves the runs before it done and that one to be resumed.

    Args:
        folder: open; the caller closes it.
        plan: every run of the recipe.
    """

    def __init__(self, folder: RunFolder, plan: Sequence[Planned], options: Options) -> None:
        self.folder, self.options = folder, options
        self.runs = {run.number: run for run in plan}
        if options.evaluate_every is not None:
            folder.log("evaluations")
        self.record: dict[str, Any] = {"step": 0, "runs": 0, "seconds": 0.0, "counted": {}, "logs": {}}
        if folder.checkpoint is None:
            checkpoints.write(self._root, 0, self._write)
        else:
            self.record = checkpoints.load_json(folder.checkpoint / RECORD)
        folder.reopen()
        for name, log in folder.logs.items():
            log.cut(self.record["logs"].get(name, 0))

    @property
    def _root(self) -> Path:
        return self.folder.path / "checkpoints"

    @property
    def done(self) -> int:
        """The number of the last run that trained and is done."""
        return int(self.record["runs"])

    def place(self, number: int) -> Path:
        """The folder of a run."""
        return self.folder.path / self.runs[number].folder

    def made(self, number: int) -> str:
        """What a run hands on: its folder, of which whoever takes it reads the newest checkpoint; or its data."""
        return str(self.place(number) if self.runs[number].link.trains else self.place(number) / DATA)

    def budget_of(self, number: int) -> int:
        """Steps of a run, those before it that it counts on from included, in the unit of its world."""
        return int(json.loads((self.place(number) / "config.json").read_text())["steps"])

    # One run

    def train(self, run: Planned, told: dict[str, Any], called: Sequence[Any]) -> Result:
        """Begin a run, or go on with it."""
        from etude.runs.train import resume, train

        where = self.place(run.number)
        if any((where / "checkpoints").glob("step-*")):
            return resume(where, quiet=self.options.quiet, callbacks=called, until=told["until"])
        return train(**told, callbacks=called, out=where)

    def collect(self, run: Planned, begins: str, task: Task) -> None:
        """Keep the data that a run makes: completions of the policy that it begins from, or rows made of problems."""
        target, link = self.place(run.number) / DATA, run.link
        if target.is_file():
            return
        whole = cast(LanguageTask, task)
        if isinstance(link, (Derive, DeriveByPolicy)):
            rows = self._derived(run, link, begins, whole)
        else:
            rows = self._sampled(run, begins, whole)
        disk.make_folder(target.parent)
        disk.replace_file(target, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())

    def _derived(
        self, run: Planned, link: Derive | DeriveByPolicy, begins: str, task: LanguageTask
    ) -> list[dict[str, Any]]:
        pool = task.problems(link.split)
        problems = [pool[i] for i in range(min(link.problems, len(pool)))]
        seed = self.options.seed + run.number
        if isinstance(link, Derive):
            rows = link.rows(problems, task, seed)
        else:
            rows = link.rows_by(problems, task, self._policy(begins, task), seed)
        if rows:
            return rows
        raise DataError(
            f"{link.called} made no row of {len(problems)} problems of {task.id}, so it has no data to hand on."
        )

    def _policy(self, begins: str, task: LanguageTask) -> Any:
        """The policy that a run begins from."""
        from etude.runs.warm import start_of

        return world_of(task).restore(start_of(begins, task.world)[0], {}, task)

    def _sampled(self, run: Planned, begins: str, task: LanguageTask) -> list[dict[str, Any]]:
        from etude.evaluation.language import evaluate_split

        link, policy = cast(Collect, run.link), self._policy(begins, task)
        found = evaluate_split(
            policy, task, link.split, problems=link.problems, samples=link.samples,
            seed=self.options.seed + run.number, temperature=link.temperature,
        )  # fmt: skip
        pool = task.problems(link.split)
        rows = []
        for number, (episodes, right) in enumerate(zip(found.episodes, found.correct)):
            kept = [e.completion for e, correct in zip(episodes, right) if correct or link.keep == "all"]
            rows += [
                {"prompt": pool[number].prompt, "answer": pool[number].answer, "completion": text}
                for text in (dict.fromkeys(kept) if link.keep == "right" else kept)
            ]
        if not rows:
            raise DataError(
                f"None of {link.samples} completions of {len(found.episodes)} problems was right, so {link.called} has "
                "no data to hand on: begin from a better policy, or sample more."
            )
        return rows

    def combine(self, run: Planned, begins: str, task: Task) -> None:
        """Keep the policy that a run makes of those of others, as a folder that can be begun from."""
        target, link = self.place(run.number), cast(Combine, run.link)
        if target.is_dir():
            return
        others = []
        policy = self._policy(begins, cast(LanguageTask, task))
        base = {name: w.detach() for name, w in policy.model.named_parameters()}
        for name in link.of:
            found = self._policy(self.made(run.handed[name]), cast(LanguageTask, task)).merged().state_dict()
            if wrong := [k for k, w in base.items() if k not in found or found[k].shape != w.shape]:
                raise DataError(
                    f"{link.called} puts {', '.join(link.of)} together, and {name} has another shape than what it "
                    f"begins from ({wrong[0]})."
                )
            others.append({k: found[k].to(w) for k, w in base.items()})
        for name, w in link.combined(base, others).items():
            base[name].copy_(w)
        whole = target.with_name(f".{target.name}")
        shutil.rmtree(whole, ignore_errors=True)
        policy.save(whole)
        whole.rename(target)

    # What is put together

    def publish(self, run: Planned, result: Result, own: bool) -> None:
        """Note that a run is done: its logs behind those before it, its last checkpoint as the recipe's.

        Args:
            own: whether it is on the recipe's task, and acts: its evaluations are the recipe's.
        """
        source = result.checkpoint
        begun = self._begun(result.folder)
        for name, log in self.folder.logs.items():
            if name == "evaluations" and not own:
                continue
            for line in JsonLines.read(result.folder / f"{name}.jsonl"):
                log.append(self._behind(line, begun) | {"run": run.number})
        for log in self.folder.logs.values():
            log.sync()
        if own:
            self._evaluated(result.evaluation)
        self.record |= {
            "step": self.record["step"] + result.steps - begun["step"], "runs": run.number,
            "seconds": round(self.record["seconds"] + result.seconds, 3),
            "counted": self._counted(result.folder, begun),
        }  # fmt: skip
        checkpoints.write(self._root, self.record["step"], lambda folder: self._write(folder, source))
        checkpoints.prune(self._root, self.options.keep)

    def _begun(self, folder: Path) -> dict[str, int]:
        """Where a run's counters stood when it began: at 0, or where the run before it ended that it counts on from."""
        before = json.loads((folder / "config.json").read_text()).get("after")
        if before is None:
            return dict.fromkeys(COUNTERS, 0)
        last = list(JsonLines.read(Path(before) / "metrics.jsonl"))[-1]
        return {name: int(last.get(name, 0)) for name in COUNTERS}

    def _behind(self, line: dict[str, Any], begun: dict[str, int]) -> dict[str, Any]:
        """A line of a log with what it counts counted on from the runs before."""
        counted = self.record["counted"]
        moved = {k: line[k] + counted.get(k, 0) - begun[k] for k in COUNTERS if k in line}
        return {**line, **moved}

    def _counted(self, folder: Path, begun: dict[str, int]) -> dict[str, int]:
        """What the counters come to after a run."""
        last = list(JsonLines.read(folder / "metrics.jsonl"))[-1]
        return {k: self.record["counted"].get(k, 0) + last.get(k, 0) - begun[k] for k in COUNTERS}

    def _evaluated(self, found: dict[str, Any]) -> None:
        """The recipe's evaluation: before the first run on its task, and after the last of them so far."""
        if not found:
            return
        path = self.folder.path / "evaluation.json"
        whole = dict(json.loads(path.read_text())) if path.is_file() else {}
        first = whole if "before" in whole else found
        parts = {name: {"before": first.get(name, {}).get("before", {}), "after": found.get(name, {}).get("after", {})}
                 for name in ("samples", "solved")}  # fmt: skip
        disk.replace_file(path, json.dumps({"before": first["before"], "after": found["after"], **parts}).encode())

    def _write(self, folder: Path, source: Path | None = None) -> None:
        for path in _files(source):
            target = folder / path.relative_to(cast(Path, source))
            disk.make_folder(target.parent)
            try:
                disk.link(path, target)
            except OSError:  # another disk, or one without second names
                shutil.copyfile(path, target)
        if source is not None:  # of the run: a recipe has no policy of its own
            disk.write_file(folder / METHOD, (source.parent.parent / METHOD).read_bytes())
        self.record["logs"] = {name: log.position for name, log in self.folder.logs.items()}
        checkpoints.save_json(folder / RECORD, self.record)

    # The end

    def finish(self, method: Recipe, task: Task) -> Result:
        """All runs are done."""
        self.folder.finish({"step": self.record["step"], "seconds": self.record["seconds"]})
        return self.result(method, task)

    def result(self, method: Method, task: Task, why: str | None = None) -> Result:
        """What it left behind, its page among it."""
        from etude.evaluation.report import write_report
        from etude.runs.session import best_evaluation

        path = self.folder.path / "evaluation.json"
        write_report(self.folder.path, world_of(task).WORDING)
        return Result(
            self.folder.path, method.id, task.id, self.record["step"], self.record["seconds"],
            checkpoints.newest(self._root)[0], json.loads(path.read_text()) if path.is_file() else {},
            [why] if why else [], best_evaluation(self.folder.path, None),
        )  # fmt: skip


def _files(checkpoint: Path | None) -> Iterator[Path]:
    """What of a checkpoint somebody reads who acts: not what it learned from, and not what says that it is whole."""
    for path in sorted(checkpoint.rglob("*")) if checkpoint is not None else ():
        inside = path.relative_to(cast(Path, checkpoint)).parts
        if path.is_file() and inside[0] not in (checkpoints.STORED, checkpoints.COMPLETE, RECORD):
            yield path
