"""Tools of tests of and around the engine: a formula for a model, scripted cores, engines over tiny checkpoints."""
