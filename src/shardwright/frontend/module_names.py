"""What a module calls the arguments and results of its main function, as a person would write it."""

from __future__ import annotations

import re
from typing import Any

from shardwright import _jax

_KEYS = re.compile(r"""\['([^']*)'\]|\["([^"]*)"\]|\[(?:<flat index )?(\d+)>?\]|\.([A-Za-z_]\w*)""")
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
    """The names in the attribute ``jax.result_info``; else ``result.0``, ``result.1`` and so on."""
    names = [f"result.{i}" for i in range(count)]
    if "res_attrs" in main.attributes:
        for i, attributes in enumerate(main.attributes["res_attrs"]):
            if "jax.result_info" in attributes:
                found = dotted(_jax.ir.StringAttr(attributes["jax.result_info"]).value)
                names[i] = found or names[i]
    return names if len(set(names)) == count else [f"result.{i}" for i in range(count)]


def dotted(text: str) -> str:
    """``params['w'][0].x`` as ``params.w.0.x``; what is no such path as it is."""
    whole = _PATH.fullmatch(text)
    if whole is None:
        return text
    return ".".join([whole.group(1), *("".join(filter(None, keys)) for keys in _KEYS.findall(whole.group(2)))])
