"""One third-party client a file, each behind a port."""
