"""SAC on Pendulum-v1: the example agent beside a textbook's loop, in each precision."""
