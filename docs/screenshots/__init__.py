"""Screenshots of the dashboard: `./run screenshots` runs a shop, and photographs every page in Chromium."""
