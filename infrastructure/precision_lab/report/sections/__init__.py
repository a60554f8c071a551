"""Sections of the report: each explains what it shows and what good looks like.

A section without data names the command that makes them. One module for each group of sections;
`contents` puts them in order. Imports no torch.
"""

from infrastructure.precision_lab.report.sections.contents import all_sections
from infrastructure.precision_lab.report.sections.section import Figure, Section, Table

__all__ = ["Figure", "Section", "Table", "all_sections"]
