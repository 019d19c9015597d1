"""What all studies share: rows that are timed and stored one by one, peers, and the files that they write."""
