"""The sets of the report are held back; those for choices are others."""

import pytest

from benchmarks.world_model.catalogue import DATA_SETS, HELD_BACK, TUNING, choose

ISSUE = {
    *("breast_cancer", "wine", "penguins", "digits", "fair", "seattle_weather", "modechoice"),
    *("sms_spam", "fine_foods", "diabetes", "wages_panel", "diamonds", "computers", "amazon"),
    *("randhie", "computers_missing", "pendulum", "cartpole", "acrobot", "mountain_car_continuous"),
}


def test_no_choice_is_made_on_what_is_reported():
    assert set(HELD_BACK) == ISSUE
    assert not ISSUE & set(TUNING)
    assert {DATA_SETS[name].kind for name in TUNING} == {"labels", "numbers", "dynamics"}


def test_names_of_groups_and_of_sets_are_chosen_once():
    chosen = [each.name for each in choose(["wine", "tuning", "wine"])]
    assert chosen == ["wine", *TUNING]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="'wines' is not a data set; there are breast_cancer"):
        choose(["wines"])
