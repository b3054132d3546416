"""`infer-server doctor`: examines the machine and a model on it, part by part, each in processes of its own.

    part_process.py   one process of a part: started, limited in time, killed with all that it started
    parts.py          which parts there are, how long each may take; joins what its processes found
    report.py         the report, as a table and as JSON
    redaction.py      takes secrets out of it

The parts themselves are programs of `infer_engine.doctor`: this package loads no torch.
"""
