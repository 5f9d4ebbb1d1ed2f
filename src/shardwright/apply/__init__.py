"""From a plan to an annotated module that JAX runs."""

from shardwright.apply.annotate import Annotation, annotate
from shardwright.apply.export import export_annotated, named, spec

__all__ = ["Annotation", "annotate", "export_annotated", "named", "spec"]
