"""What tests of several rooms share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import etude  # noqa: F401  # isort: skip  # before torch, so that reproducible kernels are asked for
import pytest
from hypothesis import settings

import processes

if TYPE_CHECKING:  # who only hands out tests to others does not wait for torch
    from etude.core.batches import TokenBatch, TokenLogProbs
    from etude.runtime.executors.ray import Cluster

settings.register_profile("etude", deadline=None)  # how long an example takes depends on what else runs here
settings.register_profile("fast", parent=settings.get_profile("etude"), max_examples=15)
settings.load_profile("etude")


EXACT = set[bool]()
"""What was found where a member was compared with a run of its own, in this process or in those that it started."""
COST = "processor time"
COSTLY = 0.75
"""Seconds that nothing of the fast part should take: what takes more than 0.15 on an idle processor is marked slow."""


def is_fast(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "not slow")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is heard in a shell's background too; fewer random examples in the fast part."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_fast(config):
        settings.load_profile("fast")


@pytest.hookimpl(tryfirst=True)  # ahead of the collection itself
def pytest_collection(session: pytest.Session) -> None:
    """Processes that work side by side compile a share of the tests each, and find the others' on the disk."""
    own: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if own is None:
        return
    folders = [Path(arg).resolve() for arg in session.config.args if Path(arg).is_dir()]
    files = sorted({file for folder in folders for file in folder.rglob("test_*.py")})
    for file in files[int(own["workerid"].removeprefix("gw")) :: own["workercount"]]:
        with suppress(session.CollectError):  # what is wrong with it is said where it is collected
            _ = pytest.Module.from_parent(session, path=file).obj


@pytest.hookimpl(tryfirst=True)  # ahead of the deselection by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `first` all parameters are slow but those whose ids the mark names, else the first."""
    tests = dict[str, dict[str, pytest.Item]]()
    for item in items:
        if item.get_closest_marker("first"):
            test, _, parameters = item.nodeid.partition("[")
            tests.setdefault(test, {})[parameters.removesuffix("]")] = item
    for cases in tests.values():
        names = [x for mark in next(iter(cases.values())).iter_markers("first") for x in mark.args if x in cases]
        for slow in cases.keys() - (names or [next(iter(cases))]):
            cases[slow].add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not _on_ray(item))  # the first of several processes has them all, and one Ray


def _on_ray(item: pytest.Item | None) -> bool:
    return "ray_cluster" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)  # after its own fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ray ends with the last test that needs it: it is busy also when nobody asks it anything."""
    if isinstance(item, pytest.Function) and _on_ray(item) and not _on_ray(nextitem):
        for cluster in item.session._fixturemanager.getfixturedefs("ray_cluster", item) or ():
            cluster.finish(item._request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A test's processor time goes into its report, also that of fixtures which it makes for others."""
    yield from _measured(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _measured(item)


def _measured(item: pytest.Item) -> Iterator[None]:
    before = os.times()
    yield
    item.user_properties.append((COST, sum(os.times()[:4]) - sum(before[:4])))


def pytest_collection_finish() -> None:
    """What was imported stays: collecting garbage need not look through it again and again.

    Nor need pytest listen to each of torch's loggers in each phase of each test: what they say comes to the root's.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What the tests of this process compared members to is known to it, or to whom it works for."""
    solo = sys.modules.get("solo_runs")
    if solo is not None and solo.exact_here.cache_info().currsize:
        output = getattr(session.config, "workeroutput", None)
        EXACT.add(solo.exact_here()) if output is None else output.update(exact=solo.exact_here())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    EXACT.update(v for k, v in getattr(node, "workeroutput", {}).items() if k == "exact")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests of the fast part are not, and what a member equalled a run of its own to, wherever asserted."""
    from etude.core.kernels import requested

    if is_fast(terminalreporter.config):
        for test, seconds in _costly(terminalreporter.stats.get("passed", [])):
            terminalreporter.write_line(f"{seconds:.1f} s of processor time, mark it slow: {test}")
    for exact in EXACT:
        to = "bit for bit" if exact else "to 1e-5"
        terminalreporter.write_line(f"members of a population equal their own runs {to} here (kernels: {requested()})")


def _costly(reports: Iterable[pytest.TestReport]) -> list[tuple[str, float]]:
    """The tests that took more than they may in the fast part, and how much, the most first."""
    took = {r.nodeid: sum(float(v) for k, v in r.user_properties if k == COST) for r in reports if r.when == "call"}
    return sorted(((k, v) for k, v in took.items() if v > COSTLY), key=lambda each: -each[1])


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One torch thread: numbers are then the same everywhere, and small models are faster."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def no_fsync() -> Iterator[None]:
    """Nothing waits for the disk: what is fsynced, and in which order, is looked at where it is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)
        yield


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes for runs and cells are forked by one that has imported what they need, instead of importing it."""
    monkeypatch.setattr("etude.runs.jobs.worker", processes.Worker)
    monkeypatch.setattr("multiprocessing.get_context", lambda method: processes.CONTEXT)


@pytest.fixture(params=["float32", "float64"])
def tolerance(request: pytest.FixtureRequest) -> Iterator[float]:
    """How near numbers of this type have to be, while all new ones are of it."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield 1e-5 if request.param == "float32" else 1e-9
    torch.set_default_dtype(before)


@pytest.fixture
def forked_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of worker processes (`runtime/workers.py`): samplers, and workers that share their weights."""
    import subprocess
    from types import SimpleNamespace

    own = SimpleNamespace(
        Popen=processes.Served, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )  # fmt: skip
    monkeypatch.setattr("etude.runtime.workers.subprocess", own)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """One Ray for all tests, of this machine: four places, little memory. Others join it at its `head`."""
    pytest.importorskip("ray")
    from etude.runtime.executors.ray import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", "200000000")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "ab" * 32)
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster(cpus=4)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def make_batch() -> Callable[..., TokenBatch]:
    """A float64 batch from an action mask [B, T] (nested lists of 0 and 1); every other field can be given."""
    import torch

    from etude.core.batches import TokenBatch

    def make(mask: Any, **changes: Any) -> TokenBatch:
        action = torch.as_tensor(mask, dtype=torch.bool)
        zeros = torch.zeros(action.shape, dtype=torch.float64)
        row = torch.zeros(len(action), dtype=torch.float64)
        fields: dict[str, Any] = {
            "tokens": torch.zeros(action.shape, dtype=torch.long),
            "attention_mask": torch.ones_like(action),
            "action_mask": action,
            "behaviour_logp": zeros,
            "rewards": zeros,
            "group": torch.zeros(len(action), dtype=torch.long),
            "weights": row + 1,
            "scores": row,
            "truncated": torch.zeros(len(action), dtype=torch.bool),
        }
        tensors = {k: v if hasattr(v, "dim") else torch.tensor(v) for k, v in changes.items() if k != "episodes"}
        exact = {k: v.double() if v.is_floating_point() else v for k, v in tensors.items()}
        return TokenBatch(**{**fields, **exact, **{k: v for k, v in changes.items() if k == "episodes"}})

    return make


@pytest.fixture
def logprobs() -> Callable[..., TokenLogProbs]:
    """What a policy says, from nested lists or tensors, in float64."""
    import torch

    from etude.core.batches import TokenLogProbs

    def make(logp: Any, **others: Any) -> TokenLogProbs:
        return TokenLogProbs(
            torch.as_tensor(logp, dtype=torch.float64),
            **{k: torch.as_tensor(v, dtype=torch.float64) for k, v in others.items()},
        )

    return make
