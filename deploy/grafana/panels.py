"""The kinds of panel of the dashboards, built with Grafana's typed builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import TypeVar

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)

Builder = TypeVar("Builder", timeseries.Panel, statetimeline.Panel, stat.Panel)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8

GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "#808080"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: Query in PromQL.
        legend: Name of its series, with ``{{label}}`` for the value of a label.
        marks: Whether it is drawn as points over the lines of the other queries.
    """

    expr: str
    legend: str
    marks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Fields of every kind of panel.

    Attributes:
        title: Title of the panel.
        why: Description: what it shows and when to worry.
        queries: At most 26 queries.
        nothing: Text of a panel whose queries return nothing; empty for "No data".
        unit: Grafana's name of the unit.
        span: Width in columns, at most 24.
    """

    title: str
    why: str
    queries: Sequence[Query]
    nothing: str = ""
    unit: str = "short"
    span: int = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines(Panel):
    """Lines over time.

    Attributes:
        log_base: Base of a logarithmic axis; 0 for a linear one.
        bars: Whether counts within each interval are drawn as bars instead of lines.
        warn_above: Limit that is drawn as a red line; None for none.
    """

    log_base: int = 0
    bars: bool = False
    warn_above: float | None = None

    def build(self, number: int) -> timeseries.Panel:
        """The builder of the panel with this *number* on its dashboard."""
        scale = common.ScaleDistributionConfig()
        scale.type(model.ScaleDistribution.LOG if self.log_base else model.ScaleDistribution.LINEAR)
        if self.log_base:
            scale.log(self.log_base)
        panel = (
            timeseries.Panel()
            .draw_style(model.GraphDrawStyle.BARS if self.bars else model.GraphDrawStyle.LINE)
            .fill_opacity(60 if self.bars else 8)
            .line_width(2)
            .show_points(model.VisibilityMode.NEVER)
            .span_nulls(False)
            .scale_distribution(scale)
            .legend(
                common.VizLegendOptions()
                .display_mode(model.LegendDisplayMode.LIST)
                .placement(model.LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(common.VizTooltipOptions().mode(model.TooltipDisplayMode.MULTI))
        )
        if self.bars:
            panel.stacking(common.StackingConfig().mode(model.StackingMode.NORMAL).group("A"))
        if self.warn_above is not None:
            panel.thresholds(_thresholds({None: GREEN, self.warn_above: RED}))
            panel.thresholds_style(
                common.GraphThresholdsStyleConfig().mode(model.GraphThresholdsStyleMode.LINE)
            )
        for letter, query in zip(ascii_uppercase, self.queries, strict=False):
            if query.marks:
                panel.override_by_query(letter, _points())
        return _finish(panel, self, number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline(Panel):
    """States over time: one row a series.

    Attributes:
        states: Value to the text and the colour that show it.
    """

    states: Mapping[int, tuple[str, str]]

    def build(self, number: int) -> statetimeline.Panel:
        """The builder of the panel with this *number* on its dashboard."""
        words = {
            str(value): ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(self.states.items())
        }
        panel = statetimeline.Panel().mappings([ValueMap(words)]).merge_values(True).row_height(0.8)
        return _finish(panel, self, number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Number(Panel):
    """The latest value, large.

    Attributes:
        steps: Lower bound of each colour; None for the lowest.
        name_only: Show the name of the series and not its value.
    """

    steps: Mapping[float | None, str]
    name_only: bool = False

    def build(self, number: int) -> stat.Panel:
        """The builder of the panel with this *number* on its dashboard."""
        mode = model.BigValueTextMode.NAME if self.name_only else model.BigValueTextMode.VALUE
        panel = (
            stat.Panel()
            .text_mode(mode)
            .graph_mode(model.BigValueGraphMode.NONE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            .thresholds(_thresholds(self.steps))
        )
        return _finish(panel, self, number).height(4)


def _finish(builder: Builder, panel: Panel, number: int) -> Builder:
    builder.id(number).title(panel.title).description(panel.why).unit(panel.unit)
    builder.datasource(SOURCE).span(panel.span).height(HEIGHT)
    if panel.nothing:
        builder.no_value(panel.nothing)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).range()
        builder.with_target(target.ref_id(letter).datasource(SOURCE))
    return builder


def _thresholds(steps: Mapping[float | None, str]) -> ThresholdsConfig:
    bounds = [Threshold(value=value, color=color) for value, color in steps.items()]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(bounds)


def _points() -> list[DynamicConfigValue]:
    looks = {
        "custom.drawStyle": "points",
        "custom.showPoints": "always",
        "custom.pointSize": 7,
        "color": {"mode": "fixed", "fixedColor": RED},
    }
    return [DynamicConfigValue(id_val=name, value=value) for name, value in looks.items()]
