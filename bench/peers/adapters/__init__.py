"""One program per system. It runs in the environment of that system and takes requests as lines of JSON.

`adapter.py` and `adapter.mjs` have the protocol; the other files implement it for one system each.
"""
