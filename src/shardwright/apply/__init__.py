"""From a plan to an annotated module that JAX runs."""

from shardwright.apply.annotate import Annotation, annotate
from shardwright.apply.export import (
    Lowered,
    Sharded,
    annotated_module,
    calls_python,
    export_annotated,
    export_plain,
    lower_annotated,
)
from shardwright.apply.module_file import annotated_stablehlo
from shardwright.apply.specs import named, spec, spec_text

__all__ = [
    "Annotation",
    "Lowered",
    "Sharded",
    "annotate",
    "annotated_module",
    "annotated_stablehlo",
    "calls_python",
    "export_annotated",
    "export_plain",
    "lower_annotated",
    "named",
    "spec",
    "spec_text",
]
