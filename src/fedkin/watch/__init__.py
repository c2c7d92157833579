"""A run that is still under way, as a page in the browser: `fedkin watch`."""
