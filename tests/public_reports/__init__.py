"""The kinds of fault that GEMM libraries are known for, from public reports of them.

Each section is a kind: first the cases of the reports, in our own words and labelled with the
report's id, then the rule for the whole kind. `SOURCES` in test_sources.py says where a report is.
Right values come from float64 loops or are exact; what is a choice of ours is stated where it is
pinned.
"""
