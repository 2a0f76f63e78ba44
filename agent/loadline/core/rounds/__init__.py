"""Work of one turn over the whole state: a scaling round and a migration round."""
