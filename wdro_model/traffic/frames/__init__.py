"""Networks as tables of links, trips and nodes: pandas frames and GMNS folders."""
