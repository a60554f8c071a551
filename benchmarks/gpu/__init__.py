"""What this project says about CUDA, proved or refuted on a machine that has a GPU.

``python -m benchmarks.gpu`` runs each section in a process of its own and writes a page and a JSON.
"""
