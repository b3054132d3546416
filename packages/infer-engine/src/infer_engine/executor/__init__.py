"""One model on several devices: rank 0 schedules and samples, the other ranks follow it in processes of their own."""
