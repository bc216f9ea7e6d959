"""What tests share and import: the fake CUDA driver."""
