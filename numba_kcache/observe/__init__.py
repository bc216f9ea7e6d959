"""What people see of a cache: log lines and warnings, tables, the HTML report, progress."""
