"""Reports on results: tables, figures and a page."""
