"""SAC and a Dreamer on Pendulum-v1: the example agents beside what they are compared with."""
