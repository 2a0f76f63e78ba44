"""Commands of the program ``loadline``."""
