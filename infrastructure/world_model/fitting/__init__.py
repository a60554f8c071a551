"""Fitting a world model: data, batches, training job, linear baseline, model selection."""

from infrastructure.world_model.fitting.fitted_model import (
    Family,
    FittedModel,
    fit_candidates,
    predict_all,
    select_family,
)
from infrastructure.world_model.fitting.linear_fit import fit_linear
from infrastructure.world_model.fitting.plan import PlanBounds, plan_training
from infrastructure.world_model.fitting.training_data import (
    DataPart,
    TrainingData,
    prepare_training_data,
)
from infrastructure.world_model.fitting.training_job import TrainingPlan, training_job

__all__ = [
    "DataPart",
    "Family",
    "FittedModel",
    "PlanBounds",
    "TrainingData",
    "TrainingPlan",
    "fit_candidates",
    "fit_linear",
    "plan_training",
    "predict_all",
    "prepare_training_data",
    "select_family",
    "training_job",
]
