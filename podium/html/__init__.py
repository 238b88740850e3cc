"""Pages as one HTML file with charts and tables that works offline, on a phone, on paper and without a mouse."""
