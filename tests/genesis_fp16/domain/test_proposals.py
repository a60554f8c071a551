"""A proposal that its training has refuted is told no more."""

from __future__ import annotations

from dataclasses import replace

from genesis_fp16.domain.proposals import LastProposal
from infrastructure.events import PrecisionState
from infrastructure.events.event import PrecisionChanged, RungSearched

HALF = PrecisionState(requested="fp16", effective="fp16", reason="default")
TRIPPED = replace(HALF, effective="fp32", reason="guard")


def test_a_rung_that_trips_refutes_its_proposal() -> None:
    proposal = LastProposal()

    def change(state: PrecisionState) -> None:
        proposal.note(PrecisionChanged(step=1, state=state, loss_scale=1.0))

    def search(reason: str, **found: object) -> None:
        fields = {"step": 1, "cause": "parts", "reason": reason, **found}
        proposal.note(RungSearched.model_validate(fields))

    change(HALF)
    change(TRIPPED)
    search("first", parts={"critic": "bf16"})
    assert proposal.text == "first"
    change(replace(HALF, parts={"critic": "bf16"}))
    assert proposal.text == "first"
    change(HALF)  # on probation
    change(TRIPPED)
    assert proposal.text == "first", "its rung was not in force"
    change(replace(HALF, parts={"critic": "bf16"}))
    change(replace(TRIPPED, reason="operator"))
    assert proposal.text == "first"
    change(replace(HALF, parts={"critic": "bf16"}))
    change(TRIPPED)
    assert proposal.text == ""
    search("again", parts={"critic": "bf16"})
    assert proposal.text == ""
    search("other", parts={"critic": "fp32"}, fp32_share=0.25)
    assert proposal.text.startswith("keep_fp32=['part:critic']: 25.0%")
