"""How fast what was verified is: beside the roofline of its device, and beside torch there."""
