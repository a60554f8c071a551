"""What happens in torch's AMP recipe, Fabric, Accelerate and `FP16Trainer` when a step goes wrong.

`loops` has the four loops, `cases` what is done to each of them, `__main__` prints the table.
"""
