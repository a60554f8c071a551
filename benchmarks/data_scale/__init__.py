"""Training on many transitions: memory, speed of batches, time to encode and to compact."""
