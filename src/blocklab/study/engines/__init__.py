"""Where runs are trained: processes here, or the machines of a Ray cluster."""
