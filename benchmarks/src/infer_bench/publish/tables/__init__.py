"""The tables of README and docs: functions from results to Markdown."""
