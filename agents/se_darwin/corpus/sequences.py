"""Inputs for functions on sequences: heaps, bisection, statistics, differences of lists."""

from __future__ import annotations

from agents.se_darwin.corpus.draws import (
    Generator,
    ascending,
    heap,
    integers,
    text,
    words,
)

GENERATORS: dict[str, Generator] = {
    "heapq:heappush": lambda rng: (heap(rng), rng.randint(-2, 14)),
    "heapq:heappop": lambda rng: (heap(rng),),
    "heapq:heapreplace": lambda rng: (heap(rng), rng.randint(-2, 14)),
    "heapq:heappushpop": lambda rng: (heap(rng), rng.randint(-2, 14)),
    "heapq:heapify": lambda rng: (integers(rng),),
    "heapq:_siftdown": lambda rng: (
        [*heap(rng, 2), rng.randint(-3, 9), rng.randint(-3, 9)],
        rng.choice((0, 0, 0, 1)),
        rng.randint(0, 3),
    ),
    "heapq:_siftup": lambda rng: ([rng.randint(0, 15), *heap(rng, 1)], rng.choice((0, 0, 1))),
    "heapq:_siftdown_max": lambda rng: (integers(rng, shortest=4), 0, rng.randint(0, 3)),
    "heapq:_siftup_max": lambda rng: (integers(rng, shortest=3), rng.choice((0, 0, 1))),
    "heapq:merge": lambda rng: tuple(ascending(rng, 0, 5) for _ in range(rng.randint(0, 4))),
    "heapq:nsmallest": lambda rng: (rng.randint(-1, 6), integers(rng)),
    "heapq:nlargest": lambda rng: (rng.randint(-1, 6), integers(rng)),
    "bisect:bisect_right": lambda rng: (
        ascending(rng),
        rng.randint(-1, 13),
        rng.choice((0, 0, 0, 1, -1)),
    ),
    "bisect:bisect_left": lambda rng: (
        ascending(rng),
        rng.randint(-1, 13),
        rng.choice((0, 0, 0, 2, -1)),
    ),
    "bisect:insort_right": lambda rng: (ascending(rng), rng.randint(-1, 13)),
    "bisect:insort_left": lambda rng: (ascending(rng), rng.randint(-1, 13)),
    "statistics:median": lambda rng: (integers(rng),),
    "statistics:median_low": lambda rng: (integers(rng),),
    "statistics:median_high": lambda rng: (integers(rng),),
    "statistics:median_grouped": lambda rng: (integers(rng), rng.choice((1, 1, 2))),
    "statistics:multimode": lambda rng: (integers(rng, 0, 4),),
    "statistics:quantiles": lambda rng: (integers(rng),),
    "statistics:harmonic_mean": lambda rng: (integers(rng, -1, 12, 0, 5),),
    "statistics:correlation": lambda rng: (
        integers(rng, 0, 9, 3, 3),
        integers(rng, 0, 9, rng.choice((2, 3, 3, 3)), 3),
    ),
    "functools:_c3_merge": lambda rng: (
        [list(dict.fromkeys(integers(rng, 0, 5, 0, 4))) for _ in range(rng.randint(0, 3))],
    ),
    "operator:countOf": lambda rng: (integers(rng, 0, 4), rng.randint(0, 4)),
    "operator:indexOf": lambda rng: (integers(rng, 0, 4), rng.randint(0, 4)),
    "operator:concat": lambda rng: (integers(rng), rng.choice((integers(rng), 3))),
    "unittest.util:sorted_list_difference": lambda rng: (ascending(rng), ascending(rng)),
    "unittest.util:unorderable_list_difference": lambda rng: (
        integers(rng, 0, 6),
        integers(rng, 0, 6),
    ),
    "unittest.util:three_way_cmp": lambda rng: (rng.randint(0, 3), rng.randint(0, 3)),
    "unittest.util:_count_diff_all_purpose": lambda rng: (
        integers(rng, 0, 3),
        integers(rng, 0, 3),
    ),
    "unittest.util:_count_diff_hashable": lambda rng: (integers(rng, 0, 3), integers(rng, 0, 3)),
    "unittest.util:_shorten": lambda rng: (
        text(rng, high=14),
        rng.randint(0, 4),
        rng.randint(0, 4),
    ),
    "difflib:_calculate_ratio": lambda rng: (rng.randint(0, 9), rng.randint(0, 20)),
    "difflib:_format_range_unified": lambda rng: (rng.randint(0, 9), rng.randint(0, 12)),
    "difflib:_format_range_context": lambda rng: (rng.randint(0, 9), rng.randint(0, 12)),
    "difflib:_keep_original_ws": lambda rng: (
        text(rng, "ab \t", high=8),
        text(rng, "ab^ ", high=8),
    ),
    "difflib:get_close_matches": lambda rng: (rng.choice(words(rng, 1)), words(rng)),
    "re._compiler:_generate_overlap_table": lambda rng: (text(rng, "ab", 1, 9),),
    "re._compiler:_mk_bitmap": lambda rng: (
        bytes(rng.choice((0, 0, 1)) for _ in range(rng.choice((32, 64, 96)))),
    ),
    "_strptime:_calc_julian_from_V": lambda rng: (
        rng.randint(1990, 2030),
        rng.randint(1, 53),
        rng.randint(1, 7),
    ),
    "_strptime:_calc_julian_from_U_or_W": lambda rng: (
        rng.randint(1990, 2030),
        rng.randint(0, 53),
        rng.randint(0, 6),
        rng.choice((True, False)),
    ),
    "pydoc:replace": lambda rng: (text(rng), *rng.choice((("a", "b"), ("a", "", "b", "z"), ()))),
}
