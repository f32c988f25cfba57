"""Networks from and to files and tables: GMNS folders, TNTP files, pandas frames."""
