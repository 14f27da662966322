"""How the loss of every attention type falls with parameters and with tokens."""
