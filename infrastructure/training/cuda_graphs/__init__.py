"""CUDA graphs of whole steps, wrapped around the trainer, which does not know them."""

from infrastructure.training.cuda_graphs.graphed_trainer import GraphedTrainer

__all__ = ["GraphedTrainer"]
