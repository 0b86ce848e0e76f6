"""From a run's tables and summaries to one HTML page, see `page.build_report`."""
