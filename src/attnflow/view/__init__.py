"""How a result is shown: in the terminal, as a plot, as a page. Each loads its own libraries, and only when used."""
