"""The page of evidence: each claim of the papers with their figure, ours, those of the peers in the
same run, and a verdict.

`claims` is the list of claims, as data. `figures` says how a figure is read from a stored run,
`page` judges the figures and writes the page, and `repeat` runs everything again in a short form.
Nobody writes a verdict by hand.
"""
