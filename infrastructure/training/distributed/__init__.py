"""Several ranks under torchrun: DDP, FSDP2, decisions that all ranks share."""
