import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agents.se_darwin.features import SPEC
from agents.se_darwin.prior import PRIOR_FOLDER
from agents.se_darwin.prior.build import Part, digest_of, features_digest, train
from infrastructure.trajectories.split import part_of
from infrastructure.world_model_agent.prior import Prior

REBUILD = "the prior that ships must be built again; run `make prior` and commit its files"
OUR_OWN = "everyday"  # functions of this project, beside those of the standard library
REMOVED_MODULES = {"cgi", "pipes", "nntplib"}  # that later versions of Python lack


@pytest.fixture(scope="module")
def index() -> dict[str, object]:
    return json.loads((PRIOR_FOLDER / "prior.json").read_text())


def test_the_shipped_prior_fits_the_features_of_today(index: dict[str, object]) -> None:
    assert index["features"] == features_digest(), f"features or edits have changed: {REBUILD}"
    prior = Prior.open(PRIOR_FOLDER)
    for which in ("model", "twin"):
        assert prior.load(which, SPEC).fitted_model is not None


def test_the_shipped_prior_is_small_and_holds_nothing_else(index: dict[str, object]) -> None:
    files = [path for which in ("model", "twin") for path in (PRIOR_FOLDER / which).iterdir()]
    assert {path.relative_to(PRIOR_FOLDER).as_posix() for path in files} == set(index["files"])
    assert sum(path.stat().st_size for path in files) < 4.5e6
    assert not index["excluded"] or all("constant" in each for each in index["excluded"])


def test_the_prior_has_seen_the_corpus_alone(index: dict[str, object]) -> None:
    known = sys.stdlib_module_names | REMOVED_MODULES | {OUR_OWN}
    for which, groups in index["groups"].items():
        assert len(groups) > 50
        assert {group for group in groups if group.partition(".")[0] not in known} == set()
        assert which == "model" or not [group for group in groups if part_of(group) == "test"]


@pytest.mark.process
def test_it_is_built_from_candidates_that_were_run(tmp_path: Path) -> None:
    transitions = Part(seed="0", candidates=20).collect()
    spread = [
        replace(
            transition,
            group=f"group-{number % 30}",
            next_observation={"outcome": "fixed" if number % 7 else "same", "score_delta": number},
        )
        for number, transition in enumerate(transitions * 12)
    ]
    train(tmp_path, spread, seed=0, epochs=1)
    built = json.loads((tmp_path / "prior.json").read_text())
    assert built["transitions"] == 240
    assert built["experience"] == digest_of(spread)
    assert built["features"] == features_digest()
    assert built["command"] == "python -m agents.se_darwin.prior.build --seed 0"
    assert Prior.open(tmp_path).load("model", SPEC).fitted_model is not None
