"""`--on ray` of `compare` and `claims run`: whole runs, and cells of experiments, on the machines of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_on_processes import outcome

import etude
from etude.core.errors import ConfigError, EtudeError
from etude.experiments import cells
from etude.runs.jobs import Job, Workers, jobs_for, log_of, run_jobs
from etude.runs.spread import OnRay, workers_of
from etude.runs.training import Result
from etude.runtime.executors.ray import Cluster
from plain_cells import square

FIELDS = ("problems=2", "experience.size=2")
FLAGS = ("--evaluate", "0")


@pytest.fixture
def machines(ray_cluster: Cluster) -> Iterator[OnRay]:
    """Two at a time, of the cluster of all tests."""
    pool = OnRay(count=2)
    pool.cluster.close()
    pool.cluster = ray_cluster
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "close", lambda: None)  # others need it still
        with pool:
            yield pool


def run_of(job: Job) -> Result:
    return Result(job.folder, "reinforce", "compose", 1, 0.0, job.folder / "checkpoints" / "step-1")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_of_a_cluster_is_the_run_that_is_done_here(machines: OnRay, tmp_path: Path) -> None:
    (job,) = jobs_for("reinforce", "compose", "tiny", 1, 1, FIELDS, tmp_path, flags=FLAGS)
    (bad,) = jobs_for("reinforce", "compose", "tiny", 1, 1, ("problems=0",), tmp_path, flags=FLAGS)
    run_jobs([job], machines, quiet=True)
    assert job.finished
    out = str(tmp_path / "here")
    here = etude.train(
        "reinforce", "compose", steps=1, set=FIELDS, preset=False, evaluate=0, threads=1, quiet=True, out=out
    )
    assert outcome(run_of(job)) == outcome(here)
    assert "step-1" in log_of(job).read_text() or log_of(job).is_file()
    with pytest.raises(EtudeError, match=r"The run of reinforce with seed 0 failed .*problems must be"):
        run_jobs([bad], machines, quiet=True)
    assert len(machines.idle) == 1, "one process did both"


@pytest.mark.slow
def test_cells_of_an_experiment_are_spread_and_one_that_is_lost_is_done_again(machines: OnRay, tmp_path: Path) -> None:
    jobs = [(number, str(tmp_path / "met")) for number in range(6)]
    with cells.kept_in(tmp_path):
        found = cells.spread(square, jobs)
    assert [number for number, _ in found] == [0, 1, 4, 9, 16, 25]
    assert os.getpid() not in {process for _, process in found}
    assert len({process for _, process in found}) >= 2


def test_where_whole_runs_are_done() -> None:
    with workers_of("local", 3) as count:
        assert count == 3
    for wrong in ("processes", "ray:2", "hogwild:2"):
        with pytest.raises(ConfigError, match="Whole runs are done --on local or --on ray, with --workers"):
            workers_of(wrong, None)
    with pytest.raises(ConfigError, match="Whole runs are done --on local or --on ray"):
        etude.compare(["grpo", "dapo"], on="processes")
    assert issubclass(OnRay, Workers)
