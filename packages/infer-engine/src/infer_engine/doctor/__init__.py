"""The parts of `infer-server doctor`, each a program that checks the machine, a model or the engine.

    python -m infer_engine.doctor PART REQUEST FD

`__main__.py` runs a part; `reporter.py` writes its findings. The server starts the programs, limits their time and
prints the report; see `infer_engine.protocol.doctor` for their messages.
"""
