"""Policies over actions, trained as populations: networks [P, ...], distributions, observation transforms."""
