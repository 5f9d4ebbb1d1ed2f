"""A plan as one HTML file that needs nothing else: ``plan.report("plan.html")``."""

from shardwright.report.render import write_report

__all__ = ["write_report"]
