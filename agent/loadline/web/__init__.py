"""The live page: page data, server-sent events, access by token, and the static files of the page."""
