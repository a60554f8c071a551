"""The report: one page of HTML that opens offline, and the same as Markdown with SVG files.

`reading` takes what a folder of results holds, `sections` and `verdict` choose figures and words,
`drawing` makes SVG, `page` writes files. matplotlib and Jinja2 come with the extra ``lab``.
"""

from infrastructure.precision_lab.report.page import WrittenReport, write_report
from infrastructure.precision_lab.report.reading import LabResults, ReportError, read_results

__all__ = ["LabResults", "ReportError", "WrittenReport", "read_results", "write_report"]
