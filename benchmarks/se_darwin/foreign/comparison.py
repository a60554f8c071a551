"""What attempts show: executions with and without the model, repairs, and right repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.se_darwin.foreign.attempt import AttemptRecord, Conditions
from benchmarks.se_darwin.statistics import ModuleBootstrap

_RESAMPLES, _SEED = 4000, 0
_ALL = "all"

_Attempts = Mapping[str, AttemptRecord]


def compare(records: Sequence[AttemptRecord], within: int | None = None) -> str:
    """Return the report of *records* as Markdown tables.

    With *within*, all are cut to that budget of executions: a repair that took more counts as none.

    An attempt without a repair counts the full budget of executions; one that could not be made
    counts as one without a repair. Intervals are 95 %, from resamples of bugs.

    Raises:
        ValueError: *records* is empty, or contains two attempts at a bug under the same conditions,
            or attempts with different budgets.
    """
    if not records:
        raise ValueError("the files have no attempts: run some first")
    if within is not None:
        records = [_cut(record, within) for record in records]
    budgets = {(each.conditions.max_seconds, each.conditions.max_evaluations) for each in records}
    if len(budgets) > 1:
        raise ValueError(f"these attempts had different budgets: {sorted(budgets)}")
    [(seconds, evaluations)] = budgets
    by_ranker: dict[str, dict[str, AttemptRecord]] = {}
    for record in records:
        attempts = by_ranker.setdefault(_label(record.conditions), {})
        if record.digest in attempts:
            raise ValueError(
                f"two attempts at {record.source}/{record.name} by "
                f"{_label(record.conditions)}: name each file once"
            )
        attempts[record.digest] = record
    lines = [
        f"Budget of a bug: {seconds:g} s and {evaluations} executions.",
        "",
        *_repairs(by_ranker),
        *_support(by_ranker),
        *_in_order(by_ranker),
        *_answers(by_ranker),
        *_executions(by_ranker),
        *_over_seeds(by_ranker),
        *_losses(by_ranker),
    ]
    return "\n".join(lines)


def _cut(record: AttemptRecord, within: int) -> AttemptRecord:
    """What the attempt would have been with at most *within* executions.

    Raises:
        ValueError: It had fewer.
    """
    conditions = record.conditions
    if conditions.max_evaluations < within:
        raise ValueError(
            f"an attempt at {record.source}/{record.name} had only {conditions.max_evaluations} "
            f"executions, not {within}"
        )
    update: dict[str, object] = {
        "conditions": conditions.model_copy(update={"max_evaluations": within}),
        "answered": record.answered and _cut(record.answered, within),
    }
    if record.executions > within:
        update |= {"executions": within, "repaired": False, "right": False, "answered": None}
    return record.model_copy(update=update)


def _label(conditions: Conditions) -> str:
    name: str = conditions.ranker
    if name == "model":
        name = f"model {conditions.model}" if conditions.model else "shipped model"
    if conditions.proposer:
        model = conditions.proposer_options.get("model", "")
        name += f" and {conditions.proposer} {model}".rstrip()
    return name if conditions.seed == 0 else f"{name}, seed {conditions.seed}"


def _sources(attempts: _Attempts) -> list[str]:
    sources = sorted({record.source for record in attempts.values()})
    return [*sources, _ALL] if len(sources) > 1 else sources


def _of(attempts: _Attempts, source: str) -> dict[str, AttemptRecord]:
    return {
        digest: record for digest, record in attempts.items() if source in (_ALL, record.source)
    }


def _cost(record: AttemptRecord) -> int:
    return record.executions if record.repaired else record.conditions.max_evaluations


def _repairs(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    yield "| source | ranker | bugs | repaired | right | right of repaired | not tried | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for ranker, attempts in sorted(by_ranker.items()):
        for source in _sources(attempts):
            chosen = _of(attempts, source).values()
            repaired = [record for record in chosen if record.repaired]
            right = sum(record.right for record in repaired)
            bugs = len(chosen)
            yield (
                f"| {source} | {ranker} | {bugs} | {_share(len(repaired), bugs)} "
                f"| {_share(right, bugs)} | {_share(right, len(repaired))} "
                f"| {sum(bool(record.error) for record in chosen)} "
                f"| {sum(record.seconds for record in chosen):.0f} |"
            )


def _support(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    """Tell how many repairs are right by what `evolve` says of them."""
    yield ""
    yield "| ranker | evolve calls it | repairs | right | wrong, with a question |"
    yield "|---|---|---|---|---|"
    for ranker, attempts in sorted(by_ranker.items()):
        levels: dict[str, list[AttemptRecord]] = {}
        for record in attempts.values():
            if record.repaired and isinstance(record.certainty, dict):
                levels.setdefault(str(record.certainty.get("level")), []).append(record)
        for level, records in sorted(levels.items()):
            wrong = [each.certainty for each in records if not each.right]
            asked = sum(isinstance(each, dict) and bool(each.get("question")) for each in wrong)
            right = _share(len(records) - len(wrong), len(records))
            yield f"| {ranker} | {level} | {len(records)} | {right} | {asked} of {len(wrong)} |"


def _in_order(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    """Compare executions with those of running the scripted samples in order until one passes."""
    rows = []
    for ranker, attempts in sorted(by_ranker.items()):
        scripted = [record for record in attempts.values() if record.in_order]
        if scripted:
            ours, theirs = (
                sum(record.executions for record in scripted),
                sum(record.in_order for record in scripted),
            )
            right = _share(sum(record.in_order_right for record in scripted), len(scripted))
            rows.append(f"| {ranker} | {len(scripted)} | {ours} | {theirs} | {right} |")
    if rows:
        yield ""
        yield "| ranker | bugs | executions | samples in order: executions | right |"
        yield "|---|---|---|---|---|"
        yield from rows


def _answers(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    """Compare the first searches with the last ones, if questions were answered."""
    records = [record for attempts in by_ranker.values() for record in attempts.values()]
    if not any(record.answered for record in records):
        return
    yield ""
    yield (
        "| source | ranker | bugs with an answer | of these right before | after "
        "| of all repaired | right | right of repaired |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for ranker, attempts in sorted(by_ranker.items()):
        for source in _sources(attempts):
            chosen = [*_of(attempts, source).values()]
            asked = [record for record in chosen if record.answered]
            last = [_last(record) for record in chosen]
            repaired, right = (sum(r.repaired for r in last), sum(r.right for r in last))
            yield (
                f"| {source} | {ranker} | {len(asked)} | {sum(record.right for record in asked)} "
                f"| {sum(_last(record).right for record in asked)} "
                f"| {_share(repaired, len(chosen))} | {_share(right, len(chosen))} "
                f"| {_share(right, repaired)} |"
            )


def _last(record: AttemptRecord) -> AttemptRecord:
    while record.answered:
        record = record.answered
    return record


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "0"


def _executions(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    models = [ranker for ranker in sorted(by_ranker) if "model" in ranker]
    others = [ranker for ranker in sorted(by_ranker) if "model" not in ranker]
    pairs = [(other, model) for model in models for other in others]
    if not pairs:
        return
    yield ""
    yield (
        "| source | executions of | ÷ of | bugs | sums | ratio | if the second needed one for each "
        "repair | repaired by either | their ratio | fewer / more / equal with the second |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for above, below in pairs:
        shared = by_ranker[above].keys() & by_ranker[below].keys()
        first = {digest: by_ranker[above][digest] for digest in shared}
        second = {digest: by_ranker[below][digest] for digest in shared}
        for source in _sources(first):
            yield _pair(above, below, source, _of(first, source), second)


def _pair(above: str, below: str, source: str, first: _Attempts, second: _Attempts) -> str:
    digests = sorted(first, key=lambda digest: (first[digest].source, first[digest].name))
    costs = [(_cost(first[digest]), _cost(second[digest])) for digest in digests]
    repaired = [first[digest].repaired or second[digest].repaired for digest in digests]
    either = [cost for cost, each in zip(costs, repaired, strict=True) if each]
    # No ranker can save more: the bugs that neither repairs cost the full budget with any of them.
    floor = [1 if each else other for (_, other), each in zip(costs, repaired, strict=True)]
    most = sum(one for one, _ in costs) / sum(floor)
    fewer = sum(one > other for one, other in costs)
    more = sum(one < other for one, other in costs)
    equal = len(costs) - fewer - more
    sums = f"{sum(one for one, _ in costs)} ÷ {sum(other for _, other in costs)}"
    return (
        f"| {source} | {above} | {below} | {len(costs)} | {sums} | {_ratio(costs)} "
        f"| {most:.2f} | {len(either)} | {_ratio(either)} | {fewer} / {more} / {equal} |"
    )


def _over_seeds(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    """Compare the means over seeds, if a ranker has several: chance breaks ties of suspicion."""
    seeds: dict[str, list[_Attempts]] = {}
    for label, attempts in by_ranker.items():
        seeds.setdefault(label.partition(", seed ")[0], []).append(attempts)
    if max(map(len, seeds.values())) == 1:
        return
    yield ""
    yield "| source | mean executions of | ÷ of | bugs | ratio | repaired by any | their ratio |"
    yield "|---|---|---|---|---|---|---|"
    names = {
        name: f"{name} ({len(each)} {'seed' if len(each) == 1 else 'seeds'})"
        for name, each in sorted(seeds.items())
    }
    models = [name for name in names if "model" in name]
    for above, below in [(name, model) for model in models for name in names if name not in models]:
        several = [*seeds[above], *seeds[below]]
        shared = set.intersection(*({*attempts} for attempts in several))
        records = {digest: several[0][digest] for digest in shared}
        for source in _sources(records):
            chosen = _of(records, source)
            digests = sorted(chosen, key=lambda digest: (records[digest].source, digest))
            costs = [
                (_mean_cost(seeds[above], digest), _mean_cost(seeds[below], digest))
                for digest in digests
            ]
            repaired = [
                cost
                for digest, cost in zip(digests, costs, strict=True)
                if any(attempts[digest].repaired for attempts in several)
            ]
            yield (
                f"| {source} | {names[above]} | {names[below]} | {len(costs)} | {_ratio(costs)} "
                f"| {len(repaired)} | {_ratio(repaired)} |"
            )


def _mean_cost(seeds: Sequence[_Attempts], digest: str) -> float:
    return sum(_cost(attempts[digest]) for attempts in seeds) / len(seeds)


def _ratio(costs: Sequence[tuple[float, float]]) -> str:
    if not costs:
        return ""
    bootstrap = ModuleBootstrap([f"{number:04}" for number in range(len(costs))], _RESAMPLES, _SEED)
    return str(bootstrap.ratio([one for one, _ in costs], [other for _, other in costs]))


def _losses(by_ranker: Mapping[str, _Attempts]) -> Iterator[str]:
    failed = [record for attempts in by_ranker.values() for record in attempts.values()]
    failed = [record for record in failed if record.error]
    if failed:
        yield "\nNot tried:\n"
    for record in sorted(failed, key=lambda record: (record.source, record.name)):
        what = f"{record.source}/{record.name} ({_label(record.conditions)})"
        yield f"- {what}: {' '.join(record.error.split())}"
