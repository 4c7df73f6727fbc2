"""Environments by name: ids of Gymnasium and EnvPool, and a user's own as module:Class or file.py:Class."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from etude.core.errors import ConfigError, EnvironmentFault, EtudeError, MissingExtraError, UnknownNameError
from etude.core.fields import describe

if TYPE_CHECKING:
    import gymnasium as gym

ID = re.compile(r"(?:[A-Za-z_][\w.]*:)?(?:[\w-]+/)?[\w.-]+-v\d+")
"""Name-vN, perhaps with a namespace before a slash, or with a module before a colon that registers it."""
EXTRAS = {"mujoco": "control", "imageio": "control", "pygame": "control", "box2d": "box2d"}
"""Which extra of etude brings what an environment of Gymnasium needs."""
NAMESPACES = {"MinAtar": "minatar"}
"""Which extra of etude, and which package, brings the environments of a namespace."""
BUILT_IN = {"CartPole-v1": "cartpole.CartPoleArrays", "Pendulum-v1": "pendulum.PendulumArrays"}
"""Ids whose environment is built in, over arrays, with the same spaces, starts, dynamics, rewards and time limits."""

_log = logging.getLogger("etude.tasks")
GIVEN: dict[str, Callable[..., Any]] = {}
"""What makes environments that only live in this program, by what they are called: `<MyEnv>`."""


def give(name: str, make: Callable[..., Any]) -> str:
    """Let environments be made by a class or function without a name; returns the name that it got, `<MyEnv 2>` say."""
    label, n = name, 1
    while GIVEN.setdefault(label, make) is not make:
        n += 1
        label = f"{name[:-1]} {n}>"
    return label


def is_id(name: str) -> bool:
    """Whether a name looks like an id; nothing is imported to find out."""
    return ID.fullmatch(name) is not None


def is_environment(thing: object) -> bool:
    """Whether an object is a class of environments; nothing is imported to find out."""
    gym = sys.modules.get("gymnasium")
    return gym is not None and isinstance(thing, type) and issubclass(thing, gym.Env)


def returns_environment(thing: object, name: str) -> bool:
    """Whether a function returns an environment: it is called once. Raises EnvironmentFault if it raises."""
    import inspect

    if isinstance(thing, type) or not callable(thing):
        return False
    try:
        inspect.signature(thing).bind()
    except (TypeError, ValueError):
        return False
    made = _call(thing, name, {})
    gym = sys.modules.get("gymnasium")
    if gym is None or not isinstance(made, gym.Env):
        if why := _returned(made, name):
            raise ConfigError(why)
        return False
    made.close()
    return True


def remade(thing: object) -> Any:
    """What makes environments like one that `gym.make` made, since many are needed; all else as it is."""
    gym = sys.modules.get("gymnasium")
    if gym is None or not isinstance(thing, gym.Env) or thing.spec is None:
        return thing
    return functools.partial(gym.make, thing.spec)


def no_environment(thing: object, name: str) -> str:
    """Why something that looks like an environment is none; '' for all else."""
    if _of_several(thing):
        return (
            f"{name} is a PettingZoo environment, of several agents, and a policy here is one agent's: write a "
            "gymnasium.Env in which the others act by fixed policies, and name that."
        )
    return ""


def _of_several(thing: object) -> bool:
    """Whether it is one of PettingZoo's, a class or an instance; nothing is imported to find out."""
    cls = thing if isinstance(thing, type) else type(thing)
    return any(c.__module__.partition(".")[0] == "pettingzoo" for c in cls.__mro__)


def _returned(made: object, name: str) -> str:
    """What is wrong with what a function returned instead of an environment."""
    if _of_several(made):
        return no_environment(made, name)
    if is_environment(made):
        return f"{name} returns the class {getattr(made, '__name__', made)}, not an environment: name the class itself."
    if callable(made) and not isinstance(made, type):
        return f"{name} is a function that returns a function: name the one that returns the environment."
    got = "nothing" if made is None else f"{type(made).__name__} ({str(made)[:60]})"
    return f"{name} is a function that returns {got}; it must return a gymnasium.Env, or be a Task itself."


def built_in(name: str) -> Any:
    """The class of arrays that has an id's environment."""
    module, _, attribute = BUILT_IN[name].partition(".")
    return getattr(importlib.import_module(f"etude.tasks.control.{module}"), attribute)


@functools.cache
def envpool_ids() -> frozenset[str]:
    """EnvPool's ids; none without the package."""
    if importlib.util.find_spec("envpool") is None:
        return frozenset()
    from etude.experience.envpool_vector import import_envpool

    return frozenset(import_envpool().list_all_envs())


RESERVED = frozenset({
    "num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path", "seed",
    "env_seed", "gym_reset_return_info", "task", "task_name",
})  # fmt: skip
"""Options of EnvPool that are decided here."""


