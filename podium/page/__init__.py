"""One HTML file with charts and tables that opens offline, on a phone, on paper and without a mouse."""
