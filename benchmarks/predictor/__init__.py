"""What the predictor takes: time of answers, durable outcomes, memory, publications under load."""
