"""For tests of what runs on a cluster: one without Ray, and real ones on this machine."""
