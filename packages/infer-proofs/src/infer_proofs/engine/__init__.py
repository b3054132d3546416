"""What tests of and around the engine share: a formula for a model, scripted cores, engines over tiny checkpoints."""
