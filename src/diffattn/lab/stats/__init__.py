"""Means, intervals and paired differences: what every runner needs to be honest."""
