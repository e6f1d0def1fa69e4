"""One file for what each command says: a run, a step or two runs become a Report."""
