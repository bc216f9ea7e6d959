"""From an artifact to a launch: loading, argument checks, packing. The one seam to the driver."""
