"""What a policy sees of an episode while it is evaluated: what it saw while it was trained, if nothing else is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.core.edit import part_named, with_field
from etude.core.errors import ConfigError
from etude.core.part import Part, together
from etude.experience.views import FullHistory, View, view_of
from etude.runs.searching import FIELD, check_all
from etude.runs.worlds.seats import method_of

if TYPE_CHECKING:
    from etude.core.task import LanguageTask


def view_asked(said: str | Part | None, checkpoint: str, task: LanguageTask) -> View:
    """A view as `--view` says it: its name with fields after commas, as in `summary-at,most=8`.

    Fields that are not said are those of the run whose checkpoint this is, if it has that view; without a word the view
    is the run's own, and everything of what is no run's.

    Raises: ConfigError, with the nearest names and the range of a value, for what there is not, and for a view of a
        task of one turn.
    """
    method = method_of(checkpoint)
    own = FullHistory() if method is None else view_of(method, task)
    if said is None:
        return own
    if task.max_turns == 1:
        raise ConfigError(f"--view is what is seen before each turn, and task {task.id!r} has one: leave it out.")
    if isinstance(said, View):
        return said
    if not isinstance(said, str):
        raise ConfigError(f"view takes text like 'last-turns,turns=2' or an etude.experience.views.View, got {said!r}.")
    name, *fields = FIELD.split(said.strip())
    with together():
        part = part_named(name, View, "--view")
        part = own if type(part) is type(own) else part
        for field in fields:
            part = with_field(part, field)
    check_all(part)
    assert isinstance(part, View)
    return part
