from __future__ import annotations

import json
from itertools import islice

import pytest

from agents.waltzrl.conversations import Conversation
from agents.waltzrl_feedback_agent import WaltzRLFeedbackAgent
from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.conversations import best_feedback_accuracy, converse
from benchmarks.agents.records import NOISES, RULES, generate, rule_of
from genesis_fp16.cli.configured_agents import GENESIS_AGENTS
from infrastructure.trajectories.genesis_records.replay_trajectories import decode_trajectory

RECORDS = 2000


def test_there_is_a_business_for_each_agent_of_the_preset() -> None:
    assert tuple(business.name for business in BUSINESSES) == GENESIS_AGENTS


@pytest.mark.parametrize("number", range(4))
def test_noise_alone_bounds_what_can_be_predicted(number: int) -> None:
    business = BUSINESSES[number]
    rule = rule_of(business, number)
    right, succeeded = 0, 0
    for record in generate(business, rule, RECORDS, seed=1):
        (transition,) = decode_trajectory(json.dumps(record).encode())
        task = transition.observation["task"].partition(" for customer")[0]
        situation = json.loads(transition.observation["state"])[business.state]
        (choice,) = json.loads(transition.action["arguments"]).values()
        predicted = rule.succeeds(
            tool_suits=transition.action["tool"] == rule.tool_for[task],
            choice_suits=choice == rule.choice_for[situation],
        )
        right += predicted == transition.next_observation["success"]
        succeeded += transition.next_observation["success"]
    assert right / RECORDS == pytest.approx(1.0 - rule.noise, abs=0.03)
    assert 0.4 < succeeded / RECORDS < 0.6  # so that the base rate tells little


def test_rules_differ_between_agents_and_the_same_seed_gives_the_same_records() -> None:
    rules = [rule_of(business, number) for number, business in enumerate(BUSINESSES)]
    assert {rule.needs for rule in rules} == set(RULES)
    assert {rule.noise for rule in rules} == set(NOISES)
    once, twice, other = (
        list(islice(generate(BUSINESSES[0], rules[0], 5, seed), 5)) for seed in (1, 1, 2)
    )
    assert once == twice != other


def test_the_best_prediction_of_what_the_feedback_agent_calls_success_is_known() -> None:
    agent, conversations = WaltzRLFeedbackAgent(), list(converse(RECORDS, seed=1))
    success = agent.spec().success
    assert success is not None
    improved, predicted = 0, 0
    for each in conversations:
        (transition,) = agent.transitions_of(Conversation.model_validate(each.line))
        succeeded = transition.next_observation[success[0]] == success[1]
        assert succeeded in (each.followed, each.repeated)
        predicted += succeeded == each.followed
        improved += transition.next_observation["improvement"] == "1"
    assert improved > 30  # fewer, and the feedback agent refuses to train
    assert predicted / RECORDS == pytest.approx(best_feedback_accuracy(conversations), abs=0.015)
