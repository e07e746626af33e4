"""The native engine: executes a plan with PyTorch, a process a GPU (or a process a core where there is none).

`python -m torch.distributed.run ... -m rpegc.runtime plan.json` runs it. Only `settings` and `program` can be imported
without torch; it comes with the extra `rpegc[native]`.
"""
