"""The lab: published comparisons of serverless platforms, repeated with workloads of our own.

Where to start: `catalog` reads the workloads, `platforms` is what they run on, `experiments` what
is done with them, `results` what is kept. `statistics`, `study` and `figures` are pure: numbers in,
numbers or pictures out. `__main__` is the command line.
"""
