"""What should be: proposals, and the rails over them."""
