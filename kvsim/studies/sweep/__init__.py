"""A sweep file → many points → one table and one page."""
