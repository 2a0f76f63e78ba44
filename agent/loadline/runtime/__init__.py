"""The only loop: inbox -> codec -> controller -> effects, and the record of every turn."""
