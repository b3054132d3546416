"""ARM by emulation: a root with this checkout's packages, and what is compared with x86."""
