"""Reports: what is said of a run, and how terminal, page, figures and Markdown draw it."""
