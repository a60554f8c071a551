"""CUDA graphs of whole steps, wrapped around the trainer."""