def check_envpool_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise UnknownNameError, with the closest, for options that EnvPool's environment has not; ConfigError for values
    of another kind than theirs."""
    from etude.experience.envpool_vector import import_envpool

    known = {k: v for k, v in import_envpool().make_spec(name).config._asdict().items() if k not in RESERVED}
    for key, value in arguments.items():
        if key not in known:
            listed = ", ".join(sorted(known))
            raise UnknownNameError(f"argument of EnvPool's {name}", key, known, f"It takes: {listed}.")
        kind = type(known[key])
        number = kind is float and type(value) is int
        if kind in (bool, int, float, str) and type(value) is not kind and not number:
            raise ConfigError(
                f"task.arguments.{key} of {name} must be {describe(kind)} (EnvPool's is {known[key]!r}), got {value!r}."
            )


def gymnasium_ids() -> frozenset[str]:
    """The ids that are registered with Gymnasium by now."""
    import gymnasium as gym

    return frozenset(gym.registry)


@functools.cache
def load_plugins() -> None:
    """Let installed packages register their environments: those of the entry point `gymnasium.envs`.

    Gymnasium did so when it was imported, before 1.4. What cannot be loaded is said, and left out.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group="gymnasium.envs"):
        try:
            register = point.load()
            if callable(register):
                register()
        except Exception as error:  # somebody else's code
            _log.warning("The environments of %s could not be registered: %s", point.name, error)


def only_envpool(name: str) -> bool:
    """Whether EnvPool has an id and Gymnasium has not."""
    return is_id(name) and name in envpool_ids() and name not in gymnasium_ids()


def check_known(name: str, backend: Literal["auto", "envpool", "gymnasium"]) -> None:
    """Raise UnknownNameError, with the closest ids, for an id that nobody has."""
    if backend == "envpool":
        if importlib.util.find_spec("envpool") is None:
            raise MissingExtraError("The backend envpool", "control")
        if name not in envpool_ids():
            raise UnknownNameError("environment of EnvPool", name, envpool_ids(), "backend=gymnasium may have it.")
        return
    module, _, bare = name.rpartition(":")
    if module:
        from etude.core.registry import import_source

        import_source(module)
    if not module and name not in gymnasium_ids() | envpool_ids():
        load_plugins()
    known = gymnasium_ids() if backend == "gymnasium" else gymnasium_ids() | envpool_ids()
    if bare not in known and name not in known:
        package = NAMESPACES.get(name.partition("/")[0])
        if package is not None and importlib.util.find_spec(package) is None:
            raise MissingExtraError(name, package)
        hint = "Your own are named as file.py:Class."
        if name in envpool_ids():
            hint = "EnvPool has it: leave task.backend out."
        elif importlib.util.find_spec("envpool") is None:
            hint = f"pip install 'etude[control]' brings EnvPool, which has about 1,600 more. {hint}"
        raise UnknownNameError("environment", name, known, hint)


def own_bounds(name: str) -> bool:
    """Whether the bounds of its observations are taken at their word: not for Gymnasium's own environments.

    LunarLander and BipedalWalker leave theirs, and who trains on them cannot change that.
    """
    if not is_id(name):
        return True
    import gymnasium as gym

    spec = gym.registry.get(name.rpartition(":")[2])
    return spec is None or not str(spec.entry_point).startswith("gymnasium.envs.")


def open_environment(name: str, arguments: Mapping[str, Any]) -> gym.Env:
    """Make one environment of Gymnasium, or the user's own.

    Raises: MissingExtraError for a package that is not installed, EnvironmentFault with the user's line if it cannot
    be made, ConfigError for arguments that it does not take and for what is no environment.
    """
    import gymnasium as gym

    if is_id(name):
        return _registered(name, arguments)
    from etude.core.registry import load_task

    task = remade(GIVEN[name] if name in GIVEN else load_task(name))
    if not callable(task):
        advice = ": name its class, many are made of it" if isinstance(task, gym.Env) else ""
        raise ConfigError(f"{name} must be a gymnasium.Env class or a function, got {type(task).__name__}{advice}.")
    made = _call(task, name, arguments)
    if not isinstance(made, gym.Env):
        raise ConfigError(f"{name} must make a gymnasium.Env, got {type(made).__name__}.")
    return made


@functools.cache
def _listen_to_mujoco() -> None:
    """Have MuJoCo's warnings in the log, instead of in a MUJOCO_LOG.TXT that it writes to whatever folder this is."""
    if importlib.util.find_spec("mujoco") is not None:
        importlib.import_module("mujoco").set_mju_user_warning(_log.info)


def _registered(name: str, arguments: Mapping[str, Any]) -> gym.Env:
    import gymnasium as gym

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions and of the precision of bounds
        if ":" not in name and name not in gym.registry:
            load_plugins()
        if name in gym.registry and "mujoco" in str(gym.registry[name].entry_point):
            _listen_to_mujoco()
        try:
            return gym.make(name, disable_env_checker=True, **arguments)
        except gym.error.UnregisteredEnv as error:
            raise UnknownNameError("environment", name, gymnasium_ids(), str(error)) from None
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            message = str(error)
            for package, extra in EXTRAS.items():
                if package in message.lower() and "moved to" not in message:
                    raise MissingExtraError(f"{name} ({message.splitlines()[0].rstrip('.')})", extra) from None
            raise ConfigError(f"{name} cannot be made: {message}") from None
        except TypeError as error:
            raise ConfigError(f"{name} cannot be made with arguments={dict(arguments)}: {error}") from None
        except Exception as error:
            raise _unmade(name, error) from error


def _call(make: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    import inspect

    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        what = f"arguments={dict(arguments)}" if arguments else "no arguments"
        raise ConfigError(f"{name} cannot be made with {what}: {error} (set task.arguments).") from None
    except ValueError:  # it has no signature to look at
        pass
    try:
        return make(**arguments)
    except EtudeError:
        raise
    except Exception as error:
        raise _unmade(name, error) from error


def _unmade(name: str, error: Exception) -> EnvironmentFault:
    from etude.experience.environment_faults import culprit

    return EnvironmentFault(f"{name} cannot be made: {culprit(error)}.")
