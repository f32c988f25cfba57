"""Shared means of display: tables, one-line texts, figures, progress bars."""
