"""What we believe about the world now."""
