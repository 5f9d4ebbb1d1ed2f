"""What a module calls the arguments and results of its main function, as a person would write it."""

from __future__ import annotations

import re
from typing import Any

from shardwright import _jax

_KEYS = re.compile(r"""\['([^']*)'\]|\["([^"]*)"\]|\[(?:<flat index )?(\d+)>?\]|\.([A-Za-z_]\w*)""")
ALIAS = "tf.aliasing_output"
"""On an argument: the number of the result that takes its place, and its buffer."""
_PATH = re.compile(rf"([A-Za-z_]\w*)((?:{_KEYS.pattern})*)")


def argument_names(main: Any) -> list[str]:
    """The names in the arguments' locations, where JAX writes ``params['w']``; else ``arg0``, ``arg1`` and so on."""
    names = []
    for i, argument in enumerate(main.regions[0].blocks[0].arguments):
        text = str(argument.location)
        plain = text.startswith('loc("') and text.endswith('")')
        names.append(dotted(text[5:-2]) if plain else f"arg{i}")
    return names if len(set(names)) == len(names) else [f"arg{i}" for i in range(len(names))]


def result_names(main: Any, count: int) -> list[str]:
    """What results are called: one in an argument's place after it, others by ``jax.result_info``, else by number."""
    numbered = [f"result.{i}" for i in range(count)]
    names = list(numbered)
    for i, attributes in enumerate(attributes_of(main, "res_attrs")):
        if "jax.result_info" in attributes:
            names[i] = dotted(_jax.ir.StringAttr(attributes["jax.result_info"]).value) or names[i]
    for name, attributes in zip(argument_names(main), attributes_of(main, "arg_attrs"), strict=False):
        if ALIAS in attributes:
            names[_jax.ir.IntegerAttr(attributes[ALIAS]).value] = f"result.{name}"
    return names if len(set(names)) == count else numbered


def attributes_of(main: Any, each: str) -> list[Any]:
    """The attributes of each argument (``arg_attrs``) or result (``res_attrs``); none where there are none at all."""
    return list(main.attributes[each]) if each in main.attributes else []


def dotted(text: str) -> str:
    """``params['w'][0].x`` as ``params.w.0.x``; what is no such path as it is."""
    whole = _PATH.fullmatch(text)
    if whole is None:
        return text
    return ".".join([whole.group(1), *("".join(filter(None, keys)) for keys in _KEYS.findall(whole.group(2)))])
