"""Dependencies: when the jobs of a batch may run, and when they never can.

Nothing is expanded. A batch that waits is told of one thing at a time: the end of one batch, or of one job, that it
cannot do without; then it looks for the next. So a dependency costs one look, whatever the sizes, and a batch for which
ten thousand others wait is cheap until it is settled. A batch that depends on another job by job is told of just the
positions that were settled, and compares stretches of state bytes. Jobs that wait for others one by one have a graph
(`rota.core.graph`), whose *gates* wait for what is outside of the batch, each in the way of a batch that waits.
"""
