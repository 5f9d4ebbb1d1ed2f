"""The site: ``python -m sphinx -W --keep-going -b html docs docs/_build/html``.

The pages are plain Markdown, to be read in the repository as well. What only a site can do (its contents, the text of
examples, docstrings) is added here, while they are read.
"""

from __future__ import annotations

import re
from typing import Any

import shardwright

project = "Shardwright"
version = release = shardwright.__version__
project_copyright = "the authors of Shardwright"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "Shardwright"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
pygments_style = "friendly"

CONTENTS = """
:::{{toctree}}
:hidden:
{pages}
:::
"""
PAGES = {
    "index": [
        "Getting started <self>",
        "how_it_decides",
        "reading_a_plan",
        "pins_and_tactics",
        "sharded_programs",
        "kernels",
        "offloading",
        "compiler",
        "verifying",
        "tuning",
        "meshes",
        "memory_and_time",
        "stablehlo",
        "errors",
        "libraries",
        "comparison",
        "command_line",
        "api",
        "walk",
        "house",
        "benchmarks",
    ],
    "benchmarks": ["long_context", "benchmarks/*"],
}
EXAMPLE = re.compile(r"^\[`?\w+\.py`?\]\(\.\./(examples/\w+\.py)\)$", re.MULTILINE)
MEMBERS = (
    "Analysis",
    "Comparison",
    "Decision",
    "Device",
    "Estimate",
    "Fit",
    "Front",
    "InfeasibleError",
    "Link",
    "Plan",
    "Problem",
    "StableHLO",
    "Whole",
)
FUNCTIONS = ("partition", "evaluate", "load", "analyse", "pareto", "fit", "compare", "diff", "read_stablehlo")


def _for_the_site(app: Any, name: str, source: list[str]) -> None:  # noqa: ARG001 (Sphinx passes itself)
    text = EXAMPLE.sub(lambda m: f"{m[0]}\n\n:::{{literalinclude}} ../{m[1]}\n:::", source[0])
    if name == "api":
        text += _docstrings()
    if name in PAGES:
        glob = ":glob:\n" if any("*" in page for page in PAGES[name]) else ""
        text += CONTENTS.format(pages=glob + "\n".join(PAGES[name]))
    source[0] = text


def _docstrings() -> str:
    functions = "".join(f".. autofunction:: shardwright.{name}\n\n" for name in FUNCTIONS)
    members = "".join(f".. autoclass:: shardwright.{name}\n   :members:\n\n" for name in MEMBERS)
    errors = sorted(name for name in shardwright.__all__ if name.endswith("Error") and name not in MEMBERS)
    raised = "".join(f".. autoexception:: shardwright.{name}\n\n" for name in errors)
    return f"\n## In full\n\n```{{eval-rst}}\n{functions}{members}{raised}\n```\n"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _for_the_site)
