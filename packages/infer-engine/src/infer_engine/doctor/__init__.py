"""The parts of `infer-server doctor`, each a program: what this machine, a model and the engine on it are like.

    python -m infer_engine.doctor PART REQUEST FD

`__main__.py` runs a part; `reporter.py` writes what it finds. The server starts the programs, limits their time and
prints the report; see `infer_engine.protocol.doctor` for their messages.
"""
