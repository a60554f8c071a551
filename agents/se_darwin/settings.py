"""Settings of SE-Darwin."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from agents.se_darwin.llm import LLMOptions


class SEDarwinSettings(BaseModel):
    """Settings of the agent's runs.

    Attributes:
        candidates_per_run: Candidates to run in one run, if its budget allows.
        evaluations_per_task: Candidates to run on one broken function before the next is taken.
        candidates_per_generation: Candidates to run from one parent at a time.
        exploration: Share of candidates chosen at random; keeps the data diverse and the
            calibration unbiased.
        two_edit_share: Share of tasks with two faults instead of one.
        wide_fault_share: Share of tasks with faults like those that people make, which often no
            single edit repairs, instead of the agent's own edits.
        few_tests_share: Share of tasks with 3 to 10 tests instead of 40.
        parallel_candidates: Candidates that run at the same time.
        llm: Options of the language model that writes candidates for `evolve`, as JSON, see
            below; None for none. A run of the agent asks no model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    candidates_per_run: int = Field(default=12000, ge=1)
    evaluations_per_task: int = Field(default=32, ge=1)
    candidates_per_generation: int = Field(default=8, ge=1)
    exploration: float = Field(default=0.2, gt=0.0, le=1.0)
    two_edit_share: float = Field(default=0.2, ge=0.0, le=1.0)
    wide_fault_share: float = Field(default=0.5, ge=0.0, le=1.0)
    few_tests_share: float = Field(default=0.5, ge=0.0, le=1.0)
    parallel_candidates: int = Field(default=2, ge=1, le=64)
    llm: LLMOptions | None = None
