"""Recordings of Kueue, kube-scheduler and Koordinator, replayed on makeway and compared fact by fact.

    .venv/bin/python -m tests.golden DIR

recording.py   what was recorded: situations, their steps, commands and outcomes
replay.py      the same steps on a whole machine in one process; what came of it, in the recording's own shape
names.py       uids, random suffixes, times and ages on both sides brought to one form
facts.py       an outcome as facts: one for each field, condition, event, row and section
comparing.py   facts against facts: equal, wanted different, different
wanted.py      the differences that are wanted, each with its reason
expected.py    Koordinator: the right outcome instead of the recorded one, its messages and its order of writes
promises.py    what holds whatever was recorded: under `least-loss`, for every situation
"""
