"""From a plan to an annotated module that JAX runs."""

from shardwright.apply.annotate import Annotation, annotate
from shardwright.apply.export import Sharded, annotated_module, export_annotated, export_plain
from shardwright.apply.specs import named, spec, spec_text
from shardwright.apply.stablehlo import annotated_stablehlo

__all__ = [
    "Annotation",
    "Sharded",
    "annotate",
    "annotated_module",
    "annotated_stablehlo",
    "export_annotated",
    "export_plain",
    "named",
    "spec",
    "spec_text",
]
