"""Several cores behind one `CoreClient`: where a request goes, and what happens when a core is lost."""
