"""Train, evaluate, study and report. Needs the packages of pip install diffattn[lab]."""
