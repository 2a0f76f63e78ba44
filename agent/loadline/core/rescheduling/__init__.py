"""Which work moves from where to where: metrics, filters, selectors, policies, and the moves that are in flight."""
