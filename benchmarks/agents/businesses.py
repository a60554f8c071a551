"""What the generated records of Genesis' fifteen business agents are about.

The words are invented; only the names of the agents are Genesis' own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Business:
    """The words of one agent.

    Attributes:
        name: Name of the agent.
        tasks: Kinds of tasks.
        state: What its initial state tells.
        situations: Values of that.
        tools: Tools to choose from.
        option: Argument of every tool.
        choices: Values of that.
    """

    name: str
    tasks: tuple[str, ...]
    state: str
    situations: tuple[str, ...]
    tools: tuple[str, ...]
    option: str
    choices: tuple[str, ...]


def _business(name: str, *, tasks: str, state: str, tools: str, option: str) -> Business:
    """Split lists of words at their commas, and a name from its values at the colon."""
    state, situations = state.split(": ")
    option, choices = option.split(": ")
    return Business(
        name=name,
        tasks=tuple(tasks.split(", ")),
        state=state,
        situations=tuple(situations.split(", ")),
        tools=tuple(tools.split(", ")),
        option=option,
        choices=tuple(choices.split(", ")),
    )


BUSINESSES = (
    _business(
        "marketing",
        tasks="announce a product, win back customers, fill a webinar, enter a new market",
        state="audience: founders, students, retailers",
        tools="run_ads, send_campaign, post_series, ask_partners",
        option="tone: factual, playful, urgent",
    ),
    _business(
        "builder",
        tasks="build a form, build a dashboard, add payments, add search",
        state="framework: react, django, rails",
        tools="scaffold, copy_component, write_by_hand, extend_template",
        option="tests: none, unit, end_to_end",
    ),
    _business(
        "content",
        tasks="explain a feature, compare two products, tell a case, answer a question",
        state="channel: blog, newsletter, documentation",
        tools="outline_first, draft_at_once, interview, reuse_article",
        option="length: short, medium, long",
    ),
    _business(
        "deploy",
        tasks="release a service, move a database, renew a certificate, change a quota",
        state="platform: kubernetes, virtual machine, edge",
        tools="rolling_update, blue_green, canary, maintenance_window",
        option="checks: smoke, load, manual",
    ),
    _business(
        "support",
        tasks="reset a password, explain an invoice, report an outage, cancel a plan",
        state="sentiment: calm, confused, angry",
        tools="send_steps, call_back, escalate, refund",
        option="style: brief, detailed, apologetic",
    ),
    _business(
        "qa",
        tasks="test a login, test a checkout, test an upload, test an export",
        state="history: new code, often broken, long stable",
        tools="write_cases, fuzz, replay_traffic, review_code",
        option="depth: happy path, edge cases, exhaustive",
    ),
    _business(
        "seo",
        tasks="raise a ranking, repair crawling, choose keywords, shorten titles",
        state="site: shop, magazine, handbook",
        tools="rewrite_page, build_links, fix_sitemap, merge_pages",
        option="scope: one page, one section, whole site",
    ),
    _business(
        "email",
        tasks="confirm an order, invite to a trial, remind of a payment, announce a change",
        state="list: active readers, silent readers, new readers",
        tools="plain_text, designed_letter, sequence, personal_note",
        option="hour: morning, noon, evening",
    ),
    _business(
        "legal",
        tasks="check a contract, answer a complaint, write terms, review a licence",
        state="jurisdiction: germany, california, singapore",
        tools="compare_clauses, search_cases, ask_counsel, use_template",
        option="strictness: lenient, usual, strict",
    ),
    _business(
        "security",
        tasks="find an injection, review access, analyse an alert, rotate keys",
        state="exposure: public, partner, internal",
        tools="static_scan, penetration_test, log_search, configuration_audit",
        option="severity: low, medium, high",
    ),
    _business(
        "billing",
        tasks="correct an invoice, chase a payment, change a plan, return a deposit",
        state="account: private, company, reseller",
        tools="issue_credit, send_reminder, open_dispute, edit_subscription",
        option="grace: none, one week, one month",
    ),
    _business(
        "analyst",
        tasks="explain a drop, forecast demand, compare cohorts, price a feature",
        state="data: daily, weekly, sparse",
        tools="regression, segmentation, experiment, time_series",
        option="confidence: low, medium, high",
    ),
    _business(
        "maintenance",
        tasks="clear a disk, upgrade a library, restart a queue, repair an index",
        state="load: idle, busy, overloaded",
        tools="run_script, schedule_job, patch_host, replace_host",
        option="notice: none, an hour, a day",
    ),
    _business(
        "onboarding",
        tasks="welcome a team, import data, train an admin, connect a calendar",
        state="size: one person, small team, enterprise",
        tools="guided_tour, live_call, checklist, migration_tool",
        option="pace: fast, steady, slow",
    ),
    _business(
        "spec",
        tasks="describe an interface, split a feature, record a decision, estimate an effort",
        state="certainty: clear, disputed, unknown",
        tools="write_examples, draw_diagram, hold_workshop, list_questions",
        option="detail: sketch, outline, complete",
    ),
)
"""The fifteen agents that ``genesis-fp16 agents enable genesis`` writes."""
