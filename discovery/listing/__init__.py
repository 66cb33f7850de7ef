"""Where registrations become listings, and listings one published value."""
