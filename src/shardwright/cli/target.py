"""What a command works on: a built-in model, a function of the user's, or a StableHLO file."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwright.cli.process import Terminated
from shardwright.errors import TargetError, TraceError, nearest
from shardwright.frontend import read_stablehlo, stablehlo_program, trace
from shardwright.ir.program import Program
from shardwright.models import MODELS, build

_OPTIONS = ("donate", "kwargs", "static_argnames")
_FILE_ENDINGS = (".mlir", ".mlirbc", ".stablehlo", ".bc")


@dataclass(frozen=True)
class Target:
    """A program to work on, not yet traced: a function with arguments and options, or a file."""

    name: str
    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] | None = None
    file: Path | None = None

    def program(self, *, platform: str | None, **more: Any) -> Program:
        """Trace or read it."""
        if self.file is not None:
            return stablehlo_program(self.file, **more)
        assert self.fn is not None
        return trace(self.fn, *self.args, platform=platform, **(self.options or {}), **more)

    def called(self) -> Target:
        """Itself if it is a function; a file as the function that its module is."""
        if self.file is None:
            return self
        module = read_stablehlo(self.file)
        return Target(self.name, module, module.args, {"donate": module.donate})


def find_target(text: str, sizes: Mapping[str, Any]) -> Target:
    """Resolve what the user typed: a file, ``module:function``, or a model's name with its sizes."""
    if (file := target_file(text)) is not None:
        _refuse_sizes(text, sizes)
        return Target(text, file=file)
    if ":" in text:
        _refuse_sizes(text, sizes)
        return _function(text)
    if text not in MODELS and _is_module(text):
        raise TargetError(f"{text!r} is a module; name the function in it that returns (fn, args): {text}:function.")
    fn, args, options = build(text, **sizes)
    return Target(text, fn, args, options)


def target_file(text: str) -> Path | None:
    """The file that the user typed, if it is one."""
    return Path(text) if text.endswith(_FILE_ENDINGS) or (os.sep in text and ":" not in text) else None


def _refuse_sizes(text: str, sizes: Mapping[str, Any]) -> None:
    if sizes:
        raise TargetError(f"sizes ({', '.join(sizes)}) can be set for built-in models only, and {text!r} is none.")


def _is_module(name: str) -> bool:
    with _looking_here():
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False


@contextlib.contextmanager
def _looking_here() -> Iterator[str]:
    """Make modules in the working directory importable, as ``python -m`` does; afterwards all others come first."""
    try:
        here = os.getcwd()
    except OSError as error:
        raise TargetError(f"the working directory cannot be used: {error.strerror}.") from None
    before = here in sys.path
    if not before:
        sys.path.insert(0, here)
    try:
        yield here
    finally:
        if not before and here in sys.path:
            sys.path.remove(here)
            sys.path.append(here)


def _function(text: str) -> Target:
    module_name, _, function_name = text.partition(":")
    if "" in (module_name, function_name):
        raise TargetError(f"{text!r} should be package.module:function.")
    with _looking_here() as here:
        return _checked(text, _made(text, _imported(module_name, here), function_name))


def _imported(module_name: str, here: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            known = [m.name for m in pkgutil.iter_modules([here])]
            raise TargetError(f"there is no module {module_name!r}{nearest(module_name, known, cutoff=0.5)}.") from None
        raise TargetError(
            f"importing {module_name!r} failed: it needs {error.name!r}, which is not installed."
        ) from error
    except (KeyboardInterrupt, Terminated):
        raise
    except SystemExit as error:
        raise TargetError(f"importing {module_name!r} ended with sys.exit({error.code!r}).") from error
    except BaseException as error:
        raise TargetError(f"importing {module_name!r} failed with {type(error).__name__}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _made(text: str, module: ModuleType, function_name: str) -> Any:
    module_name = text.partition(":")[0]
    function = getattr(module, function_name, None)
    if function is None:
        named = [n for n in dir(module) if callable(getattr(module, n)) and not n.startswith("_")]
        raise TargetError(
            f"module {module_name!r} has no {function_name!r}{nearest(function_name, named, cutoff=0.5)}."
        )
    if not callable(function):
        raise TargetError(f"{text!r} is not a function but a {type(function).__name__}.")
    try:
        return function()
    except (KeyboardInterrupt, Terminated):
        raise
    except SystemExit as error:
        raise TraceError(f"{text!r} ended with sys.exit({error.code!r}).") from error
    except BaseException as error:
        raise TraceError(f"{text!r} failed with {type(error).__name__}: {_words(error)}") from error


def _checked(text: str, made: Any) -> Target:
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise TargetError(
            f"{text!r} must return (fn, args) or (fn, args, {{'donate': (0,)}}), not {type(made).__name__}."
        )
    fn, args, options = made if len(made) == 3 else (*made, {})
    if not isinstance(args, (tuple, list)) or not isinstance(options, Mapping):
        raise TargetError(f"{text!r} must return its arguments as a tuple, and its options, if any, as a dict.")
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise TargetError(f"{text!r} returns the option {unknown[0]!r}; known options: {', '.join(_OPTIONS)}.")
    return Target(text, fn, tuple(args), options)
