"""Terminal output, figures and pages. Each loads its libraries only when it is used."""
