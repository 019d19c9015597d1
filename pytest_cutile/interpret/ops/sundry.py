"""Printing and assertions."""
