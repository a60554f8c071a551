"""What the daemon costs with 1,000 agents: idle, all due at once, and a storm worked off."""
