"""What is shown: tables in notebooks, short texts, figures, progress bars."""
