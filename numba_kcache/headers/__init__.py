"""Headers that CUDA C++ includes: scanned, surveyed, recorded with each entry, and compared at each look-up."""
