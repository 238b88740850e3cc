"""What training costs at the user's prices."""
