"""The highest load, or the best value of another knob, that meets the SLO, with its interval."""
