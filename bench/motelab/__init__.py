"""The lab: published comparisons of serverless platforms, repeated with workloads of our own.

Where to start: `catalog` reads the workloads, `platforms` runs them, `experiments` measures them,
and `results` stores the measurements. `statistics`, `study` and `figures` are pure: numbers in,
numbers or pictures out. `__main__` is the command line.
"""
