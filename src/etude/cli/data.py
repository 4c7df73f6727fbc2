"""`etude data`: data to learn from."""

from __future__ import annotations

from cyclopts import App

data = App(
    name="data",
    help="Data: `data make` records it, `data info` says what is in it, `data convert` puts what is larger than the "
    "memory into files that are mapped, `data collect` keeps what are tasks.",
)
data.command("etude.cli.data_make:make", name="make", help="Record data of behaviours, in Minari's format.")
data.command("etude.cli.data_info:info", name="info", help="What is in logs, and what they can support.")
data.command("etude.cli.data_convert:convert", name="convert", help="Logs that are larger than the memory, mapped.")
data.command("etude.cli.data_collect:collect", name="collect", help="Tasks from changes, by running their tests.")
