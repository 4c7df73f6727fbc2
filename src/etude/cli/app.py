"""The table of verbs."""

from __future__ import annotations

from cyclopts import App

from etude import __version__
from etude.cli.config import from_file

app = App(
    name="etude",
    help="Reinforcement learning where every method is a short composition of shared parts. "
    "`etude train` with no arguments trains a small language model in a minute.",
    version=__version__,
    suppress_keyboard_interrupt=False,
    config=from_file,
)
app.register_install_completion_command()
VERBS = {
    "train": ("etude.cli.train:train", "Train a method on a task."),
    "evaluate": (
        "etude.cli.evaluate:evaluate",
        "How good a model or a controller is: pass@k or returns, with intervals.",
    ),
    "compare": ("etude.cli.compare:compare", "Train what is missing, then compare methods with statistics."),
    "tune": ("etude.cli.tune:tune", "Look for better settings, by successive halving."),
    "data": ("etude.cli.data:data", "Data to learn from: `data make ENV` records it, `data info PATH` describes it."),
    "methods": ("etude.cli.methods:methods", "List the methods; `methods show ID` explains one."),
    "tasks": ("etude.cli.tasks:tasks", "List the tasks; `tasks show ID` gives examples of one."),
    "parts": ("etude.cli.parts:parts", "List what can fill each slot of a method."),
    "claims": ("etude.cli.claims:claims", "The table of claims and verdicts; `claims run ID` checks one."),
    "beds": ("etude.cli.beds:beds", "What methods are compared on; `beds make NAME` measures one."),
    "studies": ("etude.cli.studies:studies", "Recipes of training on several beds; `studies run ID` does one."),
    "engine": (
        "etude.cli.engine:engine",
        "Who samples beside a run: `engine start native|vllm|sglang`, `engine show URL`.",
    ),
    "new": ("etude.cli.new:new", "A commented start of your own task, reward, method, environment or config."),
    "check": ("etude.cli.check:check", "What is wrong with an environment, a task or a part, before a run."),
    "museum": ("etude.cli.museum:museum", "Faults that others reported, and what etude does about each."),
    "doctor": ("etude.cli.doctor:doctor", "What there is on this machine, and what to install for what."),
    "pretrain": ("etude.cli.pretrain:pretrain", "Make a base model that comes with etude."),
    "export": ("etude.cli.export:export", "A policy as others use it: a Hugging Face folder, or a program of control."),
    "report": ("etude.cli.report:report", "Write the page of a run, or of several."),
}
for name, (home, summary) in VERBS.items():
    app.command(home, name=name, help=summary)
