"""Writes ``prometheusrule.yaml`` from Prometheus' own rules: ``make manifests``."""

from __future__ import annotations

import textwrap
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RULES = FOLDER.parents[1] / "prometheus" / "rules" / "genesis.rules.yml"
TARGET = FOLDER / "prometheusrule.yaml"
HEADER = """\
# Made from deploy/prometheus/rules by `make manifests`: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: genesis-fp16
spec:
"""


def prometheus_rule() -> str:
    """The rules as the Prometheus operator takes them."""
    return HEADER + textwrap.indent(RULES.read_text(), "  ")


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule())
