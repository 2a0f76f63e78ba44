"""Program that makes a running inference engine a worker."""
